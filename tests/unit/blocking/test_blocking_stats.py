"""The statistics of blocking sockets."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import astuple
from itertools import pairwise

import pytest
import zmq

import omq
from tests.support.waits import stable, until
from tests.unit.blocking.conftest import BOUND

COUNTERS = (
    "messages_sent",
    "messages_received",
    "sent_bytes",
    "received_bytes",
    "messages_dropped",
    "reconnects",
    "handshake_failures",
)
BODY = bytes(100_000)  # a few of them are more than the kernels keep


def counted(one, **values):
    """Waits until the statistics of a socket have these values."""
    until(lambda: all(getattr(one.stats, name) == value for name, value in values.items()), lambda: (values, one.stats))


def test_a_new_socket_has_counted_nothing(make):
    assert astuple(make(omq.DEALER).stats) == (0,) * 10


def test_a_message_of_several_parts_is_one(make, endpoint):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint)
    for _ in range(10):
        push.send(bytes(100))
    push.send_multipart([b"a", b"b", b"c"])
    push.send_many([b"d", b"e"])
    counted(push, messages_sent=13, send_queue_messages=0, messages_received=0, messages_dropped=0, peers=1)
    counted(pull, messages_received=13, recv_queue_messages=13, messages_sent=0, messages_dropped=0, peers=1)
    framing = 0 if endpoint.startswith("inproc") else 2 * 15
    assert push.stats.sent_bytes == pull.stats.received_bytes == 1005 + framing
    assert len(pull.recv_many(100)) == 13
    assert pull.stats.recv_queue_messages == 0
    assert pull.stats.messages_received == 13


def test_accepted_messages_wait_until_there_is_a_peer(make, endpoint):
    push = make(omq.PUSH, connect=endpoint)
    for _ in range(5):
        push.send(b"x")
    counted(push, send_queue_messages=5, messages_sent=0, peers=0)
    make(omq.PULL, bind=endpoint)
    counted(push, send_queue_messages=0, messages_sent=5, peers=1)
    assert push.stats.reconnects == 0


def test_a_publisher_counts_each_peer(make, endpoint):
    pub = make(omq.PUB, bind=endpoint)
    for prefix in (b"", b"", b"b"):
        make(omq.SUB, connect=pub.endpoints[0], subscribe=prefix)
    pub.wait_subscribed(n=3, timeout=BOUND)
    pub.send(b"a")
    pub.send(b"b")
    counted(pub, messages_sent=5, messages_dropped=0, messages_received=0)


def test_no_counter_goes_back_when_peers_leave(make, crew, endpoint):
    push = make(omq.PUSH, bind=endpoint, send_hwm=50)
    place = push.endpoints[0]
    over = False
    seen = []

    def watch():
        while not over:
            seen.append(push.stats)

    def send():
        while not over:
            with contextlib.suppress(omq.SendTimeout):
                push.send(bytes(1000), timeout=0.01)

    pulls = [make(omq.PULL, connect=place, recv_hwm=20) for _ in range(3)]
    push.wait_connected(3, timeout=BOUND)
    for work in (watch, send):
        crew(work)
    for _ in range(10):
        until(lambda: pulls[0].poll(0))
        for pull in pulls:
            pull.recv_many(10, timeout=BOUND)
        pulls.pop(0).stop()
        pulls.append(make(omq.PULL, connect=place, recv_hwm=20))
        pulls[-1].recv(timeout=BOUND)
    over = True
    crew.join()
    assert len(seen) > 10
    for name in COUNTERS:
        values = [getattr(stats, name) for stats in seen]
        assert all(before <= after for before, after in pairwise(values)), name
    assert push.stats.messages_sent >= 3 * 10


def test_messages_for_a_peer_that_leaves_are_sent_or_kept(make, endpoint):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint, recv_hwm=5, send_hwm=10, linger=0)
    accepted = 0
    with contextlib.suppress(omq.SendTimeout):
        while True:
            push.send(BODY, timeout=0.1)
            accepted += 1
    before = push.stats
    assert before.messages_sent + before.send_queue_messages == accepted
    pull.stop()
    until(lambda: not push.stats.peers)
    after = push.stats
    assert after.messages_sent >= before.messages_sent
    # The peer has a part of one message at most, which is lost.
    assert after.messages_dropped <= 1
    assert after.messages_sent + after.send_queue_messages + after.messages_dropped == accepted


def test_messages_for_a_full_subscriber_are_dropped(make, endpoint):
    pub, sub = make.linked(omq.PUB, omq.SUB, endpoint, send_hwm=10, recv_hwm=1, subscribe=b"")
    pub.wait_subscribed(timeout=BOUND)
    published = 0
    while not pub.stats.messages_dropped:
        pub.send(BODY)
        published += 1
        assert published < 10_000
    stats = pub.stats
    assert stats.messages_sent + stats.send_queue_messages + stats.messages_dropped == published
    assert stats.messages_dropped == sum(peer.dropped for peer in pub.peers)
    sub.stop()
    until(lambda: not pub.stats.peers)
    # What had not left is lost with the connection.
    assert pub.stats.messages_sent + pub.stats.messages_dropped == published
    assert pub.stats.send_queue_messages == 0
    assert pub.stats.messages_dropped > stats.messages_dropped or endpoint.startswith("inproc")


@pytest.mark.parametrize("kind", ["PUSH", "PUB"])
def test_a_conflated_message_is_dropped(make, kind, endpoint):
    if kind == "PUSH":
        sender = make(omq.PUSH, connect=endpoint, conflate=True)
    else:
        sender = make(omq.PUB, bind=endpoint, conflate=True, send_hwm=1)
        make(omq.SUB, connect=sender.endpoints[0], subscribe=b"", recv_hwm=1)
        sender.wait_subscribed(timeout=BOUND)
    published = 0
    while sender.stats.messages_dropped < 5:
        sender.send(BODY)
        published += 1
        assert published < 10_000
    stats = sender.stats
    assert stats.messages_sent + stats.send_queue_messages + stats.messages_dropped == published
    assert stats.send_queue_messages >= 1


def test_a_conflating_receiver_drops_older_messages(make, endpoint):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint, conflate=True)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    pull.wait_connected(2, timeout=BOUND)
    for number in range(20):
        push.send(b"%d" % number)
    counted(pull, messages_received=20)
    until(lambda: pull.stats.messages_dropped == 19, lambda: pull.stats)
    assert pull.recv(timeout=BOUND) == b"19"
    assert pull.stats.recv_queue_messages == 0


def test_messages_without_a_receiver_are_dropped(make, endpoint):
    router = make(omq.ROUTER, bind=endpoint)
    router.send_multipart([b"absent", b"x"])
    counted(router, messages_dropped=1, messages_sent=0)


def test_a_reply_to_a_client_that_left_is_dropped(make, endpoint):
    rep, req = make.linked(omq.REP, omq.REQ, endpoint)
    req.send(b"a")
    rep.recv(timeout=BOUND)
    req.stop()
    until(lambda: not rep.peers)
    rep.send(b"b")
    counted(rep, messages_dropped=1, messages_sent=0, messages_received=1)


def test_a_late_reply_is_dropped(make, endpoint):
    rep = make(omq.REP, bind=endpoint)
    req = make(omq.REQ, connect=rep.endpoints[0], req_relaxed=True, req_correlate=True)
    req.send(b"a")
    rep.recv(timeout=BOUND)
    req.send(b"b")
    rep.send(b"reply to a")
    rep.recv(timeout=BOUND)
    rep.send(b"reply to b")
    assert req.recv(timeout=BOUND) == b"reply to b"
    counted(req, messages_sent=2, messages_received=2, messages_dropped=1)


def test_filtered_messages_are_not_dropped(make, endpoint):
    pub, sub = make.linked(omq.PUB, omq.SUB, endpoint, subscribe=b"")
    pub.wait_subscribed(timeout=BOUND)
    for _ in range(5):
        pub.send(b"x")
    counted(sub, messages_received=5)
    sub.unsubscribe(b"")
    assert not sub.poll(0)
    assert sub.stats.messages_dropped == 0
    pub.wait_subscribed(n=0, timeout=BOUND)
    until(lambda: not pub.topics_count)
    pub.send(b"no subscriber wants it")
    assert pub.stats.messages_dropped == 0


def test_messages_of_a_publisher_that_its_user_does_not_take_are_dropped(make, endpoint):
    xpub, xsub = make.linked(omq.XPUB, omq.XSUB, endpoint, recv_hwm=3)
    for _ in range(10):
        xsub.send(b"up")
    counted(xpub, messages_received=10, messages_dropped=7, recv_queue_messages=3)


def test_a_connection_after_the_first_one_is_a_reconnect(make, endpoint):
    push = make(omq.PUSH, connect=endpoint, reconnect_interval=0.01)
    for reconnects in range(3):
        pull = make(omq.PULL, bind=endpoint)
        push.wait_connected(timeout=BOUND)
        counted(push, reconnects=reconnects, peers=1)
        assert pull.stats.reconnects == 0
        pull.stop()
        until(lambda: not push.peers)
    assert push.stats.reconnects == 2


def test_messages_of_a_connection_and_its_successor_wait(make, endpoint):
    pull = make(omq.PULL, connect=endpoint, reconnect_interval=0.01)
    for number in (1, 2):
        push = make(omq.PUSH, bind=endpoint)
        for _ in range(5):
            push.send(b"x")
        counted(pull, messages_received=5 * number, recv_queue_messages=5 * number)
        push.stop()
        until(lambda: not pull.peers)
    assert len(pull.recv_many(100)) == 10
    counted(pull, recv_queue_messages=0, reconnects=1)


def test_failed_handshakes_are_counted(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", security=omq.PlainServer({"alice": "secret"}))
    push = make(omq.PUSH, connect=pull.endpoints[0], security=omq.PlainClient("alice", "wrong"))
    until(lambda: pull.stats.handshake_failures and push.stats.handshake_failures)
    push.stop()
    before = stable(lambda: pull.stats.handshake_failures)
    with socket.create_connection(("127.0.0.1", int(pull.endpoints[0].rpartition(":")[2]))) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        counted(pull, handshake_failures=before + 1)
    assert pull.stats.peers == 0
    with socket.create_connection(("127.0.0.1", int(pull.endpoints[0].rpartition(":")[2]))):
        until(lambda: len(pull._engine._sessions) == 1)
        pull.stop()
        assert pull.stats.handshake_failures == before + 1, "this side has ended it"


def test_datagrams_are_counted(make):
    dish = make(omq.DISH, bind="udp://127.0.0.1:*", join="a")
    radio = make(omq.RADIO, connect=dish.endpoints[0])
    radio.wait_connected(timeout=BOUND)
    for _ in range(3):
        radio.send(b"x", group="a")
        assert dish.recv(timeout=BOUND) == b"x"
    counted(radio, messages_sent=3, messages_dropped=0)
    counted(dish, messages_received=3, messages_dropped=0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"\xff", ("127.0.0.1", int(dish.endpoints[0].rpartition(":")[2])))
    counted(dish, messages_received=3, messages_dropped=1)


def test_peers_of_libzmq_are_counted_alike(make):
    context = zmq.Context()
    try:
        pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
        theirs = context.socket(zmq.PUSH)
        theirs.connect(pull.endpoints[0])
        for _ in range(100):
            theirs.send_multipart([bytes(10), bytes(300)])
        for _ in range(100):
            pull.recv_multipart(timeout=BOUND)
        counted(pull, messages_received=100, received_bytes=100 * (2 + 10 + 9 + 300), peers=1)
        theirs.close(0)
        counted(pull, messages_received=100, received_bytes=100 * (2 + 10 + 9 + 300), peers=0)

        pub = make(omq.PUB, bind="tcp://127.0.0.1:*")
        sub = context.socket(zmq.SUB)
        sub.subscribe(b"")
        sub.connect(pub.endpoints[0])
        pub.wait_subscribed(timeout=BOUND)
        pub.send(b"x")
        assert sub.recv() == b"x"
        counted(pub, messages_sent=1, messages_received=0, sent_bytes=3)
    finally:
        context.destroy(0)


def test_a_closed_socket_keeps_its_counters(make, endpoint):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint)
    push.send(b"x")
    assert pull.recv(timeout=BOUND) == b"x"
    push.close()
    pull.close()
    assert (push.stats.messages_sent, pull.stats.messages_received) == (1, 1)
    assert push.stats.peers == pull.stats.peers == 0
