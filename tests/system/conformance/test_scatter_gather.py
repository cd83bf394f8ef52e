"""SCATTER and GATHER (RFC 49): messages of one part, to the peers in turn, from all in turn."""

from __future__ import annotations

from tests.support.waits import BOUND
from tests.system.conformance.conftest import drain


def test_messages_of_all_scatters_are_taken_unchanged(twin, endpoint):
    gather = twin("GATHER", bind=endpoint)
    scatters = [twin("SCATTER", connect=gather.endpoints[0]) for _ in range(3)]
    bodies = [b"", b"\0", bytes(100_000)]
    for scatter, body in zip(scatters, bodies, strict=True):
        scatter.send(body, timeout=BOUND)
    assert sorted(drain(gather, 3)) == sorted(bodies)


def test_a_peer_of_another_type_is_refused(twin, inproc):
    gather = twin("GATHER", bind=inproc)
    monitor = gather.monitor()
    twin("PUSH", connect=inproc, linger=0)
    events = []
    while not events or not events[-1].reason:
        events.append(twin.wait(lambda: monitor.recv(timeout=BOUND)))
    assert "PUSH cannot talk to GATHER" in str(events[-1].reason)
