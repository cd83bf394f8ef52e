"""Heartbeats: asked for, answered, missed; and who is not to be taken for dead. behaviour.md, "Heartbeats"."""

import asyncio
import itertools
import time
from collections.abc import Callable

import pytest

import omq.asyncio as omq
from omq.engine import heartbeat
from tests.support.raw_peer import RawPeer, command, frames
from tests.unit.conftest import on_both_loops, until

WIRE = ["tcp", "ipc"]
on_the_wire = pytest.mark.parametrize("endpoint", WIRE, indirect=True)

PAIRS = [
    (omq.PUSH, omq.PULL, b"PULL"),
    (omq.PUB, omq.SUB, b"SUB"),
    (omq.REQ, omq.REP, b"REP"),
    (omq.DEALER, omq.ROUTER, b"ROUTER"),
    (omq.DEALER, omq.DEALER, b"DEALER"),
    (omq.PAIR, omq.PAIR, b"PAIR"),
    (omq.XPUB, omq.XSUB, b"XSUB"),
]
on_seven_pairs = pytest.mark.parametrize(("one", "other", "name"), PAIRS, ids=lambda v: getattr(v, "__name__", ""))


async def next_command(raw, name):
    """The data of the next command of this name; messages and other commands are passed over."""
    while True:
        flags, body = await raw.next_frame()
        if flags & 4 and body.startswith(bytes([len(name)]) + name):
            return body[1 + len(name) :]


async def connected(make, kind, peer_type, **options):
    socket = make(kind, bind="tcp://127.0.0.1:*", **options)
    raw = await RawPeer.dial(socket.endpoints[0])
    await raw.handshake(peer_type)
    await socket.wait_connected(timeout=5)
    return socket, raw


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[omq.Socket, float], None]:
    """A function that lets seconds pass for the heartbeats of a socket, which no slow machine makes longer."""
    now = 0.0

    class Clock:
        def monotonic(self) -> float:
            return now

    def wait(socket: omq.Socket, seconds: float) -> None:
        nonlocal now
        now += seconds
        socket._engine.heartbeat._check()

    monkeypatch.setattr(heartbeat, "time", Clock())
    return wait


# Asking


@on_both_loops
async def test_the_first_ping_comes_after_a_whole_interval_and_the_next_after_another(make, wait):
    pull, raw = await connected(make, omq.PULL, b"PUSH", heartbeat_interval=100, heartbeat_timeout=1000)
    for _ in range(3):
        sent = pull.peers[0].bytes_out
        wait(pull, 99)
        assert pull.peers[0].bytes_out == sent
        wait(pull, 1)
        await next_command(raw, b"PING")
    raw.close()


async def test_without_an_interval_nothing_is_asked(make):
    _, raw = await connected(make, omq.PULL, b"PUSH")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await raw.next_frame()
    raw.close()


@pytest.mark.parametrize(("ttl", "wire"), [(None, 0), (0, 0), (0.1, 1), (0.39, 3), (6553.5, 0xFFFF)])
async def test_the_ttl_is_sent_in_tenths_rounded_down(make, ttl, wire):
    _, raw = await connected(make, omq.PULL, b"PUSH", heartbeat_interval=0.02, heartbeat_timeout=5, heartbeat_ttl=ttl)
    data = await next_command(raw, b"PING")
    assert int.from_bytes(data[:2], "big") == wire
    assert len(data) - 2 <= 16
    raw.close()


async def test_a_peer_of_zmtp_3_0_is_not_asked(make):
    """RFC 23 knows no PING; it could only fail to answer."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", heartbeat_interval=0.02)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH", minor=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):
            await raw.next_frame()
    await raw.send(frames(b"alive"))
    assert await pull.recv(timeout=5) == b"alive"
    raw.close()


# Answering


@on_both_loops
@pytest.mark.parametrize("size", [0, 1, 15, 16])
async def test_a_pong_brings_the_context_back(make, size):
    _, raw = await connected(make, omq.PULL, b"PUSH")
    await raw.send(command(b"PING", b"\0\0" + bytes(range(size))))
    assert await next_command(raw, b"PONG") == bytes(range(size))
    raw.close()


async def test_a_context_of_more_than_16_bytes_is_never_echoed(make):
    pull, raw = await connected(make, omq.PULL, b"PUSH")
    await raw.send(command(b"PING", b"\0\0" + bytes(17)))
    assert b"PONG" not in await raw.read_all(timeout=5)
    assert pull.peers == []
    raw.close()


# Missing


@on_both_loops
@on_the_wire
async def test_an_unanswered_ping_ends_the_connection(make, endpoint, reports):
    pull = make(omq.PULL, bind=endpoint, heartbeat_interval=0.1)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    begun = time.monotonic()
    await raw.read_all(timeout=5)
    # One interval until the PING, one until it counts as unanswered.
    assert time.monotonic() - begun > 0.17
    await until(lambda: any(event[0] == "disconnected" for event in reports))
    assert any("heartbeat_timeout=0.1" in event[2] for event in reports if event[0] == "disconnected")
    raw.close()


@on_both_loops
@pytest.mark.parametrize(("interval", "timeout"), [(300, 50), (50, 300)])
async def test_the_timeout_counts_from_the_ping(make, wait, interval, timeout):
    pull, raw = await connected(make, omq.PULL, b"PUSH", heartbeat_interval=interval, heartbeat_timeout=timeout)
    (session,) = pull._engine.sessions
    for seconds in (interval, timeout - 1):
        wait(pull, seconds)
        await asyncio.sleep(0.005)  # turns in which the connection could end
        await until(lambda: not session.peer.held_up)  # the kernel has all that was sent
    assert len(pull.peers) == 1
    wait(pull, 2)
    await raw.read_all()
    raw.close()


@on_both_loops
@pytest.mark.parametrize("sign", ["pong", "message", "ping", "half a frame", "unknown command"])
async def test_any_traffic_is_a_sign_of_life(make, wait, sign):
    pull, raw = await connected(make, omq.PULL, b"PUSH", heartbeat_interval=100, heartbeat_timeout=100)
    (session,) = pull._engine.sessions
    drip = itertools.cycle([bytes([2]) + (10**6).to_bytes(8, "big"), *[b"x"] * 100])
    for _ in range(12):
        received = pull.peers[0].bytes_in
        await raw.send(
            {
                "pong": command(b"PONG"),
                "message": frames(b"m"),
                "ping": command(b"PING", b"\0\0"),
                "half a frame": next(drip),
                "unknown command": command(b"NEWS"),
            }[sign]
        )
        # Of a large frame the kernel reports a few bytes only to a check, and that finds them.
        await until(lambda received=received: session.peer.has_unread or pull.peers[0].bytes_in > received)
        wait(pull, 60)
    assert len(pull.peers) == 1
    while pull.peers:
        wait(pull, 60)
        await asyncio.sleep(0.01)
    raw.close()


@on_both_loops
async def test_a_peers_ttl_ends_its_idle_connection(make, reports):
    """Also where we ask for nothing ourselves."""
    _, raw = await connected(make, omq.PULL, b"PUSH")
    await raw.send(command(b"PING", b"\0\1"))
    begun = time.monotonic()
    await raw.read_all(timeout=5)
    assert time.monotonic() - begun > 0.07
    await until(lambda: any(event[0] == "disconnected" for event in reports))
    assert any("0.1 s" in event[2] for event in reports if event[0] == "disconnected")
    raw.close()


@on_both_loops
async def test_a_peer_within_its_ttl_is_kept_and_may_take_it_back(make, wait):
    pull, raw = await connected(make, omq.PULL, b"PUSH")
    for _ in range(5):
        await raw.send(command(b"PING", b"\0\2"))
        await next_command(raw, b"PONG")
        wait(pull, 0.15)
    await raw.send(command(b"PING", b"\0\0"))
    await next_command(raw, b"PONG")
    wait(pull, 10)
    assert len(pull.peers) == 1
    raw.close()


@on_both_loops
async def test_a_peer_that_has_stopped_reading_is_found_in_time(make, wait):
    """Its kernel has room for the PINGs, and delays the acknowledgement of the last."""
    pull, raw = await connected(make, omq.PULL, b"PUSH", heartbeat_interval=10, heartbeat_timeout=100)
    for _ in range(10):
        wait(pull, 10)
        await asyncio.sleep(0.005)
        assert len(pull.peers) == 1
    wait(pull, 10)
    await until(lambda: pull.peers == [])
    raw.close()


@on_both_loops
async def test_a_process_that_stands_still_is_kept_over_ipc(make, tmp_path, wait):
    """Perhaps libzmq stands at its high-water mark, and aborts if its connection is closed."""
    pull = make(omq.PULL, bind=f"ipc://{tmp_path}/i", heartbeat_interval=10, heartbeat_timeout=100)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    await pull.wait_connected(timeout=5)
    for _ in range(30):
        wait(pull, 10)
        await asyncio.sleep(0.005)
    assert len(pull.peers) == 1
    raw.close()


@on_both_loops
@on_the_wire
async def test_a_peer_without_room_for_a_ping_is_not_dead(make, endpoint, wait):
    dealer = make(omq.DEALER, bind=endpoint, heartbeat_interval=10, heartbeat_timeout=100)
    raw = await RawPeer.dial(dealer.endpoints[0])
    await raw.handshake(b"DEALER")
    await dealer.wait_connected(timeout=5)
    await dealer.send(bytes(50_000_000))
    for _ in range(30):
        wait(dealer, 10)
        await asyncio.sleep(0.005)
    assert len(dealer.peers) == 1
    raw.close()


async def test_the_dialling_side_dials_again_after_a_silence(make):
    """A server that froze: its client finds out, and finds the next one."""
    from tests.support.raw_peer import GREETING, ready
    from tests.unit.engine.test_dialer import accept, listening, port_of

    with listening() as server:
        make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}", heartbeat_interval=0.05, reconnect_interval=0.01)
        for _ in range(3):
            connected = await accept(server)
            with connected:
                await asyncio.get_running_loop().sock_sendall(connected, GREETING + ready(b"PULL"))
                seen = b""
                while data := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connected, 4096), 5):
                    seen += data
                assert b"PING" in seen


# A live peer is not taken for dead


@on_seven_pairs
async def test_no_false_timeouts_with_either_end_or_both_asking(make, one, other, name, reports):
    beating = {"heartbeat_interval": 0.05, "heartbeat_timeout": 0.15, "heartbeat_ttl": 0.3}
    for ours, theirs in (({}, beating), (beating, {}), (beating, beating)):
        bound = make(one, bind="tcp://127.0.0.1:*", **ours)
        dialled = make(other, connect=bound.endpoints[0], **theirs)
        await bound.wait_connected(timeout=5)
        await dialled.wait_connected(timeout=5)
    await asyncio.sleep(0.5)  # longer than any of them would wait in vain
    assert not any(event[0] == "disconnected" for event in reports)


@on_both_loops
async def test_a_loop_that_is_held_up_does_not_blame_its_peers(make, reports):
    """The answers came in time, and wait in the kernel while the application computes."""
    pull, raw = await connected(make, omq.PULL, b"PUSH", heartbeat_interval=0.1, heartbeat_timeout=0.4)
    await next_command(raw, b"PING")
    await raw.send(command(b"PONG"))
    time.sleep(0.6)  # noqa: ASYNC251
    await asyncio.sleep(0.05)  # turns in which it could
    await raw.send(frames(b"here") + command(b"PONG"))
    assert await pull.recv(timeout=5) == b"here"
    assert not any(event[0] == "disconnected" for event in reports)
    raw.close()


async def test_a_peer_whose_answers_are_not_read_is_not_dead(make, reports):
    """recv_hwm has stopped our reading: its PONG stands behind messages that were not taken yet."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=2, heartbeat_interval=0.05, heartbeat_timeout=0.1)
    push = make(omq.PUSH, connect=pull.endpoints[0], send_hwm=0, send_buffer=8192)
    for _ in range(2000):
        await push.send(bytes(1000))
    await asyncio.sleep(0.6)
    assert len(pull.peers) == len(push.peers) == 1
    for _ in range(2000):
        await pull.recv(timeout=5)
    assert not any(event[0] == "disconnected" for event in reports)


@on_both_loops
@on_the_wire
async def test_a_peer_that_is_not_read_is_neither_asked_nor_given_up(make, endpoint, reports):
    """Bytes that it has sent and we have not taken show that it lives; and it may have closed after them."""
    pull = make(omq.PULL, bind=endpoint, recv_hwm=1, heartbeat_interval=0.05, heartbeat_timeout=0.05)
    raw = await RawPeer.dial(pull.endpoints[0])
    await raw.handshake(b"PUSH")
    await pull.wait_connected(timeout=5)
    await raw.send(frames(b"one") + frames(b"two"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(next_command(raw, b"PING"), 0.5)
    assert len(pull.peers) == 1
    assert await pull.recv(timeout=5) == b"one"
    assert await pull.recv(timeout=5) == b"two"
    # From here on it is silent indeed.
    await next_command(raw, b"PING")
    await raw.read_all(timeout=5)
    await until(lambda: any(event[0] == "disconnected" for event in reports))
    raw.close()


@on_both_loops
async def test_a_ping_behind_what_is_not_taken_is_answered_when_it_is(make):
    pull, raw = await connected(make, omq.PULL, b"PUSH", recv_hwm=1)
    await raw.send(frames(b"one") + frames(bytes(700_000)) + command(b"PING", b"\0\0context"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(next_command(raw, b"PONG"), 0.2)
    assert await pull.recv(timeout=5) == b"one"
    assert len(await pull.recv(timeout=5)) == 700_000
    assert await next_command(raw, b"PONG") == b"context"
    raw.close()


async def test_signs_of_life_do_not_pile_up_for_a_peer_that_reads_nothing(make):
    dealer, raw = await connected(make, omq.DEALER, b"DEALER", heartbeat_interval=0.01, heartbeat_timeout=60)
    await dealer.send(bytes(50_000_000))
    (session,) = dealer._engine.sessions
    assert session.peer.unsent_bytes > heartbeat._MAX_UNSENT_BYTES
    before = session.peer.unsent_bytes
    await asyncio.sleep(0.1)  # ten intervals
    assert session.peer.unsent_bytes == before
    raw.close()


# The cost


@pytest.mark.slow
async def test_many_connections_cost_few_timers(make, monkeypatch):
    """300 connections that came one after the other: looked after together, and yet each in time."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", heartbeat_interval=0.5, heartbeat_timeout=5, backlog=1000)
    raws = []
    for number in range(300):
        raw = await RawPeer.dial(pull.endpoints[0])
        await raw.handshake(b"PUSH")
        raws.append(raw)
        if number % 30 == 0:
            await asyncio.sleep(0.02)
    looks = 0
    real = heartbeat.Heartbeat._check

    def look(self):
        nonlocal looks
        looks += 1
        real(self)

    monkeypatch.setattr(heartbeat.Heartbeat, "_check", look)
    begun = time.monotonic()
    await asyncio.gather(*(next_command(raw, b"PING") for raw in raws))
    for _ in range(2):
        await asyncio.gather(*(next_command(raw, b"PING") for raw in raws))
    periods = (time.monotonic() - begun) / 0.5
    assert 0 < looks <= 55 * periods
    for raw in raws:
        raw.close()


async def test_a_socket_that_ends_leaves_no_timer(make):
    for _ in range(5):
        pull, raw = await connected(make, omq.PULL, b"PUSH", heartbeat_interval=0.02, recv_hwm=1)
        await raw.send(command(b"PING", b"\0\1"))
        await next_command(raw, b"PING")
        beat = pull._engine.heartbeat
        await until(lambda beat=beat: beat._livenesses and beat._heap and beat._timer)
        pull.stop()
        raw.close()
        assert beat._heap == []
        assert beat._timer is None
        assert beat._livenesses == {}
