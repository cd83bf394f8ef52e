"""A conflating PUB: a subscriber that lags gets the newest message and loses those between, on blocking sockets."""

from __future__ import annotations

import pytest
import zmq

import omq
from tests.support.waits import until
from tests.unit.blocking.conftest import BOUND

COUNT = 5000
BODY = bytes(10_000)  # all of them are more than the kernels keep


def number(message):
    return int.from_bytes(message[:4], "big")


def publish(pub, count=COUNT):
    for serial in range(count):
        pub.send(serial.to_bytes(4, "big") + BODY)


def received(sub, last=COUNT - 1):
    """The numbers of what comes, up to the last one that was sent."""
    numbers = [number(sub.recv(timeout=BOUND))]
    while numbers[-1] != last:
        numbers.append(number(sub.recv(timeout=BOUND)))
    return numbers


def test_a_lagging_peer_gets_the_newest_and_nothing_is_out_of_order(make, endpoint):
    pub = make(omq.PUB, bind=endpoint, conflate=True, send_hwm=10)
    subs = [make(omq.SUB, connect=pub.endpoints[0], subscribe=b"", recv_hwm=10) for _ in range(2)]
    pub.wait_subscribed(n=2, timeout=BOUND)
    publish(pub)
    assert [peer.dropped for peer in pub.peers] == [0, 0]
    for sub in subs:
        numbers = received(sub)
        assert numbers == sorted(set(numbers))
        assert len(numbers) < COUNT
        assert not sub.poll(0.02), "nothing is older than the newest"


def test_a_message_of_several_parts_is_kept_whole(make, endpoint):
    pub = make(omq.PUB, bind=endpoint, conflate=True)
    sub = make(omq.SUB, connect=pub.endpoints[0], subscribe=b"", recv_hwm=10)
    pub.wait_subscribed(timeout=BOUND)
    for serial in range(COUNT):
        pub.send_multipart([b"%d" % serial, BODY, bytearray(b"%d" % serial)])
    while True:
        first, body, last = sub.recv_multipart(timeout=BOUND)
        assert (first, body) == (last, BODY)
        if int(first) == COUNT - 1:
            break


def test_the_newest_leaves_before_the_socket_is_closed(make, crew, endpoint):
    pub = make(omq.PUB, bind=endpoint, conflate=True)
    sub = make(omq.SUB, connect=pub.endpoints[0], subscribe=b"", recv_hwm=10)
    pub.wait_subscribed(timeout=BOUND)
    publish(pub)
    assert pub.lingers
    crew(pub.close, BOUND)
    until(lambda: pub.closed)
    assert received(sub)[-1] == COUNT - 1
    crew.join()


def test_what_was_kept_for_a_subscriber_goes_with_it(make, endpoint):
    pub = make(omq.PUB, bind=endpoint, conflate=True)
    sub = make(omq.SUB, connect=pub.endpoints[0], subscribe=b"", recv_hwm=10)
    pub.wait_subscribed(timeout=BOUND)
    publish(pub)
    assert pub.lingers
    sub.stop()
    until(lambda: not pub.peers)
    assert not pub.lingers


def test_a_conflating_publisher_never_waits(make, endpoint):
    pub = make(omq.PUB, bind=endpoint, conflate=True, xpub_nodrop=True, send_hwm=1, send_timeout=BOUND)
    sub = make(omq.SUB, connect=pub.endpoints[0], subscribe=b"", recv_hwm=1)
    pub.wait_subscribed(timeout=BOUND)
    publish(pub)
    assert pub.poll(0, omq.POLL_OUT) == omq.POLL_OUT
    assert received(sub)[-1] == COUNT - 1


@pytest.mark.parametrize("side", ["omq", "zmq"])
def test_a_libzmq_subscriber_gets_from_both_the_newest_last(make, side):
    context = zmq.Context()
    try:
        if side == "omq":
            pub = make(omq.PUB, bind="tcp://127.0.0.1:*", conflate=True)
            place = pub.endpoints[0]
        else:
            pub = context.socket(zmq.PUB)
            pub.conflate = True
            place = f"tcp://127.0.0.1:{pub.bind_to_random_port('tcp://127.0.0.1')}"
        sub = context.socket(zmq.SUB)
        sub.rcvhwm = 10
        sub.rcvtimeo = int(BOUND * 1000)
        sub.subscribe(b"")
        sub.connect(place)
        first = b""
        while not first:  # a conflating socket of libzmq does not report that a peer has subscribed
            pub.send(b"\0\0\0\0")
            if sub.poll(10):
                first = sub.recv()
        publish(pub)
        numbers = [0]
        while numbers[-1] != COUNT - 1:
            numbers.append(number(sub.recv()))
        assert numbers[-1] == COUNT - 1
        assert numbers == sorted(numbers)
        assert len(numbers) < COUNT
    finally:
        context.destroy(0)
