"""Closing with something to deliver: from no time at all to for ever, without a peer, or with one that never reads."""

from __future__ import annotations

import time

import pytest
import zmq

import omq
from tests.support.waits import BOUND, until
from tests.system.conformance.conftest import Waiting

LARGE = bytes(500_000)


@pytest.fixture
def later(endpoint):
    """An endpoint without a listener."""
    return endpoint


def took(work):
    start = time.monotonic()
    work()
    return time.monotonic() - start


@pytest.mark.parametrize("how", ["option", "argument"])
@pytest.mark.parametrize("linger", [0, 0.3])
def test_linger_without_a_peer_is_kept_to_the_time(twin, later, linger, how):
    push = twin("PUSH", connect=later, linger=linger if how == "option" else None)
    push.send(b"x")
    spent = took(push.close if how == "option" else lambda: push.close(linger))
    assert linger - 0.01 <= spent < linger + 5  # the loop counts milliseconds
    with pytest.raises(omq.ClosedError):
        push.send(b"y")


def test_linger_for_ever_waits_for_the_peer_and_dials_on(twin, later):
    push = twin("PUSH", connect=later, reconnect_interval=0.01)
    push.send_many([b"%d" % n for n in range(100)])
    closing = twin.spawn(push, "close")
    assert not closing.done(0.1)
    pull = twin("PULL", bind=later)
    assert [int(pull.recv(timeout=BOUND)) for _ in range(100)] == list(range(100))
    closing.result()
    assert push.closed


def test_linger_for_ever_is_waited_for_at_the_end_of_the_socket_and_by_libzmq_of_the_context(twin, tmp_path):
    """The page of differences agrees."""
    place = f"ipc://{tmp_path}/absent"
    context = zmq.Context()
    theirs = context.socket(zmq.PUSH)
    theirs.connect(place)
    theirs.send(b"x")
    theirs.close()  # returns
    ending = Waiting(context.term)
    assert not ending.done(0.1)
    push = twin("PUSH", connect=place, reconnect_interval=0.01)
    push.send(b"x")
    closing = twin.spawn(push, "close")
    assert not closing.done(0.1)
    pull = twin("PULL", bind=place)
    assert [pull.recv(timeout=BOUND) for _ in range(2)] == [b"x"] * 2
    closing.result()
    ending.result()


def test_linger_for_ever_keeps_listening(twin, endpoint):
    push = twin("PUSH", bind=endpoint)
    name = push.endpoints[0]
    push.send_many([b"%d" % n for n in range(100)])
    closing = twin.spawn(push, "close")
    assert not closing.done(0.1)
    pull = twin("PULL", connect=name, reconnect_interval=0.01)
    assert [int(pull.recv(timeout=BOUND)) for _ in range(100)] == list(range(100))
    closing.result()


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_linger_reconnects_after_a_peer_that_goes_meanwhile(twin, tmp_path, transport):
    """Messages that the former peer was not given go to the next one."""
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s"
    first = twin("PULL", bind=endpoint, recv_hwm=1)
    name = first.endpoints[0]
    push = twin("PUSH", connect=name, reconnect_interval=0.01, send_hwm=50)
    push.wait_connected(timeout=BOUND)
    count = 0
    try:
        while count < 1000:
            push.send_multipart([b"%d" % count, LARGE], timeout=0.3)
            count += 1
    except omq.SendTimeout:
        pass
    closing = twin.spawn(push, "close")
    assert not closing.done(0.1)
    first.stop()
    second = twin("PULL", bind=name)
    got = [int(second.recv_multipart(timeout=BOUND)[0])]
    while got[-1] < count - 1:
        got.append(int(second.recv_multipart(timeout=BOUND)[0]))
    closing.result()
    # A batch in flight to who died is gone; the rest comes in order and without a gap.
    assert got == list(range(got[0], count))


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_linger_delivers_a_batch_in_flight(twin, tmp_path, transport):
    """Much more than the kernel takes is under way when close is called, and the peer reads slowly."""
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s"
    pull = twin("PULL", bind=endpoint, recv_hwm=2)
    push = twin("PUSH", connect=pull.endpoints[0], send_hwm=0)
    push.wait_connected(timeout=BOUND)
    for number in range(40):
        push.send_multipart([b"%d" % number, LARGE])
    closing = twin.spawn(push, "close")
    for number in range(40):
        parts = pull.recv_multipart(timeout=BOUND)
        assert (int(parts[0]), parts[1]) == (number, LARGE)
    closing.result()


def test_linger_gives_up_on_a_peer_that_never_reads(twin):
    pull = twin("PULL", bind="tcp://127.0.0.1:*", recv_hwm=1)
    push = twin("PUSH", connect=pull.endpoints[0], send_hwm=0)
    push.wait_connected(timeout=BOUND)
    for _ in range(60):
        push.send(LARGE)
    assert 0.29 <= took(lambda: push.close(0.3)) < 5
    # What had left is whole; nothing half is delivered.
    until(lambda: not pull.peers or pull.poll(0))
    got = 0
    while pull.poll(0.2):
        assert pull.recv() == LARGE
        got += 1
    assert 0 < got < 60


def test_linger_of_nothing_pending_takes_no_time(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    push = twin("PUSH", connect=pull.endpoints[0])
    push.send(b"x")
    assert pull.recv(timeout=BOUND) == b"x"
    assert took(push.close) < 5
    assert took(pull.close) < 5


def test_linger_of_a_publisher_delivers_what_its_subscribers_had_room_for(twin, endpoint):
    sub = twin("SUB", bind=endpoint, subscribe=b"")
    pub = twin("PUB", connect=sub.endpoints[0])
    pub.wait_subscribed(timeout=BOUND)
    pub.send_many([b"%d" % n for n in range(900)])
    pub.close()
    assert [int(sub.recv(timeout=BOUND)) for _ in range(900)] == list(range(900))


def test_linger_for_ever_ends_where_there_is_no_endpoint(twin, later):
    """A closed socket makes no new connections: no peer can take what waits."""
    push = twin("PUSH")
    name = push.bind(later)
    push.send(b"x")
    push.unbind(name)
    twin.spawn(push, "close").result()
    assert push.closed


def test_linger_for_ever_goes_on_for_an_endpoint_that_was_left_before_anybody_was_there(twin, later):
    push = twin("PUSH", connect=later)
    push.send(b"x")
    push.disconnect(later)
    closing = twin.spawn(push, "close")
    assert not closing.done(0.1)
    assert twin("PULL", bind=later).recv(timeout=BOUND) == b"x"
    closing.result()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_linger_for_ever_ends_with_the_last_dialer(twin, endpoint, when):
    pull = twin("PULL", bind=endpoint, recv_hwm=1)
    push = twin("PUSH", connect=pull.endpoints[0], reconnect_interval=None, send_hwm=10)
    push.wait_connected(timeout=BOUND)
    while push.poll(0.1, omq.POLL_OUT):
        push.send(LARGE)
    if when == "before":
        pull.stop()
        until(lambda: not push.peers, "the end of the connection")
    closing = twin.spawn(push, "close")
    if when == "meanwhile":
        assert not closing.done(0.1)
        pull.stop()
    closing.result()
    assert push.closed


def test_linger_is_ended_by_stop(twin, later):
    push = twin("PUSH", connect=later)
    push.send(b"x")
    closing = twin.spawn(push, "close")
    assert not closing.done(0.1)
    push.stop()
    closing.result()
