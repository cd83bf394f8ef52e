"""The common behaviour of the types whose messages have one part: CLIENT, SERVER, SCATTER, GATHER, PEER, CHANNEL."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import Any

import pytest

import omq
from tests.support import raw_zmtp, socket_types
from tests.support.waits import BOUND, until
from tests.system.conformance.conftest import drain

#: Who sends, and who receives.
PAIRS = [("CLIENT", "SERVER"), ("SERVER", "CLIENT"), ("SCATTER", "GATHER"), ("CHANNEL", "CHANNEL"), ("PEER", "PEER")]
RECEIVERS = [
    ("SERVER", "CLIENT"),
    ("CLIENT", "SERVER"),
    ("GATHER", "SCATTER"),
    ("CHANNEL", "CHANNEL"),
    ("PEER", "PEER"),
]
TURNS = [("CLIENT", "SERVER"), ("SCATTER", "GATHER")]
SENDERS = sorted({kind for kind, _ in PAIRS})
ids = "-".join


def routed(kind: str) -> bool:
    return kind in ("SERVER", "PEER")


joined = partial(socket_types.joined, bound=BOUND)


@pytest.mark.parametrize(("sender", "receiver"), PAIRS, ids=map(ids, PAIRS))
def test_every_call_that_receives(twin, sender, receiver, endpoint):
    one, other, route = joined(twin, sender, receiver, endpoint, recv_timeout=BOUND)
    for number in range(6):
        one.send(b"%d" % number, **route, timeout=BOUND)
    assert other.recv() == b"0"
    assert other.recv_multipart() == [b"1"]
    message = other.recv_message()
    assert (message.body, message.parts, message.group) == (b"2", [b"2"], None)
    assert (message.routing_id is None) == (not routed(receiver))
    assert message.peer.endpoint
    buffer = bytearray(8)
    assert other.recv_into(buffer) == 1
    assert buffer[:1] == b"3"
    found: list[bytes] = []
    while len(found) < 2:
        found += other.recv_many(2)
    assert found == [b"4", b"5"]
    one.send(b"long", **route, timeout=BOUND)
    with pytest.raises(omq.MessageTooLarge):
        other.recv_into(bytearray(1))
    assert other.recv() == b"long"
    with pytest.raises(omq.ReceiveTimeout):
        other.recv(timeout=0)


@pytest.mark.parametrize(("sender", "receiver"), PAIRS, ids=map(ids, PAIRS))
def test_every_call_that_sends(twin, sender, receiver, endpoint):
    one, other, route = joined(twin, sender, receiver, endpoint, send_timeout=BOUND)
    one.send(bytearray(b"0"), **route)
    one.send(memoryview(b"1"), **route)
    one.send_multipart([b"2"], **route)
    if route:
        with pytest.raises(omq.StateError, match=f"a {sender} socket sends one message at a time"):
            one.send_many([b"3", b"4"])
        for body in (b"3", b"4"):
            one.send(body, **route)
    else:
        assert one.send_many([b"3", b"4"]) == 2
    assert drain(other, 5) == [b"%d" % number for number in range(5)]
    one.flush(timeout=BOUND)


@pytest.mark.parametrize(("sender", "receiver"), PAIRS, ids=map(ids, PAIRS))
@pytest.mark.parametrize("count", [2, 3, 100])
def test_a_message_of_several_parts_is_an_error_with_type_and_number(twin, sender, receiver, inproc, count):
    one, other, route = joined(twin, sender, receiver, inproc)
    wanted = f"a {sender} socket sends messages of one part, and this one has {count}"
    with pytest.raises(omq.MultipartError, match=wanted):
        one.send_multipart([b"x"] * count, **route)
    if not route:
        with pytest.raises(omq.MultipartError, match=wanted):
            one.send_many([[b"x"] * count])
    with pytest.raises(ValueError, match="part"):
        one.send_multipart([], **route)
    one.send(b"alone", **route, timeout=BOUND)
    assert other.recv(timeout=BOUND) == b"alone"
    assert not other.poll(0)


@pytest.mark.parametrize("kind", SENDERS)
def test_too_many_parts_are_an_error_before_anything_else(twin, kind):
    """Also without a peer, with a full queue and with an unknown number."""
    one = twin(kind, send_hwm=1, linger=0)
    route = {"routing_id": 1} if routed(kind) else {}
    if not route:
        one.send(b"x", timeout=0)
    with pytest.raises(omq.MultipartError, match=f"a {kind} socket"):
        one.send_multipart([b"a", b"b"], timeout=0, **route)


class RawPeer:
    """A peer made by hand, which has finished its handshake."""

    def __init__(self, endpoint: str, kind: str) -> None:
        host, port = endpoint.removeprefix("tcp://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=BOUND)
        self.send(raw_zmtp.greeting() + raw_zmtp.ready(kind))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def is_dropped(self) -> bool:
        """Waits until the other side ends the connection."""
        try:
            while self._socket.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self._socket.close()


def _dial(stack: contextlib.ExitStack, endpoint: str, kind: str) -> RawPeer:
    peer = RawPeer(endpoint, kind)
    stack.callback(peer.close)
    return peer


SEVERAL = {
    "two parts": raw_zmtp.frame(b"a", raw_zmtp.MORE) + raw_zmtp.frame(b"b"),
    "two empty parts": raw_zmtp.frame(b"", raw_zmtp.MORE) + raw_zmtp.frame(b""),
    "parts without an end": raw_zmtp.frame(b"a", raw_zmtp.MORE) * 3,
    "a large first part": raw_zmtp.frame(bytes(100_000), raw_zmtp.MORE) + raw_zmtp.frame(b""),
}
UNFINISHED = {
    "a first part": raw_zmtp.frame(bytes(1000), raw_zmtp.MORE),
    "a large first part": raw_zmtp.frame(bytes(100_000), raw_zmtp.MORE),
    "a header of a terabyte": raw_zmtp.header(1 << 40, raw_zmtp.MORE),
}


@pytest.mark.parametrize(("receiver", "sender"), RECEIVERS, ids=map(ids, RECEIVERS))
@pytest.mark.parametrize("several", SEVERAL)
def test_a_peer_that_sends_several_parts_loses_its_connection_and_no_other(twin, receiver, sender, several):
    one = twin(receiver, bind="tcp://127.0.0.1:*", recv_timeout=BOUND)
    monitor = one.monitor()
    with contextlib.ExitStack() as stack:
        dial = partial(_dial, stack, one.endpoints[0], sender)
        good = dial() if receiver != "CHANNEL" else None  # which has one peer
        bad = dial()
        bad.send(raw_zmtp.frame(b"before") + SEVERAL[several])
        event = twin.event(monitor)
        while event.kind is not omq.EventKind.DISCONNECTED:
            event = twin.event(monitor)
        assert "max_parts=1" in str(event.reason)
        assert bad.is_dropped()
        assert one.recv() == b"before"
        good = good or dial()
        good.send(raw_zmtp.frame(b"good"))
        assert one.recv() == b"good"
        assert not one.poll(0)


@pytest.mark.parametrize(("receiver", "sender"), RECEIVERS, ids=map(ids, RECEIVERS))
@pytest.mark.parametrize("unfinished", UNFINISHED)
def test_nothing_of_an_unfinished_message_is_received(twin, receiver, sender, unfinished):
    one = twin(receiver, bind="tcp://127.0.0.1:*", recv_timeout=BOUND)
    with contextlib.ExitStack() as stack:
        dial = partial(_dial, stack, one.endpoints[0], sender)
        bad = dial()
        bad.send(raw_zmtp.frame(b"before") + UNFINISHED[unfinished])
        assert one.recv() == b"before"
        bad.close()
        until(lambda: not one.peers)
        dial().send(raw_zmtp.frame(b"good"))
        assert one.recv() == b"good"


@pytest.mark.parametrize(("receiver", "sender"), RECEIVERS, ids=map(ids, RECEIVERS))
def test_a_peer_of_another_type_is_refused(twin, receiver, sender, endpoint):
    one = twin(receiver, bind=endpoint)
    monitor = one.monitor()
    twin("PAIR", connect=one.endpoints[0], linger=0)
    event = twin.event(monitor)
    while not event.reason:
        event = twin.event(monitor)
    assert "PAIR" in str(event.reason)
    assert not one.peers


UNFIT = [
    {"conflate": True},
    {"probe_router": True},
    {"router_mandatory": True},
    {"router_notify": ("connect",)},
    {"req_relaxed": True},
    {"xpub_nodrop": True},
    {"subscribe": b""},
    {"invert_matching": True},
]


@pytest.mark.parametrize("kind", ["CLIENT", "SERVER", "SCATTER", "GATHER", "PEER", "CHANNEL"])
@pytest.mark.parametrize("option", UNFIT, ids=lambda option: next(iter(option)))
def test_options_of_other_types_are_refused(twin, kind, option):
    with pytest.raises(omq.OptionError, match=f"does not fit a {kind} socket"):
        twin(kind, **option)


@pytest.mark.parametrize("kind", ["SCATTER", "GATHER", "CHANNEL"])
@pytest.mark.parametrize("name", ["hello_message", "disconnect_message", "hiccup_message"])
def test_messages_about_peers_are_for_types_that_libzmq_has_them_for(twin, kind, name):
    with pytest.raises(omq.OptionError, match=f"option '{name}' does not fit a {kind} socket"):
        twin(kind, **{name: b"x"})


@pytest.mark.parametrize(("sender", "receiver"), PAIRS, ids=map(ids, PAIRS))
def test_a_curve_connection(twin, sender, receiver):
    public, secret = omq.curve_keypair()
    bound = twin(receiver, bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret), recv_timeout=BOUND)
    one = twin(sender, security=omq.CurveClient(public))
    route = {}
    if sender == "PEER":
        route = {"routing_id": one.connect_peer(bound.endpoints[0], timeout=BOUND)}
    else:
        one.connect(bound.endpoints[0])
    if sender == "SERVER":
        bound.send(b"x", timeout=BOUND)
        route = {"routing_id": one.recv_message(timeout=BOUND).routing_id}
    one.send(bytes(100_000), **route, timeout=BOUND)
    message = bound.recv_message()
    assert message.body == bytes(100_000)
    assert message.peer.mechanism == "CURVE"


@pytest.mark.parametrize(("sender", "receiver"), PAIRS, ids=map(ids, PAIRS))
def test_peers_and_monitors_name_the_connection(twin, sender, receiver, endpoint):
    one, other, route = joined(twin, sender, receiver, endpoint)
    monitor = other.monitor()
    one.send(b"12345", **route, timeout=BOUND)
    assert other.recv(timeout=BOUND) == b"12345"
    (peer,) = other.peers
    assert peer.messages_in == 1
    one.stop()
    event = twin.event(monitor)
    while event.kind is not omq.EventKind.DISCONNECTED:
        event = twin.event(monitor)
    until(lambda: not other.peers)


@pytest.mark.parametrize(("sender", "receiver"), PAIRS, ids=map(ids, PAIRS))
@pytest.mark.parametrize("call", ["recv", "recv_multipart", "recv_many", "recv_message", "recv_into"])
def test_a_call_that_waits_ends_with_the_socket(twin, sender, receiver, inproc, call):
    _, other, _ = joined(twin, sender, receiver, inproc)
    arguments = [bytearray(3)] if call == "recv_into" else []
    waiting = twin.spawn(other, call, *arguments)
    assert not waiting.done(0.02)
    other.stop()
    with pytest.raises(omq.ClosedError):
        waiting.result()


@pytest.mark.parametrize(("sender", "receiver"), PAIRS, ids=map(ids, PAIRS))
def test_close_delivers_what_was_accepted(twin, sender, receiver, endpoint):
    one, other, route = joined(twin, sender, receiver, endpoint, recv_hwm=0, send_hwm=0)
    for number in range(500):
        one.send(b"%d" % number, **route, timeout=BOUND)
    one.close()
    assert drain(other, 500) == [b"%d" % number for number in range(500)]


@pytest.mark.parametrize(("sender", "receiver"), [pair for pair in PAIRS if pair[1] != "CHANNEL"], ids="-".join)
def test_a_busy_peer_does_not_keep_another_one_waiting(twin, sender, receiver, endpoint):
    """Fair queuing: a turn is 256 messages at most."""
    bound = twin(receiver, bind=endpoint)
    busy, quiet = twin(sender), twin(sender)
    routes = []
    for one in (busy, quiet):
        if sender == "PEER":
            routes.append({"routing_id": one.connect_peer(bound.endpoints[0], timeout=BOUND)})
            continue
        one.connect(bound.endpoints[0])
        one.wait_connected(timeout=BOUND)
        routes.append({})
    if sender == "SERVER":
        bound.wait_connected(2, timeout=BOUND)
        for _ in routes:
            bound.send(b"here I am", timeout=BOUND)
        routes = [{"routing_id": one.recv_message(timeout=BOUND).routing_id} for one in (busy, quiet)]
    for _ in range(800):
        busy.send(b"busy", **routes[0], timeout=BOUND)
    quiet.send(b"quiet", **routes[1], timeout=BOUND)
    until(lambda: len(bound.peers) == 2 and bound.poll(0))
    found = [bound.recv(timeout=BOUND) for _ in range(801)]
    assert sorted(found) == [b"busy"] * 800 + [b"quiet"]
    assert found.index(b"quiet") <= 600


@pytest.mark.parametrize(("sender", "receiver"), TURNS, ids=map(ids, TURNS))
def test_messages_go_to_the_peers_in_turn(twin, sender, receiver, endpoint):
    one = twin(sender, bind=endpoint)
    peers = [twin(receiver, connect=one.endpoints[0]) for _ in range(2)]
    one.wait_connected(2, timeout=BOUND)
    for number in range(20):
        one.send(b"%d" % number, timeout=BOUND)
    taken = [[peer.recv(timeout=BOUND) for _ in range(10)] for peer in peers]
    evens, odds = ([b"%d" % number for number in range(first, 20, 2)] for first in (0, 1))
    assert sorted(taken) == sorted([evens, odds])


@pytest.mark.parametrize(("sender", "receiver"), TURNS, ids=map(ids, TURNS))
def test_a_full_peer_is_passed_over(twin, sender, receiver, inproc):
    one = twin(sender, bind=inproc, send_hwm=4)
    full, free = (twin(receiver, connect=inproc, recv_hwm=1) for _ in range(2))
    one.wait_connected(2, timeout=BOUND)
    taken: list[bytes] = []
    number = 0
    while number < 200:
        with contextlib.suppress(omq.SendTimeout):
            one.send(b"%d" % number, timeout=0)
            number += 1
        if free.poll(0):
            taken += free.recv_many()
    left = full.recv_many(timeout=BOUND)
    assert len(left) < 20
    while len(left) + len(taken) < 200:
        for each, found in ((full, left), (free, taken)):
            if each.poll(0.01):
                found += each.recv_many()
    assert sorted(map(int, left + taken)) == list(range(200))


@pytest.mark.parametrize(("sender", "receiver"), PAIRS, ids=map(ids, PAIRS))
def test_iteration_ends_with_the_socket(sender, receiver):
    with omq.Context() as context:
        make = partial(_made, context)
        one, other, route = joined(make, sender, receiver, "inproc://iteration")
        for number in range(3):
            one.send(b"%d" % number, **route)
        found = []
        for body in other:
            found.append(body)
            if len(found) == 3:
                other.stop()
        assert found == [b"0", b"1", b"2"]
        one.stop()


def _made(context: omq.Context, kind: str, **options: Any) -> Any:
    return getattr(omq, kind)(context, **options)
