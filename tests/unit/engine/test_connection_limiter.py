"""Who is let in: silent and surplus connections do not keep good ones out (GHSA-25wp)."""

import asyncio
import errno
from typing import Any

import pytest

import omq.asyncio as omq
from omq._core.link import handshake_io
from tests.unit.conftest import on_both_loops, until
from tests.unit.engine.wire import GREETING, RawPeer, frames, ready

WIRE = ["tcp", "ipc"]
on_the_wire = pytest.mark.parametrize("endpoint", WIRE, indirect=True)


async def is_over(raw):
    """Waits until the other side has ended the connection."""
    await raw.read_all(timeout=5)
    raw.close()


@on_both_loops
@on_the_wire
async def test_the_oldest_silent_connection_makes_room_for_the_next(make, endpoint, reports):
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
async def test_silent_connections_do_not_keep_a_good_client_out(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", max_handshakes=3)
    silent = [await RawPeer.dial(pull.endpoints[0]) for _ in range(20)]
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.send(b"good")
    assert await pull.recv(timeout=5) == b"good"
    for raw in silent[:16]:
        await is_over(raw)
    for raw in silent[16:]:
        raw.close()


@on_both_loops
async def test_the_default_bounds_what_strangers_can_hold(make):
    assert omq.Options().max_handshakes == 1000
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    (listener,) = pull._engine.endpoints.listeners.values()
    raws = [await RawPeer.dial(pull.endpoints[0]) for _ in range(50)]
    await until(lambda: len(listener._limiter._strangers) == 50)
    for raw in raws:
        raw.close()
    await until(lambda: not listener._limiter._strangers)


@on_both_loops
async def test_short_descriptors_are_taken_from_who_is_silent(make, monkeypatch):
    """A good client is not to wait until the strangers' handshake_timeout has passed."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    silent = [await RawPeer.dial(pull.endpoints[0]) for _ in range(3)]
    for raw in silent:
        await raw.read_exactly(64)
    (listener,) = pull._engine.endpoints.listeners.values()
    monkeypatch.setattr("omq.engine.listener.MOMENT", 0.2)

    def scarce(fd: int) -> Any:
        if len(listener._limiter._strangers) > 1:
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
    # One that goes makes room: who has been turned away comes again by himself.
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
    await until(lambda: not listener._limiter._admitted and not listener._limiter._strangers)
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
    assert not limiter._strangers


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
    await until(lambda: len(listener._limiter._strangers) == 1)
    assert listener._limiter._timer is None
    raw.close()
