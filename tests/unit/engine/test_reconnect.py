"""Dialling again: after how long, and what ends it (behaviour.md, "Connect, bind, reconnect")."""

import asyncio

import pytest

import omq.asyncio as omq
from omq.engine import dialer_base
from omq.engine.lifecycle import DialerState
from tests.unit.conftest import on_both_loops, until
from tests.unit.engine.raw_listeners import FAST, accept, listening, port_of


@pytest.fixture
def pauses(monkeypatch):
    """The pauses of every dialer, without jitter; none of them lasts."""
    asked, real = [], dialer_base.Backoff.next

    def step(backoff, outcome):
        asked.append(real(backoff, outcome))
        return 0.001

    monkeypatch.setattr(dialer_base.Backoff, "next", step)
    monkeypatch.setattr(dialer_base.random, "uniform", lambda low, high: high)
    return asked


@pytest.mark.parametrize("monitored", [True, False])
async def test_the_interval_grows_up_to_its_ceiling(make, pauses, free_place, monitored):
    push = make(omq.PUSH, connect=free_place, reconnect_interval=(0.1, 0.5))
    monitor = push.monitor() if monitored else None
    await until(lambda: len(pauses) >= 6)
    assert pauses[:5] == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    push.stop()
    if monitor is not None:
        monitor.close()


async def test_the_interval_restarts_after_a_handshake(make, pauses, free_place):
    """A peer that served for a while and left is dialled after the first interval, not after the last one."""
    pull = make(omq.PULL, bind=free_place)
    where = pull.endpoints[0]
    push = make(omq.PUSH, connect=where, reconnect_interval=(0.01, 5.0))
    await push.wait_connected(timeout=5)
    pull.stop()
    await until(lambda: len(pauses) >= 4)
    pull = make(omq.PULL, bind=where)
    await until(lambda: push.peers)
    pauses.clear()
    pull.stop()
    await until(lambda: pauses)
    assert pauses[0] == pytest.approx(0.01)
    push.stop()


async def test_jitter_keeps_clients_apart(make, monkeypatch, free_place):
    asked = []
    monkeypatch.setattr(dialer_base.random, "uniform", lambda low, high: asked.append((low, high)) or low)
    make(omq.PUSH, connect=free_place, **FAST)
    await until(lambda: len(asked) >= 2)
    assert all(0 < low < high <= 1 for low, high in asked)


@on_both_loops
async def test_reconnect_options_event_order(make):
    """DELAYED, CONNECTED, HANDSHAKE_SUCCEEDED, DISCONNECTED, RETRIED; and then nothing for a whole interval."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    push = make(omq.PUSH, reconnect_interval=60)
    events = push.monitor()
    push.connect(pull.endpoints[0])
    await push.wait_connected(timeout=5)
    await pull.wait_connected(timeout=5)
    pull.stop()
    seen = [await asyncio.wait_for(anext(events), 5) for _ in range(5)]
    order = ["connect_delayed", "connected", "handshake_succeeded", "disconnected", "connect_retried"]
    assert [event.kind for event in seen] == order
    assert 45 <= seen[-1].delay <= 60
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(events), 0.2)


async def given_up(push, where):
    """Waits until the socket dials no more by itself."""
    (found,) = push._engine.endpoints.dialers[where]
    await until(lambda: found.state is DialerState.CLOSED)


@on_both_loops
async def test_reconnect_stop_when_refused(make, reports):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    where = pull.endpoints[0]
    push = make(omq.PUSH, connect=where, reconnect_stop="refused", **FAST)
    await push.wait_connected(timeout=5)
    reports.clear()
    pull.stop()
    await given_up(push, where)
    assert sum(event[0] == "connect_failed" for event in reports) == 1
    await assert_left_alone(make, push, where)


@on_both_loops
async def test_reconnect_stop_when_the_handshake_failed(make, reports, free_port, free_place):
    where = free_place
    with listening(address=("127.0.0.1", free_port)) as server:
        push = make(omq.PUSH, connect=where, reconnect_stop=["handshake failed"], handshake_timeout=0.05, **FAST)
        with await accept(server):
            await given_up(push, where)
        assert any("handshake_timeout" in event[2] for event in reports if event[0] == "handshake_failed")
        with pytest.raises(BlockingIOError):
            server.accept()
    await assert_left_alone(make, push, where)


@on_both_loops
@pytest.mark.parametrize("stop", ["rejected", "handshake failed"])
async def test_reconnect_stop_when_one_side_has_rejected_the_other(make, reports, stop):
    answers = []

    def authenticate(username, password):
        answers.append(username)
        return False

    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", security=omq.PlainServer(authenticate))
    where = pull.endpoints[0]
    push = make(omq.PUSH, connect=where, reconnect_stop=stop, security=omq.PlainClient("u", "wrong"), **FAST)
    await given_up(push, where)
    assert answers == [b"u"]


@on_both_loops
async def test_a_silent_peer_has_not_rejected_anyone(make, reports, free_port, free_place):
    with listening(address=("127.0.0.1", free_port)) as server:
        push = make(omq.PUSH, connect=free_place, reconnect_stop="rejected", handshake_timeout=0.05, **FAST)
        for _ in range(2):
            with await accept(server):
                await until(lambda: any(event[0] == "handshake_failed" for event in reports))
                reports.clear()
        push.stop()


@on_both_loops
async def test_reconnect_stop_after_a_disconnect(make, reports, free_place):
    """ConnectAttempts that fail before do not end it; a peer that was there and has gone does."""
    where = free_place
    push = make(omq.PUSH, connect=where, reconnect_stop="after disconnect", **FAST)
    await until(lambda: sum(event[0] == "connect_failed" for event in reports) >= 2)
    pull = make(omq.PULL, bind=where)
    await push.wait_connected(timeout=5)
    pull.stop()
    await given_up(push, where)
    await assert_left_alone(make, push, where)


async def assert_left_alone(make, push, where):
    """Checks that no peer comes by itself any more, and an explicit connect works."""
    pull = make(omq.PULL, bind=where)
    await asyncio.sleep(0.05)
    assert pull.peers == []
    push.connect(where)
    await push.send(b"asked", timeout=5)
    assert await pull.recv(timeout=5) == b"asked"


@on_both_loops
async def test_closing_with_nothing_to_deliver_dials_no_more(make, reports, free_place):
    where = free_place
    push = make(omq.PUSH, connect=where, reconnect_interval=0.02)
    await until(lambda: any(event[0] == "connect_failed" for event in reports))
    await asyncio.wait_for(push.close(linger=60), 10)
    seen = len(reports)
    await asyncio.sleep(0.06)
    assert len(reports) == seen


@on_both_loops
async def test_a_half_open_connection_is_given_up_and_dialled_again(make):
    """A listener that takes connections and sends nothing: handshake_timeout, then the next attempt."""
    with listening() as server:
        make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}", handshake_timeout=0.05, **FAST)
        for _ in range(3):
            connected = await accept(server)
            with connected:
                assert len(await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connected, 100), 5)) == 64
                assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connected, 100), 5) == b""
