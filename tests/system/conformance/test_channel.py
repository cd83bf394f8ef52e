"""CHANNEL (RFC 52) and PAIR (RFC 31): one peer at a time."""

from __future__ import annotations

import pytest

from tests.support.waits import BOUND, until
from tests.system.conformance.conftest import drain, fill

FAST = {"reconnect_interval": 0.01}
BOTH_TYPES = pytest.mark.parametrize("kind", ["CHANNEL", "PAIR"])


@BOTH_TYPES
def test_both_ways_in_any_order(twin, kind, endpoint):
    one = twin(kind, bind=endpoint)
    other = twin(kind, connect=one.endpoints[0])
    bodies = [b"", b"\0", bytes(100_000)]
    for sender, receiver in ((one, other), (other, one), (other, one)):
        for body in bodies:
            sender.send(body, timeout=BOUND)
        assert drain(receiver, 3) == bodies


@BOTH_TYPES
def test_a_second_peer_is_refused_and_taken_after_the_first_has_gone(twin, kind, endpoint):
    one = twin(kind, bind=endpoint)
    first = twin(kind, connect=one.endpoints[0])
    first.send(b"the first", timeout=BOUND)
    assert one.recv(timeout=BOUND) == b"the first"
    monitor = one.monitor()
    second = twin(kind, connect=one.endpoints[0], **FAST)
    second.send(b"kept until there is room")
    event = twin.event(monitor)
    while not event.reason:
        event = twin.event(monitor)
    assert kind in str(event.reason)
    assert len(one.peers) == 1
    first.send(b"still alone", timeout=BOUND)
    assert one.recv(timeout=BOUND) == b"still alone"
    first.close()
    assert one.recv(timeout=BOUND) == b"kept until there is room"
    one.send(b"welcome", timeout=BOUND)
    assert second.recv(timeout=BOUND) == b"welcome"


@BOTH_TYPES
def test_what_waits_goes_to_the_next_peer(twin, kind, endpoint):
    one = twin(kind, bind=endpoint)
    first = twin(kind, connect=one.endpoints[0])
    one.wait_connected(timeout=BOUND)
    first.stop()
    until(lambda: not one.peers)
    for number in range(3):
        one.send(b"%d" % number, timeout=0)
    second = twin(kind, connect=one.endpoints[0])
    assert drain(second, 3) == [b"0", b"1", b"2"]


@BOTH_TYPES
def test_a_full_peer_blocks_and_loses_nothing(twin, kind, inproc):
    one = twin(kind, bind=inproc, send_hwm=2)
    other = twin(kind, connect=inproc, recv_hwm=2)
    one.wait_connected(timeout=BOUND)
    accepted = fill(one, 1000)
    assert 2 <= accepted < 1000
    waiting = twin.spawn(one, "send", b"last", timeout=BOUND)
    assert not waiting.done(0.05)
    expected = [*(b"%d" % number for number in range(accepted)), b"last"]
    assert [other.recv(timeout=BOUND) for _ in expected] == expected
    waiting.result()
