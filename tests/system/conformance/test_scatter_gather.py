"""SCATTER and GATHER (RFC 49): messages of one part, to the peers in turn, from all in turn."""

from __future__ import annotations

import socket

import pytest

import omq
from tests.interop import rawpeer
from tests.system.conformance.conftest import drain
from tests.waits import BOUND


def test_messages_go_to_the_gathers_in_turn(twin, endpoint):
    scatter = twin("SCATTER", bind=endpoint)
    gathers = [twin("GATHER", connect=scatter.endpoints[0]) for _ in range(2)]
    scatter.wait_connected(2, timeout=BOUND)
    for number in range(20):
        scatter.send(b"%d" % number, timeout=BOUND)
    taken = [[one.recv(timeout=BOUND) for _ in range(10)] for one in gathers]
    evens, odds = ([b"%d" % number for number in range(first, 20, 2)] for first in (0, 1))
    assert sorted(taken) == sorted([evens, odds])


def test_messages_of_all_scatters_are_taken_unchanged(twin, endpoint):
    gather = twin("GATHER", bind=endpoint)
    scatters = [twin("SCATTER", connect=gather.endpoints[0]) for _ in range(3)]
    bodies = [b"", b"\0", bytes(100_000)]
    for scatter, body in zip(scatters, bodies, strict=True):
        scatter.send(body, timeout=BOUND)
    assert sorted(drain(gather, 3)) == sorted(bodies)


def test_a_scatter_without_peers_accepts_no_more_than_its_mark(twin):
    scatter = twin("SCATTER", send_hwm=3, linger=0)
    for _ in range(3):
        scatter.send(b"x", timeout=0)
    with pytest.raises(omq.SendTimeout):
        scatter.send(b"x", timeout=0)


def test_a_message_of_several_parts_is_refused(twin, endpoint):
    gather = twin("GATHER", bind=endpoint)
    scatter = twin("SCATTER", connect=gather.endpoints[0])
    with pytest.raises(omq.MultipartError, match="a SCATTER socket sends messages of one part, and this one has 2"):
        scatter.send_multipart([b"a", b"b"])
    with pytest.raises(omq.MultipartError):
        scatter.send_many([[b"a", b"b"]])
    scatter.send(b"alone", timeout=BOUND)
    assert gather.recv(timeout=BOUND) == b"alone"


def test_each_type_goes_one_way(twin):
    with pytest.raises(omq.StateError, match="does not send"):
        twin("GATHER").send(b"x")
    with pytest.raises(omq.StateError, match="does not receive"):
        twin("SCATTER").recv(timeout=0)


def test_a_peer_that_sends_several_parts_loses_its_connection_and_no_other(twin):
    gather = twin("GATHER", bind="tcp://127.0.0.1:*")
    scatter = twin("SCATTER", connect=gather.endpoints[0])
    host, port = gather.endpoints[0].removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=BOUND) as peer:
        peer.sendall(rawpeer.greeting() + rawpeer.ready("SCATTER") + rawpeer.frame(b"before"))
        peer.sendall(rawpeer.frame(b"a", rawpeer.MORE) + rawpeer.frame(b"b"))
        while peer.recv(4096):
            pass
    scatter.send(b"good", timeout=BOUND)
    assert sorted(drain(gather, 2)) == [b"before", b"good"]


def test_a_peer_of_another_type_is_refused(twin, inproc):
    gather = twin("GATHER", bind=inproc)
    monitor = gather.monitor()
    twin("PUSH", connect=inproc, linger=0)
    events = []
    while not events or not events[-1].reason:
        events.append(twin.wait(lambda: monitor.recv(timeout=BOUND)))
    assert "PUSH cannot talk to GATHER" in str(events[-1].reason)
