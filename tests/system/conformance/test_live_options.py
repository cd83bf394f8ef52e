"""Options that `set_options` changes while a socket has peers (zmq_setsockopt(3))."""

from __future__ import annotations

import contextlib
import socket

import pytest

import omq
from tests.support.waits import BOUND, until
from tests.system.conformance.test_pub_sub import nothing


def asked(xpub, xsub, message):
    """Sends a message of an XSUB, and returns what the XPUB receives of it."""
    xsub.send(message)
    return xpub.recv()


def test_xpub_passes_repeated_subscriptions_and_ends_while_it_is_verbose(twin, endpoint):
    xpub = twin("XPUB", bind=endpoint, recv_timeout=BOUND)
    first, second = (twin("XSUB", connect=xpub.endpoints[0]) for _ in range(2))
    assert asked(xpub, first, b"\1A") == b"\1A"
    second.wait_connected(timeout=BOUND)
    second.send(b"\1A")
    assert asked(xpub, second, b"marker") == b"marker"  # the repetition is not passed
    xpub.set_options(xpub_verbose=True)
    assert asked(xpub, second, b"\1A") == b"\1A"
    xpub.set_options(xpub_verboser=True)
    second.send(b"\0A")  # it has asked twice
    assert asked(xpub, second, b"\0A") == b"\0A"
    xpub.set_options(xpub_verbose=False, xpub_verboser=False)
    second.send(b"\1A")
    second.send(b"\0A")
    assert asked(xpub, second, b"marker") == b"marker"


def test_subscriptions_stay_in_force_when_xpub_manual_begins_and_ends(twin, endpoint):
    xpub = twin("XPUB", bind=endpoint, recv_timeout=BOUND)
    xsub = twin("XSUB", connect=xpub.endpoints[0], recv_timeout=BOUND)
    assert asked(xpub, xsub, b"\1A") == b"\1A"
    with pytest.raises(omq.StateError):
        xpub.subscribe(b"A")
    xpub.set_options(xpub_manual=True)
    assert asked(xpub, xsub, b"\1B") == b"\1B"
    for body in (b"B: not in force", b"A: still in force"):
        xpub.send(body)
    assert xsub.recv() == b"A: still in force"
    xpub.subscribe(b"C")
    assert asked(xpub, xsub, b"\0A") == b"\0A"
    xpub.unsubscribe(b"A")
    for body in (b"A: over", b"C: the user's"):
        xpub.send(body)
    assert xsub.recv() == b"C: the user's"
    xpub.set_options(xpub_manual=False)
    assert asked(xpub, xsub, b"\1D") == b"\1D"
    for body in (b"B: never", b"C: stays", b"D: new"):
        xpub.send(body)
    assert [xsub.recv() for _ in range(2)] == [b"C: stays", b"D: new"]
    xsub.close()
    assert {xpub.recv(), xpub.recv()} == {b"\0C", b"\0D"}
    assert nothing(xpub)


def test_the_limit_of_subscriptions_counts_after_xpub_manual_has_changed(twin, endpoint):
    xpub = twin("XPUB", bind=endpoint, recv_timeout=BOUND, max_subscriptions=2)
    xsub = twin("XSUB", connect=xpub.endpoints[0], reconnect_interval=None)
    assert asked(xpub, xsub, b"\1A") == b"\1A"
    for manual in (True, False):
        xpub.set_options(xpub_manual=manual)
        assert asked(xpub, xsub, b"\1B") == b"\1B"
        assert asked(xpub, xsub, b"\0B") == b"\0B"
    assert asked(xpub, xsub, b"\1B") == b"\1B"
    xsub.send(b"\1C")
    until(lambda: not xpub.peers)


def test_xpub_nodrop_waits_for_a_full_subscriber_until_it_is_taken_back(twin, inproc):
    pub = twin("PUB", bind=inproc, send_hwm=1)
    sub = twin("SUB", connect=inproc, recv_hwm=1, subscribe=b"")
    pub.wait_subscribed(timeout=BOUND)
    for _ in range(10):
        pub.send(b"dropped once it is full")
    pub.set_options(xpub_nodrop=True)
    with pytest.raises(omq.SendTimeout):
        pub.send(b"no room", timeout=0)
    waiting = twin.spawn(pub, "send", b"waits")
    assert not waiting.done(0.05)
    pub.set_options(xpub_nodrop=False)
    waiting.result()
    with contextlib.suppress(omq.ReceiveTimeout):
        while sub.recv(timeout=0) != b"waits":
            pass
    assert nothing(sub)


def test_later_subscribers_get_the_new_welcome_message(twin, endpoint):
    xpub = twin("XPUB", bind=endpoint, recv_timeout=BOUND)
    silent = twin("SUB", connect=xpub.endpoints[0], subscribe=b"")
    assert xpub.recv() == b"\1"
    xpub.set_options(xpub_welcome_message=b"welcome")
    welcomed = twin("SUB", connect=xpub.endpoints[0], subscribe=b"")
    assert welcomed.recv(timeout=BOUND) == b"welcome"
    assert nothing(silent)


def test_both_sides_invert_what_they_match(twin, endpoint):
    pub = twin("PUB", bind=endpoint)
    sub = twin("SUB", connect=pub.endpoints[0], subscribe=b"A", recv_timeout=BOUND)
    pub.wait_subscribed(b"A", timeout=BOUND)
    pub.set_options(invert_matching=True)
    sub.set_options(invert_matching=True)
    for body in (b"A", b"B"):
        pub.send(body)
    assert sub.recv() == b"B"
    pub.set_options(invert_matching=False)
    sub.set_options(invert_matching=False)
    for body in (b"B", b"A"):
        pub.send(body)
    assert sub.recv() == b"A"


def test_messages_that_wait_are_matched_by_the_new_rule(twin, inproc):
    pub = twin("PUB", bind=inproc)
    sub = twin("SUB", connect=inproc, subscribe=[b"A", b"B"], recv_timeout=BOUND)
    pub.wait_subscribed(n=2, timeout=BOUND)
    for body in (b"A", b"B"):
        pub.send(body)
    assert sub.poll(BOUND)
    sub.unsubscribe(b"B")
    sub.set_options(invert_matching=True)
    assert sub.recv() == b"B"
    assert nothing(sub)


def test_a_req_may_be_relaxed_and_correlate_from_the_next_request_on(twin, endpoint):
    router = twin("ROUTER", bind=endpoint, recv_timeout=BOUND)
    req = twin("REQ", connect=router.endpoints[0], recv_timeout=BOUND)
    req.send(b"1")
    first = router.recv_multipart()
    with pytest.raises(omq.StateError):
        req.send(b"2", timeout=0)
    req.set_options(req_relaxed=True, req_correlate=True)
    req.send(b"2")
    second = router.recv_multipart()
    assert len(second) == len(first) + 1
    router.send_multipart(first)
    router.send_multipart(second)
    assert req.recv() == b"2"


@pytest.mark.parametrize("kind", ["REQ", "DEALER", "ROUTER"])
def test_later_peers_are_probed(twin, endpoint, kind):
    first, second = (twin("ROUTER", bind=endpoint if place else None) for place in (1, 0))
    second.bind("tcp://127.0.0.1:*")
    prober = twin(kind, connect=first.endpoints[0])
    prober.wait_connected(timeout=BOUND)
    prober.set_options(probe_router=True)
    prober.connect(second.endpoints[0])
    assert second.recv_multipart(timeout=BOUND)[1:] == [b""]
    assert nothing(first)


def test_stream_notify_is_of_one_endpoint(twin):
    stream = twin("STREAM", recv_timeout=BOUND)
    quiet = stream.bind("tcp://127.0.0.1:*", stream_notify=False)
    loud = stream.bind("tcp://127.0.0.1:*")
    for bound, expected in ((quiet, [b"x"]), (loud, [b"", b"x", b""])):
        with socket.create_connection(("127.0.0.1", int(bound.rpartition(":")[2])), BOUND) as peer:
            peer.sendall(b"x")
            found = [stream.recv_multipart()[1] for _ in expected[:2]]
        found += [stream.recv_multipart()[1] for _ in expected[2:]]
        assert found == expected
    with pytest.raises(omq.StateError):
        stream.set_options(stream_notify=False)
