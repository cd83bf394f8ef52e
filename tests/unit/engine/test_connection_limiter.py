"""Admission: silent and surplus connections do not keep good ones out (GHSA-25wp)."""

import asyncio
import errno
import socket
import time
from typing import Any

import pytest

import omq.asyncio as omq
from omq._core.link import handshake_io
from omq._core.wire.crypto import Secret
from omq.engine.lifecycle import ListenerState
from omq.types import SocketType
from omq.zmtp import z85
from omq.zmtp.curve import CookieKeys, CurveServer
from omq.zmtp.handshake import Handshake
from tests.support.raw_peer import GREETING, RawPeer, frames, ready
from tests.unit.conftest import on_both_loops, until

WIRE = ["tcp", "ipc"]
on_the_wire = pytest.mark.parametrize("endpoint", WIRE, indirect=True)


async def is_over(raw):
    """Waits until the other side has ended the connection."""
    await raw.read_all(timeout=5)
    raw.close()


@pytest.fixture
def hasty(monkeypatch):
    """A connection in its handshake has less time for itself."""
    for name in ("UNANSWERED_S", "ANSWERED_S"):
        monkeypatch.setattr(f"omq.engine.connection_limiter.{name}", 0.05)


@on_both_loops
@on_the_wire
async def test_the_oldest_silent_connection_makes_room_for_the_next(make, endpoint, reports, hasty):
    pull = make(omq.PULL, bind=endpoint, max_handshakes=2)
    silent = []
    for _ in range(3):
        silent.append(await RawPeer.dial(pull.endpoints[0]))
        await silent[-1].read_exactly(64)
    await is_over(silent[0])
    assert any("max_handshakes=2" in reason for kind, _, reason in reports if kind == "handshake_failed")
    # The two others are still welcome.
    for raw in silent[1:]:
        await raw.send(GREETING + ready(b"PUSH") + frames(b"x"))
        assert await pull.recv(timeout=5) == b"x"
        raw.close()


@on_both_loops
async def test_silent_connections_do_not_keep_a_good_client_out(make, hasty):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=3)
    silent = [await RawPeer.dial(pull.endpoints[0]) for _ in range(20)]
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"good")
    assert await pull.recv(timeout=5) == b"good"
    for raw in silent[:16]:
        await is_over(raw)
    for raw in silent[16:]:
        raw.close()


async def answered(endpoint):
    """A peer that has our READY, and so may send its own and a message at any time."""
    raw = await RawPeer.dial(endpoint)
    await raw.greet()
    flags, body = await raw.next_frame()
    assert flags & 4
    assert body.startswith(b"\5READY")
    return raw


def dial_at_once(endpoint):
    """Connects before the loop has another turn: the kernel holds the connection until it is accepted."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return RawPeer(socket.create_connection((host, int(port)), timeout=5))


def stand_still(seconds):
    """The loop, and with it the whole process, has no turn."""
    time.sleep(seconds)


async def get(pull, count):
    return sorted([await pull.recv(timeout=5) for _ in range(count)])


@on_both_loops
async def test_peers_that_were_answered_are_served_and_the_others_wait(make):
    """Our turn comes late: what the answered peers have sent is there, and so are more peers."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=3)
    raws = [await answered(pull.endpoints[0]) for _ in range(3)]
    more = [dial_at_once(pull.endpoints[0]) for _ in range(3)]
    for number, raw in enumerate(raws):
        raw.sock.send(ready(b"PUSH") + frames(b"%d" % number))
    assert await get(pull, 3) == [b"0", b"1", b"2"]
    for raw in more:
        await raw.send(GREETING + ready(b"PUSH") + frames(b"more"))
    assert await get(pull, 3) == [b"more"] * 3
    for raw in raws + more:
        raw.close()


@on_both_loops
async def test_newcomers_cost_no_answered_peer_its_place(make, reports, monkeypatch):
    monkeypatch.setattr("omq.engine.listener._RETRY_DELAY_S", 60)
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=2)
    raws = [await answered(pull.endpoints[0]) for _ in range(2)]
    (listener,) = pull._engine.endpoints.listeners.values()
    more = [dial_at_once(pull.endpoints[0]) for _ in range(3)]
    await until(lambda: listener.state is ListenerState.PAUSED or len(reports) > 4)
    assert [kind for kind, _, _ in reports if kind.endswith("failed")] == []
    assert len(listener._limiter._handshaking) == 2
    # A place that is left is taken at once, and not when the listener tries again.
    await raws[0].send(ready(b"PUSH") + frames(b"x"))
    assert await pull.recv(timeout=5) == b"x"
    await more[0].read_exactly(64)
    for raw in raws + more:
        raw.close()


@on_both_loops
async def test_what_an_overdue_peer_has_sent_is_read_before_it_goes(make, hasty):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=3)
    raws = [await answered(pull.endpoints[0]) for _ in range(3)]
    stand_still(0.1)
    for number, raw in enumerate(raws):
        raw.sock.send(ready(b"PUSH") + frames(b"%d" % number))
    more = [dial_at_once(pull.endpoints[0]) for _ in range(3)]
    assert await get(pull, 3) == [b"0", b"1", b"2"]
    for raw in raws + more:
        raw.close()


@on_both_loops
async def test_peers_that_greet_and_fall_silent_do_not_keep_a_good_client_out(make, hasty, reports):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=3)
    silent = [await answered(pull.endpoints[0]) for _ in range(3)]
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"good")
    assert await pull.recv(timeout=5) == b"good"
    await is_over(silent[0])
    assert any("max_handshakes=3" in reason for kind, _, reason in reports if kind == "handshake_failed")
    for raw in silent[1:]:
        raw.close()


@on_both_loops
async def test_peers_that_send_byte_by_byte_do_not_keep_a_good_client_out(make, hasty):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=3)
    slow = [await RawPeer.dial(pull.endpoints[0]) for _ in range(3)]

    async def trickle(raw):
        for octet in GREETING[:-1]:
            await raw.send(bytes([octet]))
            await asyncio.sleep(0.02)

    tasks = [asyncio.ensure_future(trickle(raw)) for raw in slow]
    await asyncio.sleep(0)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"good")
    assert await pull.recv(timeout=5) == b"good"
    for task, raw in zip(tasks, slow, strict=True):
        task.cancel()
        await asyncio.wait([task])
        raw.close()


@on_both_loops
async def test_a_handshake_that_is_late_because_of_us_is_finished(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", handshake_timeout=0.2)
    raw = await answered(pull.endpoints[0])
    (listener,) = pull._engine.endpoints.listeners.values()
    raw.sock.send(ready(b"PUSH") + frames(b"late"))
    stand_still(0.3)
    listener._limiter._end_timed_out()  # whichever the loop takes first
    assert await pull.recv(timeout=5) == b"late"
    raw.close()


@on_both_loops
async def test_the_time_is_up_for_a_peer_that_sends_nothing_more(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", handshake_timeout=0.1)
    await is_over(await answered(pull.endpoints[0]))


@on_both_loops
async def test_short_descriptors_cost_no_answered_peer_its_message(make, hasty, monkeypatch):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    raws = [await answered(pull.endpoints[0]) for _ in range(3)]

    def scarce(fd: int) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("omq.engine.listener.accept", scarce)
    stand_still(0.1)
    for number, raw in enumerate(raws):
        raw.sock.send(ready(b"PUSH") + frames(b"%d" % number))
    more = dial_at_once(pull.endpoints[0])
    assert await get(pull, 3) == [b"0", b"1", b"2"]
    for raw in [*raws, more]:
        raw.close()


@on_both_loops
async def test_a_surplus_peer_is_turned_away_before_it_is_answered(make, reports):
    """The peer would consider itself connected, and send a message that is never read."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_connections=2)
    dialled = [await RawPeer.dial(pull.endpoints[0]) for _ in range(3)]
    for raw in dialled[:2]:
        await raw.greet()
        await raw.next_frame()
    await dialled[2].send(GREETING + ready(b"PUSH"))
    assert b"READY" not in await dialled[2].read_all(timeout=5)
    assert any("max_connections=2" in reason for kind, _, reason in reports if kind == "handshake_failed")
    for raw in dialled[:2]:
        await raw.send(ready(b"PUSH") + frames(b"x"))
    assert await get(pull, 2) == [b"x"] * 2
    for raw in dialled:
        raw.close()


@on_both_loops
async def test_a_peer_that_was_answered_and_is_silent_does_not_keep_a_place_of_max_connections(make, hasty):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_connections=1)
    silent = await answered(pull.endpoints[0])
    push = make(omq.PUSH, connect=pull.endpoints[0], reconnect_interval=0.01)
    await push.send(b"good")
    assert await pull.recv(timeout=5) == b"good"
    await is_over(silent)


SERVER = omq.curve_keypair()
SECURITY = {
    "NULL": (None, None),
    "PLAIN": (omq.PlainServer({"user": "word"}), omq.PlainClient("user", "word")),
    "CURVE": (omq.CurveServer(SERVER[1], authorize=None), omq.CurveClient(SERVER[0])),
    "CURVE, the client bound": (omq.CurveClient(SERVER[0]), omq.CurveServer(SERVER[1], authorize=None)),
}


@pytest.mark.parametrize("mechanism", list(SECURITY))
async def test_a_crowd_above_the_limit_is_served(make, mechanism):
    bound, dialled = SECURITY[mechanism]
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=2, **({"security": bound} if bound else {}))
    options = {"security": dialled} if dialled else {}
    for number in range(40):
        await make(omq.PUSH, connect=pull.endpoints[0], **options).send(b"%02d" % number)
    assert await get(pull, 40) == [b"%02d" % number for number in range(40)]


async def test_a_curve_client_that_was_not_answered_makes_room(make, hasty):
    """The client cannot have sent a message: it loses nothing, and comes again."""
    bound, dialled = SECURITY["CURVE"]
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=1, security=bound)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.greet(GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32))
    push = make(omq.PUSH, connect=pull.endpoints[0], security=dialled)
    await push.send(b"good")
    assert await pull.recv(timeout=5) == b"good"
    await is_over(raw)


async def test_a_curve_server_that_may_have_answered_keeps_its_place(make):
    """The bound side is the client: once its INITIATE has left the server may be through, and send."""
    public, secret = (z85.decode(key) for key in SERVER)
    bound, _ = SECURITY["CURVE, the client bound"]
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=1, security=bound)
    mechanism = CurveServer(public, Secret(secret), CookieKeys())
    server = Handshake(socket_type=SocketType.PUSH, mechanism=mechanism)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.send(server.start())
    while server.question is None:
        await raw.send(server.receive(await raw.read()))
    more = dial_at_once(pull.endpoints[0])
    raw.sock.send(server.answer())
    await pull.wait_connected(timeout=5)
    assert [peer.mechanism for peer in pull.peers] == ["CURVE"]
    for one in (raw, more):
        one.close()


@on_both_loops
async def test_the_default_bounds_what_strangers_can_hold(make):
    assert omq.Options().max_handshakes == 1000
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    (listener,) = pull._engine.endpoints.listeners.values()
    raws = [await RawPeer.dial(pull.endpoints[0]) for _ in range(50)]
    await until(lambda: len(listener._limiter._handshaking) == 50)
    for raw in raws:
        raw.close()
    await until(lambda: not listener._limiter._handshaking)


@on_both_loops
async def test_short_descriptors_are_taken_from_who_is_silent(make, monkeypatch, hasty):
    """A good client is not to wait until the strangers' handshake_timeout has passed."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    silent = [await RawPeer.dial(pull.endpoints[0]) for _ in range(3)]
    for raw in silent:
        await raw.read_exactly(64)
    (listener,) = pull._engine.endpoints.listeners.values()

    def scarce(fd: int) -> Any:
        if len(listener._limiter._handshaking) > 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return handshake_io.accept(fd)

    monkeypatch.setattr("omq.engine.listener.accept", scarce)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"good")
    assert await pull.recv(timeout=5) == b"good"
    for raw in silent[:2]:
        await is_over(raw)
    silent[2].close()


@on_both_loops
@on_the_wire
async def test_no_more_than_max_connections_are_kept(make, endpoint, reports):
    pull = make(omq.PULL, bind=endpoint, max_connections=2)
    first = [make(omq.PUSH, connect=pull.endpoints[0]) for _ in range(2)]
    await pull.wait_connected(2, timeout=5)
    surplus = await RawPeer.dial(pull.endpoints[0])
    assert await surplus.read_all(timeout=5) == b""
    surplus.close()
    assert any("max_connections=2" in reason for kind, _, reason in reports if kind == "accept_failed")
    # A connection that ends makes room: a refused client connects again by itself.
    reports.clear()
    late = make(omq.PUSH, connect=pull.endpoints[0], reconnect_interval=0.01)
    await until(lambda: sum(kind == "accept_failed" for kind, _, _ in reports) >= 2)
    assert late.peers == []
    first[0].stop()
    await late.send(b"in", timeout=5)
    assert await pull.recv(timeout=5) == b"in"


async def test_silent_connections_take_no_place_of_max_connections(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_connections=1)
    silent = [await RawPeer.dial(pull.endpoints[0]) for _ in range(3)]
    for raw in silent:
        await raw.read_exactly(64)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.wait_connected(timeout=5)
    # They have lost their chance.
    await silent[0].send(GREETING + ready(b"PUSH"))
    for raw in silent[:1]:
        await is_over(raw)
    for raw in silent[1:]:
        raw.close()
    assert len(pull.peers) == 1


async def test_each_bound_endpoint_counts_for_itself(make, tmp_path):
    pull = make(omq.PULL, bind=["tcp://127.0.0.1:*", f"ipc://{tmp_path}/s"], max_connections=1)
    for where in pull.endpoints:
        make(omq.PUSH, connect=where)
    await pull.wait_connected(2, timeout=5)
    assert {peer.endpoint for peer in pull.peers} == set(pull.endpoints)


async def test_a_listener_forgets_who_has_gone(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    (listener,) = pull._engine.endpoints.listeners.values()
    for _ in range(20):
        push = make(omq.PUSH, connect=pull.endpoints[0])
        await push.wait_connected(timeout=5)
        push.stop()
    await until(lambda: not listener._limiter._admitted and not listener._limiter._handshaking)
    assert pull.peers == []


@on_both_loops
async def test_each_silent_connection_has_its_time_and_one_timer_does_for_all(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", handshake_timeout=0.4)
    (listener,) = pull._engine.endpoints.listeners.values()
    limiter = listener._limiter
    assert limiter._timer is None
    loop = asyncio.get_running_loop()
    raws, dialled = [], []
    for _ in range(3):
        dialled.append(loop.time())
        raws.append(await RawPeer.dial(pull.endpoints[0]))
        await raws[-1].read_exactly(64)
        await asyncio.sleep(0.1)
    for raw, since in zip(raws, dialled, strict=True):
        await is_over(raw)
        assert loop.time() - since >= 0.39
    await until(lambda: limiter._timer is None)
    assert not limiter._handshaking


@on_both_loops
async def test_no_timer_is_left_behind_a_good_client_or_a_closed_socket(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    (listener,) = pull._engine.endpoints.listeners.values()
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.wait_connected(timeout=5)
    await until(lambda: listener._limiter._timer is None)
    raw = await RawPeer.dial(pull.endpoints[0])
    await until(lambda: listener._limiter._timer is not None)
    pull.stop()
    assert listener._limiter._timer is None
    raw.close()


async def test_without_a_timeout_there_is_no_timer(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", handshake_timeout=None)
    (listener,) = pull._engine.endpoints.listeners.values()
    raw = await RawPeer.dial(pull.endpoints[0])
    await until(lambda: len(listener._limiter._handshaking) == 1)
    assert listener._limiter._timer is None
    raw.close()
