"""High-water marks and flow: what libzmq's hwm, sockopt_hwm, hwm_pubsub, xpub_nodrop and router_mandatory_hwm test.

A socket is one queue: `send_hwm` bounds the socket where it picks the peer, and each peer where it is named or where a
message goes to all. Over inproc the two marks add up exactly; over the wire the kernel's buffers come on top.
"""

from __future__ import annotations

import contextlib
import time

import pytest

import omq
from tests.support.waits import BOUND, until
from tests.system.conformance.conftest import drain, fill

LARGE = bytes(200_000)


@pytest.fixture
def linked(twin):
    """Makes two sockets that know each other, with options for each."""

    def link(one, one_options, other, other_options, endpoint):
        bound = twin(one, bind=endpoint, **one_options)
        dialled = twin(other, connect=bound.endpoints[0], **other_options)
        bound.wait_connected(timeout=BOUND)
        dialled.wait_connected(timeout=BOUND)
        return bound, dialled

    return link


# hwm


@pytest.mark.parametrize("kinds", [("PUSH", "PULL"), ("DEALER", "DEALER"), ("PAIR", "PAIR")], ids="-".join)
@pytest.mark.parametrize(("marks", "accepted"), [((1000, 1000), 2000), ((1, 1), 2), ((7, 3), 10)], ids=str)
def test_hwm_over_inproc_is_exactly_both_marks(linked, inproc, kinds, marks, accepted):
    one, other = linked(kinds[0], {"send_hwm": marks[0]}, kinds[1], {"recv_hwm": marks[1]}, inproc)
    assert fill(one, 3000) == accepted
    assert [int(m) for m in drain(other, accepted)] == list(range(accepted))


@pytest.mark.parametrize("marks", [(0, 1), (1, 0), (0, 0)], ids=str)
def test_hwm_of_zero_on_either_side_is_no_bound(linked, inproc, marks):
    one, other = linked("PUSH", {"send_hwm": marks[0]}, "PULL", {"recv_hwm": marks[1]}, inproc)
    assert fill(one, 10_000) == 10_000
    assert len(drain(other, 10_000)) == 10_000


def test_hwm_connect_before_bind_then_close_delivers(twin, endpoint):
    """Linger: what was accepted before there was a peer leaves when there is one, and close waits for that."""
    probe = twin("PULL", bind=endpoint)
    name = probe.endpoints[0]
    probe.close()
    push = twin("PUSH", connect=name, reconnect_interval=0.01)
    assert push.send_many([b"%d" % n for n in range(500)]) == 500
    closing = twin.spawn(push, "close")
    pull = twin("PULL", bind=name)
    assert [int(pull.recv(timeout=BOUND)) for _ in range(500)] == list(range(500))
    closing.result()


@pytest.mark.parametrize("kind", ["PUSH", "DEALER", "PAIR", "REQ", "SCATTER", "CLIENT", "CHANNEL"])
def test_hwm_without_a_peer_is_exactly_send_hwm(twin, inproc, kind):
    options = {"req_relaxed": True} if kind == "REQ" else {}
    socket = twin(kind, connect=inproc, send_hwm=5, **options)
    # REQ has one request under way: a new one takes the older one's place.
    assert fill(socket, 9) == (9 if kind == "REQ" else 5)
    assert bool(socket.poll(0, omq.POLL_OUT)) == (kind == "REQ")
    unbounded = twin(kind, connect=inproc, send_hwm=0, **options)
    assert fill(unbounded, 2000) == 2000


# sockopt_hwm


def test_sockopt_hwm_changed_before_connecting(twin, inproc):
    push, pull = twin("PUSH", send_hwm=9), twin("PULL", recv_hwm=9)
    push.set_options(send_hwm=2)
    pull.set_options(recv_hwm=2)
    pull.connect(inproc)
    push.bind(inproc)
    push.wait_connected(timeout=BOUND)
    assert push.options.send_hwm == 2
    assert fill(push, 100) == 4


def test_sockopt_hwm_changed_after_connecting(linked, inproc):
    push, pull = linked("PUSH", {"send_hwm": 1}, "PULL", {"recv_hwm": 1}, inproc)
    push.set_options(send_hwm=5)
    assert push.options.send_hwm == 5
    assert fill(push, 100) == 6
    assert len(drain(pull, 6)) == 6


def test_sockopt_hwm_lowered_below_the_fill_loses_nothing(linked, inproc):
    push, pull = linked("PUSH", {"send_hwm": 100}, "PULL", {"recv_hwm": 1}, inproc)
    assert fill(push, 1000) == 101
    push.set_options(send_hwm=70)
    assert fill(push, 1000) == 0
    assert [int(m) for m in drain(pull, 101)] == list(range(101))
    assert fill(push, 1000) == 71


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_sockopt_hwm_lowered_over_the_wire_loses_nothing(linked, tmp_path, transport):
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s"
    # Buffers that the kernel does not let grow: what it holds is the same both times.
    buffers = {"send_buffer": 262_144, "recv_buffer": 262_144}
    push, pull = linked("PUSH", {"send_hwm": 100, **buffers}, "PULL", {"recv_hwm": 5, **buffers}, endpoint)
    sent = fill(push, 1000, LARGE, timeout=0.3)
    assert 105 <= sent < 200
    push.set_options(send_hwm=10)
    assert fill(push, 10, LARGE) == 0
    assert [int(parts[1]) for parts in drain(pull, sent)] == list(range(sent))
    again = fill(push, 1000, LARGE, timeout=0.3)
    assert 10 <= again <= sent - 60, "the new mark holds"
    assert len(drain(pull, again)) == again


def test_sockopt_hwm_raised_wakes_a_sender_that_waits(linked, inproc, twin):
    push, _ = linked("PUSH", {"send_hwm": 1}, "PULL", {"recv_hwm": 1}, inproc)
    assert fill(push, 10) == 2
    waiting = twin.spawn(push, "send", b"x")
    assert not waiting.done(0.05)
    push.set_options(send_hwm=2)
    waiting.result()


@pytest.mark.parametrize("mark", [0, 100])
def test_sockopt_hwm_a_raised_recv_hwm_reads_on_at_once(linked, endpoint, mark):
    """Not only after what waits has been taken."""
    push, pull = linked("PUSH", {"send_hwm": 10}, "PULL", {"recv_hwm": 2}, endpoint)
    sent = fill(push, 2000, LARGE, timeout=0.3)
    assert sent < 2000
    before = pull.peers[0].messages_in
    pull.set_options(recv_hwm=mark)
    until(lambda: pull.peers[0].messages_in >= before + 5)
    assert [int(parts[1]) for parts in drain(pull, sent)] == list(range(sent))


def test_sockopt_hwm_a_lowered_recv_hwm_loses_nothing(linked, endpoint):
    push, pull = linked("PUSH", {}, "PULL", {}, endpoint)
    assert fill(push, 500) == 500
    until(lambda: pull.peers[0].messages_in == 500)
    pull.set_options(recv_hwm=1)
    assert [int(m) for m in drain(pull, 500)] == list(range(500))
    assert fill(push, 10) == 10
    assert [int(m) for m in drain(pull, 10)] == list(range(10))


def test_sockopt_hwm_of_a_conflating_socket_still_conflates(linked, endpoint):
    """A change of any option must not give it a queue."""
    push, pull = linked("PUSH", {"conflate": True}, "PULL", {"conflate": True, "recv_hwm": 1}, endpoint)
    pull.set_options(recv_timeout=BOUND)
    for number in range(200):
        push.send(b"%d" % number)
    until(lambda: pull.peers[0].messages_in == push.peers[0].messages_out)
    assert pull.recv() == b"199"
    assert not pull.poll(0.02)


# hwm_pubsub


@pytest.mark.parametrize("kind", ["PUB", "XPUB"])
@pytest.mark.parametrize("mark", [100, 1000])
def test_hwm_pubsub_fills_up_drops_and_counts(twin, inproc, kind, mark):
    pub = twin(kind, bind=inproc, send_hwm=mark)
    sub = twin("SUB", connect=inproc, subscribe=b"", recv_hwm=mark)
    pub.wait_subscribed(timeout=BOUND)
    pub.send_many([b"%d" % number for number in range(5 * mark)], timeout=0)
    got = [int(m) for m in drain(sub)]
    assert got == list(range(len(got)))
    assert mark <= len(got) <= 2 * mark
    assert pub.peers[0].dropped == 5 * mark - len(got)
    # Room is free again after reading.
    pub.send_many([b"%d" % number for number in range(mark)], timeout=0)
    assert [int(m) for m in drain(sub, mark)] == list(range(mark))


def test_hwm_pubsub_below_the_mark_nothing_is_dropped(twin, endpoint):
    """libzmq's reset_hwm: 9,999 in one go, read, 1,100 more, with marks of 11,024."""
    pub = twin("PUB", bind=endpoint, send_hwm=11_024)
    sub = twin("SUB", connect=pub.endpoints[0], subscribe=b"", recv_hwm=11_024)
    pub.wait_subscribed(timeout=BOUND)
    for burst in (9_999, 1_100):
        pub.send_many([b""] * burst)
        got = 0
        while got < burst:
            got += len(sub.recv_many(timeout=BOUND))
    assert pub.peers[0].dropped == 0


def test_hwm_pubsub_a_full_subscriber_over_the_wire_costs_only_itself(twin):
    pub = twin("PUB", bind="tcp://127.0.0.1:*", send_hwm=20)
    full = twin("SUB", connect=pub.endpoints[0], subscribe=b"", recv_hwm=5)
    pub.wait_subscribed(timeout=BOUND)
    good = twin("SUB", connect=pub.endpoints[0], subscribe=b"", recv_hwm=5)
    pub.wait_subscribed(n=2, timeout=BOUND)
    longest = 0.0
    for number in range(400):
        start = time.monotonic()
        pub.send_multipart([LARGE, b"%d" % number])
        longest = max(longest, time.monotonic() - start)
        assert good.recv_multipart(timeout=BOUND)[1] == b"%d" % number
    assert longest < 5, "a full subscriber blocks the publisher"
    dropped = sorted(peer.dropped for peer in pub.peers)
    assert dropped[0] == 0
    assert dropped[1] == 400 - len(drain(full)) > 100


# xpub_nodrop, proxy_hwm


def test_xpub_nodrop_six_thousand_at_a_mark_of_two_thousand_all_arrive(twin, endpoint):
    pub = twin("XPUB", bind=endpoint, send_hwm=2000, xpub_nodrop=True)
    sub = twin("SUB", connect=pub.endpoints[0], subscribe=b"", recv_hwm=1000)
    pub.wait_subscribed(timeout=BOUND)
    sent, refused, got = 0, 0, []
    body = b"x" * 5_000
    while sent < 6000:
        try:
            sent += pub.send_many([b"%d " % number + body for number in range(sent, 6000)], timeout=0)
        except omq.SendTimeout:
            refused += 1
            got += [int(message.split()[0]) for message in sub.recv_many(timeout=BOUND)]
    while len(got) < 6000:
        got += [int(message.split()[0]) for message in sub.recv_many(timeout=BOUND)]
    assert got == list(range(6000))
    assert refused > 0
    assert pub.peers[0].dropped == 0


def test_xpub_nodrop_reports_when_there_is_room(twin, inproc):
    pub = twin("XPUB", bind=inproc, send_hwm=2, xpub_nodrop=True)
    sub = twin("SUB", connect=inproc, subscribe=b"a", recv_hwm=2)
    pub.wait_subscribed(timeout=BOUND)
    accepted = fill(pub, 100, b"a")
    assert accepted < 10
    assert not pub.poll(0, omq.POLL_OUT)
    waiting = twin.spawn(pub, "send", b"a last")
    assert not waiting.done(0.05)
    assert len([sub.recv_multipart(timeout=BOUND) for _ in range(accepted)]) == accepted
    waiting.result()
    assert sub.recv(timeout=BOUND) == b"a last"
    assert pub.poll(BOUND, omq.POLL_OUT)


def test_proxy_hwm_a_chain_without_drops_stalls_its_publisher(twin, inproc):
    """PUB, a relay by hand, SUB: when the end does not read, the beginning waits, and nothing is lost."""
    mark = 10
    options = {"send_hwm": mark, "xpub_nodrop": True}
    pub = twin("PUB", bind=f"{inproc}-in", **options)
    xsub = twin("XSUB", connect=f"{inproc}-in", recv_hwm=mark)
    xpub = twin("XPUB", bind=f"{inproc}-out", **options)
    sub = twin("SUB", connect=f"{inproc}-out", subscribe=b"", recv_hwm=mark)
    xsub.send(xpub.recv(timeout=BOUND))
    pub.wait_subscribed(timeout=BOUND)
    accepted = 0
    with contextlib.suppress(omq.SendTimeout):
        while accepted < 1000:
            pub.send(b"%d" % accepted, timeout=0.05)
            accepted += 1
            while xpub.poll(0, omq.POLL_OUT) and xsub.poll(0):
                xpub.send(xsub.recv(timeout=0))
    assert 2 * mark <= accepted <= 4 * mark
    got = []
    while len(got) < accepted:
        got += [int(m) for m in drain(sub, quiet=0.02)]
        while xpub.poll(0, omq.POLL_OUT) and xsub.poll(0):
            xpub.send(xsub.recv(timeout=0))
    assert got == list(range(accepted))


# router_mandatory_hwm


def test_router_mandatory_hwm_waits_and_does_not_drop(linked):
    router, dealer = linked(
        "ROUTER", {"router_mandatory": True, "send_hwm": 1}, "DEALER", {"identity": b"X", "recv_hwm": 1},
        "tcp://127.0.0.1:*",
    )  # fmt: skip
    dealer.send(b"Hello")
    assert router.recv_multipart(timeout=BOUND) == [b"X", b"Hello"]
    sent = fill(router, 1000, b"X", LARGE, timeout=0.3)
    assert sent < 200
    assert fill(router, 10, b"X", LARGE) == 0
    assert router.peers[0].dropped == 0
    assert [int(parts[1]) for parts in drain(dealer, sent)] == list(range(sent))


def test_router_mandatory_a_full_peer_keeps_no_send_to_another_waiting(twin, endpoint):
    router = twin("ROUTER", bind=endpoint, router_mandatory=True, send_hwm=2)
    full = twin("DEALER", connect=router.endpoints[0], identity=b"full", recv_hwm=2)
    free = twin("DEALER", connect=router.endpoints[0], identity=b"free", recv_hwm=2)
    router.wait_connected(2, timeout=BOUND)
    sent = fill(router, 1000, b"full", LARGE, timeout=0.5)
    assert sent < 1000
    first = twin.spawn(router, "send_multipart", [b"full", b"", b"first"])
    assert not first.done(0.05)
    # At once, and also when it has to wait for a moment itself.
    for number in range(20):
        router.send_multipart([b"free", b"%d" % number], timeout=0)
        assert free.recv(timeout=BOUND) == b"%d" % number
    filled = fill(router, 1000, b"free", LARGE, timeout=0.5)
    second = twin.spawn(router, "send_multipart", [bytearray(b"free"), b"", b"second"])
    assert not second.done(0.05)
    assert [int(free.recv_multipart(timeout=BOUND)[1]) for _ in range(filled)] == list(range(filled))
    second.result()
    assert free.recv_multipart(timeout=BOUND) == [b"", b"second"]
    assert not first.done()
    assert [int(full.recv_multipart(timeout=BOUND)[1]) for _ in range(sent)] == list(range(sent))
    first.result()
    assert full.recv_multipart(timeout=BOUND) == [b"", b"first"]


def test_rep_with_a_mark_of_one_answers_a_client_that_asks_ahead(linked, endpoint):
    rep, dealer = linked("REP", {"send_hwm": 1}, "DEALER", {}, endpoint)
    for number in range(50):
        dealer.send_multipart([b"", b"%d" % number])
    for _ in range(50):
        rep.send(rep.recv(timeout=BOUND))
    assert [dealer.recv_multipart(timeout=BOUND)[1] for _ in range(50)] == [b"%d" % number for number in range(50)]


# conflate


@pytest.mark.parametrize("kinds", [("PUSH", "PULL"), ("DEALER", "DEALER"), ("PUB", "SUB")], ids="-".join)
def test_conflate_twenty_sent_one_read(twin, endpoint, kinds):
    options = {"subscribe": b""} if kinds[1] == "SUB" else {}
    receiver = twin(kinds[1], bind=endpoint, conflate=True, **options)
    sender = twin(kinds[0], connect=receiver.endpoints[0], conflate=True)
    sender.wait_connected(timeout=BOUND)
    if kinds[0] == "PUB":
        sender.wait_subscribed(timeout=BOUND)
    for number in range(20):
        sender.send(b"%d" % number)
    until(lambda: receiver.peers[0].messages_in == 20)
    assert receiver.recv(timeout=BOUND) == b"19"
    assert not receiver.poll(0.02)
