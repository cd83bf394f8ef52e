"""`xpub_manual_last_value`, `xsub_verbose_unsubscribe` and `topics_count` (zmq_setsockopt(3), zmq_getsockopt(3))."""

from __future__ import annotations

import contextlib
import socket

import pytest

import omq
from tests.support import raw_zmtp
from tests.support.waits import BOUND, until
from tests.system.conformance.test_pub_sub import nothing


def test_the_message_after_a_subscription_is_for_its_peer_alone(twin, endpoint):
    xpub = twin("XPUB", bind=endpoint, xpub_manual_last_value=True, recv_timeout=BOUND)
    early = twin("XSUB", connect=xpub.endpoints[0])
    early.send(b"\1A")
    assert xpub.recv() == b"\1A"
    xpub.subscribe(b"A")
    xpub.send(b"A: to early")
    late = twin("XSUB", connect=xpub.endpoints[0])
    late.send(b"\1A")
    assert xpub.recv() == b"\1A"
    xpub.subscribe(b"A")
    xpub.send(b"A: to late, the last value")
    xpub.send(b"A: to both")
    assert early.recv(timeout=BOUND) == b"A: to early"
    assert late.recv(timeout=BOUND) == b"A: to late, the last value"
    assert [one.recv(timeout=BOUND) for one in (early, late)] == [b"A: to both"] * 2
    assert nothing(early)
    assert nothing(late)


def test_a_last_value_that_its_peer_does_not_want_goes_nowhere(twin, endpoint):
    xpub = twin("XPUB", bind=endpoint, xpub_manual_last_value=True, recv_timeout=BOUND)
    early, late = (twin("XSUB", connect=xpub.endpoints[0]) for _ in range(2))
    early.send(b"\1A")
    assert xpub.recv() == b"\1A"
    xpub.subscribe(b"A")
    xpub.send(b"A: 1")
    late.send(b"\1B")
    assert xpub.recv() == b"\1B"
    xpub.subscribe(b"B")
    xpub.send(b"A: not for the one that came last")
    xpub.send(b"A: 2")
    assert [early.recv(timeout=BOUND) for _ in range(2)] == [b"A: 1", b"A: 2"]
    assert nothing(late)


def test_a_last_value_waits_for_a_full_peer_and_still_goes_to_it_alone(twin, inproc):
    xpub = twin("XPUB", bind=inproc, xpub_manual_last_value=True, xpub_nodrop=True, send_hwm=1, recv_timeout=BOUND)
    early = twin("XSUB", connect=inproc, recv_hwm=1)
    early.send(b"\1A")
    assert xpub.recv() == b"\1A"
    xpub.subscribe(b"A")
    accepted = 0
    with contextlib.suppress(omq.SendTimeout):
        while xpub.send(b"A", timeout=0) is None:
            accepted += 1
    other = twin("XSUB", connect=inproc)
    other.send(b"\1A")
    assert xpub.recv() == b"\1A"
    xpub.subscribe(b"A")
    early.send(b"\1AA")
    assert xpub.recv() == b"\1AA"
    waiting = twin.spawn(xpub, "send", b"A: for early alone")
    assert not waiting.done(0.05)
    for _ in range(accepted):
        assert early.recv(timeout=BOUND) == b"A"
    waiting.result()
    assert early.recv(timeout=BOUND) == b"A: for early alone"
    assert nothing(other)


def test_a_subscription_after_the_last_value_was_sent_is_refused(twin, inproc):
    xpub = twin("XPUB", bind=inproc, xpub_manual_last_value=True, recv_timeout=BOUND)
    xsub = twin("XSUB", connect=inproc)
    xsub.send(b"\1A")
    assert xpub.recv() == b"\1A"
    xpub.send(b"A")
    with pytest.raises(omq.StateError, match="since the last message was sent"):
        xpub.subscribe(b"A")


@pytest.mark.parametrize("verbose", [False, True])
def test_an_xsub_passes_each_end_of_a_subscription_on_if_it_is_verbose(twin, endpoint, verbose):
    xpub = twin("XPUB", bind=endpoint, xpub_verboser=True, recv_timeout=BOUND)
    xsub = twin("XSUB", connect=xpub.endpoints[0], xsub_verbose_unsubscribe=verbose)
    xsub.wait_connected(timeout=BOUND)
    for message in (b"\1A", b"\1A", b"\0A", b"\1mid", b"\0A", b"\1end"):
        xsub.send(message)
    taken = [xpub.recv() for _ in range(5)]
    # The publisher does not count, so it ends with the first request that it gets.
    ended = [b"\0A", b"\1mid"] if verbose else [b"\1mid", b"\0A"]
    assert taken == [b"\1A", b"\1A", *ended, b"\1end"]
    until(lambda: xpub.topics_count == 2)


def test_a_raw_publisher_gets_each_end(twin):
    """Over the wire, where no XPUB counts for itself."""
    listener = socket.create_server(("127.0.0.1", 0))
    xsub = twin("XSUB", connect=f"tcp://127.0.0.1:{listener.getsockname()[1]}", xsub_verbose_unsubscribe=True)
    line, _ = listener.accept()
    with listener, line:
        line.settimeout(BOUND)
        line.sendall(raw_zmtp.greeting() + raw_zmtp.ready("XPUB"))
        xsub.wait_connected(timeout=BOUND)
        for message in (b"\1A", b"\1A", b"\0A", b"\0A", b"\0never"):
            xsub.send(message)
        data = b""
        while b"never" not in data:
            data += line.recv(4096)
    assert data.count(b"\x06CANCELA") == 2
    assert data.count(b"\x09SUBSCRIBEA") == 2


def test_topics_are_counted_on_both_sides(twin, endpoint):
    pub = twin("PUB", bind=endpoint)
    one, other = (twin("SUB", connect=pub.endpoints[0]) for _ in range(2))
    for prefix in (b"A", b"A", b"B"):
        one.subscribe(prefix)
    other.subscribe(b"A")
    assert (one.topics_count, other.topics_count) == (2, 1)
    pub.wait_subscribed(n=3, timeout=BOUND)
    assert pub.topics_count == 2
    one.unsubscribe(b"B")
    until(lambda: pub.topics_count == 1)
    other.close()
    one.close()
    until(lambda: pub.topics_count == 0)


def test_types_without_subscriptions_count_none(twin):
    with pytest.raises(omq.StateError, match="PUSH"):
        _ = twin("PUSH").topics_count
