"""Monitors: what they report, in which order, how little they keep and what they cost."""

import asyncio
import gc

import pytest

import omq.asyncio as omq
from omq.engine import report
from omq.engine.report import Reporter
from tests.support.raw_peer import GREETING, RawPeer, command, ready
from tests.unit.conftest import on_both_loops

Kind = omq.EventKind
on_the_wire = pytest.mark.parametrize("endpoint", ["tcp", "ipc"], indirect=True)


async def expect(monitor, *kinds):
    """The next events, which are to be of these kinds."""
    events = [await monitor.recv(timeout=5) for _ in kinds]
    assert [event.kind for event in events] == list(kinds)
    return events


async def find(monitor, kind):
    """The next event of this kind."""
    async with asyncio.timeout(5):
        async for event in monitor:
            if event.kind is kind:
                return event
    raise AssertionError(f"no {kind}")


def now(monitor):
    """All events that wait."""
    found = []
    while (event := monitor.take()) is not None:
        found.append(event)
    return found


# What is reported


BAD = {
    "mechanism": (GREETING[:12] + b"PLAIN".ljust(20, b"\0") + bytes(32), b"", omq.MechanismError),
    "protocol": (b"GET / HTTP/1.0\r\n\r\n", b"", omq.RemoteProtocolError),
    "protocol: a type that does not fit": (GREETING, ready(b"SUB"), omq.RemoteProtocolError),
    "refused": (GREETING, command(b"ERROR", b"\4nope"), omq.HandshakeError),
    "hung_up": (GREETING, b"", (EOFError, ConnectionResetError)),
    "timeout": (GREETING, b"", omq.HandshakeTimeout),
}


@on_both_loops
@on_the_wire
@pytest.mark.parametrize("case", BAD)
async def test_a_handshake_that_fails_reports_whose_fault_it_was(make, endpoint, case):
    greeting, rest, error = BAD[case]
    pull = make(omq.PULL, handshake_timeout=0.05 if case == "timeout" else 5)
    monitor = pull.monitor()
    raw = await RawPeer.dial(pull.bind(endpoint))
    await raw.send(greeting)
    if greeting is GREETING:
        await raw.read_exactly(64)
        await raw.send(rest)
    if case == "hung_up":
        raw.close()
    _, _, failed, gone = await expect(monitor, Kind.LISTENING, Kind.ACCEPTED, Kind.HANDSHAKE_FAILED, Kind.DISCONNECTED)
    assert failed.category == case.partition(":")[0]
    assert isinstance(failed.error, error)
    assert failed.reason == str(failed.error) == gone.reason
    assert failed.peer is None
    assert gone.peer is None
    raw.close()


async def test_the_peer_of_a_lost_connection_did_not_get_what_was_dropped(make):
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*")
    raw = await RawPeer.dial(push.endpoints[0])
    await raw.handshake(b"PULL")
    await push.wait_connected(timeout=5)
    monitor = push.monitor()
    await push.send(bytes(50_000_000))
    raw.close()
    (gone,) = await expect(monitor, Kind.DISCONNECTED)
    assert 0 < gone.peer.bytes_out < 50_000_000


@on_both_loops
async def test_subscriptions_are_reported_once_each(make, endpoint):
    pub, sub = await make.linked(omq.PUB, omq.SUB, endpoint)
    monitor = pub.monitor()
    sub.subscribe(b"a")
    sub.subscribe(b"a")
    sub.subscribe(b"b")
    sub.unsubscribe(b"a")
    sub.unsubscribe(b"a")
    events = await expect(monitor, Kind.SUBSCRIBED, Kind.SUBSCRIBED, Kind.UNSUBSCRIBED)
    assert [event.prefix for event in events] == [b"a", b"b", b"a"]
    assert all(event.peer.endpoint == pub.endpoints[0] for event in events)
    sub.stop()
    await expect(monitor, Kind.DISCONNECTED)
    assert now(monitor) == []


async def test_subscriptions_of_older_peers_are_reported_too(make):
    """ZMTP 3.0 has messages for them."""
    pub = make(omq.PUB, bind="tcp://127.0.0.1:*")
    monitor = pub.monitor()
    raw = await RawPeer.dial(pub.endpoints[0])
    await raw.handshake(b"SUB", minor=0)
    await raw.send(b"\0\2\1A")
    _, _, subscribed = await expect(monitor, Kind.ACCEPTED, Kind.HANDSHAKE_SUCCEEDED, Kind.SUBSCRIBED)
    assert subscribed.prefix == b"A"
    raw.close()


async def test_what_a_full_subscriber_misses_is_reported_in_sums(make, monkeypatch):
    monkeypatch.setattr(report, "_POLL_INTERVAL_S", 0.02)
    pub, sub = await make.linked(
        omq.PUB, omq.SUB, "tcp://127.0.0.1:*", subscribe=b"", send_hwm=5, recv_hwm=5, reconnect_interval=None
    )
    await pub.wait_subscribed(timeout=5)
    monitor = pub.monitor(limit=1000)
    body = bytes(100_000)
    counts = []
    for _ in range(3):
        for _ in range(1000):
            await pub.send(body)
        counts.append((await find(monitor, Kind.DROPPED)).count)
    for _ in range(500):
        await pub.send(body)
    sub.stop()
    dropped, gone = await expect(monitor, Kind.DROPPED, Kind.DISCONNECTED)
    # 3,500 messages, most of them dropped, in four events; none is counted twice, and none is left out.
    assert all(count > 100 for count in counts)
    assert sum(counts) + dropped.count == gone.peer.dropped
    assert 2500 < gone.peer.dropped <= 3500


async def test_what_was_dropped_before_a_monitor_existed_is_not_reported(make, monkeypatch):
    monkeypatch.setattr(report, "_POLL_INTERVAL_S", 0.01)
    pub, sub = await make.linked(omq.PUB, omq.SUB, "tcp://127.0.0.1:*", subscribe=b"", send_hwm=1, recv_hwm=1)
    await pub.wait_subscribed(timeout=5)
    while not pub.peers[0].dropped:
        await pub.send(bytes(100_000))
    monitor = pub.monitor()
    await asyncio.sleep(0.05)
    assert now(monitor) == []
    sub.stop()


# The queue


@on_both_loops
async def test_a_reader_that_lags_learns_how_many_it_has_missed(make):
    pull = make(omq.PULL)
    small, large = pull.monitor(limit=5), pull.monitor(limit=100_000)
    (first,) = [pull.bind("tcp://127.0.0.1:*")]
    for _ in range(300):
        pull.unbind(pull.bind("tcp://127.0.0.1:*"))
    got = now(small)
    assert [event.kind for event in got] == [Kind.MISSED, *[Kind.CLOSED, Kind.LISTENING] * 2, Kind.CLOSED]
    whole = now(large)
    assert got[1:] == whole[-5:]
    assert got[0].count == len(whole) - 5 == 596
    assert got[0].time <= got[1].time
    # Afterwards it gets everything again, up to the end.
    pull.unbind(first)
    pull.stop()
    assert [event.kind async for event in small] == [Kind.CLOSED, Kind.MONITOR_STOPPED]


# Reading


@on_both_loops
@pytest.mark.parametrize("end", ["close", "stop"])
async def test_reading_ends_with_the_socket(make, end):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    monitor = pull.monitor()

    async def read():
        return [event.kind async for event in monitor]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    assert not reading.done()
    if end == "close":
        await pull.close()
    else:
        pull.stop()
    assert (await asyncio.wait_for(reading, 5))[-1] is Kind.MONITOR_STOPPED
    assert monitor.closed
    with pytest.raises(omq.ClosedError):
        pull.monitor()


@on_both_loops
async def test_timeouts_and_cancelled_calls_lose_nothing(make):
    pull = make(omq.PULL)
    monitor = pull.monitor()
    for timeout in (0, 0.01):
        with pytest.raises(omq.ReceiveTimeout):
            await monitor.recv(timeout=timeout)
    waiting = asyncio.create_task(monitor.recv())
    await asyncio.sleep(0)
    pull.bind("tcp://127.0.0.1:*")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await expect(monitor, Kind.LISTENING)


@on_both_loops
async def test_closing_a_monitor_ends_its_readers_and_no_other(make):
    pull = make(omq.PULL)
    async with pull.monitor() as monitor, pull.monitor() as other:
        waiting = asyncio.create_task(monitor.recv())
        await asyncio.sleep(0)
        monitor.close()
        monitor.close()
        with pytest.raises(omq.ClosedError):
            await asyncio.wait_for(waiting, 5)
        assert [event async for event in monitor] == []
        pull.bind("tcp://127.0.0.1:*")
        await expect(other, Kind.LISTENING)
    assert not pull._engine.reporter._monitors


async def test_a_monitor_without_references_is_gone(make):
    pull = make(omq.PULL)
    pull.monitor()
    gc.collect()
    assert not pull._engine.reporter._monitors
    kept = pull.monitor()
    assert len(pull._engine.reporter._monitors) == 1
    del kept
    assert not pull._engine.reporter._monitors


async def test_messages_cost_a_monitor_nothing(make, endpoint, monkeypatch):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    monitors = [pull.monitor(), push.monitor()]
    reports = []
    monkeypatch.setattr(Reporter, "emit", lambda *event: reports.append(event))
    for _ in range(500):
        await push.send(b"x")
        await pull.recv(timeout=5)
    assert reports == []
    assert [now(monitor) for monitor in monitors] == [[], []]


def test_a_monitor_of_a_socket_without_a_loop_misses_nothing():
    pull = omq.PULL()
    monitor = pull.monitor()
    where = pull.bind("tcp://127.0.0.1:*")

    async def read():
        push = omq.PUSH(connect=where)
        # The first await of the monitor is the socket's first use in a loop, and begins to accept.
        await expect(monitor, Kind.LISTENING, Kind.ACCEPTED, Kind.HANDSHAKE_SUCCEEDED)
        await push.close()
        await pull.close()
        return [event.kind async for event in monitor][-1]

    assert asyncio.run(read()) is Kind.MONITOR_STOPPED


async def test_the_monitor_of_a_dropped_socket_ends(make, endpoint):
    pull = omq.PULL(bind=endpoint)
    monitor = pull.monitor()
    with pytest.warns(ResourceWarning):
        del pull
    assert (await find(monitor, Kind.MONITOR_STOPPED)).kind == "monitor_stopped"


@on_both_loops
async def test_asking_in_vain_leaves_nothing_behind(make):
    monitor = make(omq.PULL).monitor()
    for _ in range(3):
        with pytest.raises(omq.ReceiveTimeout):
            await monitor.recv(timeout=0.001)
    assert not monitor._waiters
