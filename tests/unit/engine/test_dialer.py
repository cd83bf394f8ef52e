"""Dialling: what refuses, what resets, which address, and again until it works."""

import asyncio
import contextlib
import errno
import socket
import struct

import pytest

import omq.asyncio as omq
from omq.engine import dialer
from tests.unit.conftest import on_both_loops, until
from tests.unit.engine.wire import GREETING

FAST = {"reconnect_interval": 0.01}


def listening(family=socket.AF_INET, address=("127.0.0.1", 0), backlog=16):
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    sock.listen(backlog)
    sock.setblocking(False)
    return sock


def port_of(sock):
    return sock.getsockname()[1]


async def accept(sock):
    async with asyncio.timeout(5):
        connected, _ = await asyncio.get_running_loop().sock_accept(sock)
    return connected


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@on_both_loops
async def test_what_is_refused_is_dialled_again(make, reports):
    with listening() as probe:
        port = port_of(probe)
    push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{port}", **FAST)
    await push.send(b"x")
    await until(lambda: sum(event[0] == "connect_failed" for event in reports) >= 3)
    pull = make(omq.PULL, bind=f"tcp://127.0.0.1:{port}")
    assert await pull.recv(timeout=5) == b"x"


@on_both_loops
async def test_an_ipc_path_that_is_not_there_yet(make, tmp_path, reports):
    push = make(omq.PUSH, connect=f"ipc://{tmp_path}/later", **FAST)
    await push.send(b"x")
    await until(lambda: any(event[0] == "connect_failed" for event in reports))
    pull = make(omq.PULL, bind=f"ipc://{tmp_path}/later")
    assert await pull.recv(timeout=5) == b"x"


@on_both_loops
@pytest.mark.parametrize("when", ["at once", "after the greeting", "in the middle of the greeting"])
async def test_a_reset_during_the_handshake_is_survived(make, when, reports):
    with listening() as server:
        push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}", **FAST)
        await push.send(b"kept")
        for _ in range(3):
            connected = await accept(server)
            if when != "at once":
                await asyncio.get_running_loop().sock_sendall(
                    connected, GREETING if when.startswith("after") else GREETING[:20]
                )
                await asyncio.sleep(0.005)
            reset(connected)
        port = port_of(server)
    pull = make(omq.PULL, bind=f"tcp://127.0.0.1:{port}")
    assert await pull.recv(timeout=5) == b"kept"
    assert any(event[0] == "handshake_failed" for event in reports)


@on_both_loops
async def test_a_peer_that_hangs_up_during_the_handshake_is_dialled_again(make):
    with listening() as server:
        push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}", **FAST)
        await push.send(b"kept")
        for _ in range(3):
            (await accept(server)).close()
        port = port_of(server)
    pull = make(omq.PULL, bind=f"tcp://127.0.0.1:{port}")
    assert await pull.recv(timeout=5) == b"kept"


@on_both_loops
async def test_without_an_interval_nothing_is_dialled_twice(make, reports):
    with listening() as server:
        push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}", reconnect_interval=None)
        (await accept(server)).close()
        await until(lambda: any(event[0] == "handshake_failed" for event in reports))
        for _ in range(20):
            await asyncio.sleep(0.002)
        with pytest.raises(BlockingIOError):
            server.accept()
        push.connect(f"tcp://127.0.0.1:{port_of(server)}")
        (await accept(server)).close()


async def test_every_address_of_a_name_is_tried(make, monkeypatch):
    """Nobody listens at the first two; the third one answers."""
    pull = make(omq.PULL, bind="tcp://127.0.0.3:*")
    port = int(pull.endpoints[0].rpartition(":")[2])
    asked = []

    async def resolve(self, host, port):
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (1, 2, 3)]

    monkeypatch.setattr(dialer.Dialer, "_resolve", resolve)
    push = make(omq.PUSH, connect=f"tcp://several.example:{port}", **FAST)
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    assert asked == ["several.example"]


async def test_a_name_is_resolved_anew_each_time(make, monkeypatch):
    """A service that moves is found at its new address."""
    addresses = ["127.0.0.1"]
    pull = make(omq.PULL, bind="tcp://127.0.0.2:*")
    port = int(pull.endpoints[0].rpartition(":")[2])

    async def resolve(self, host, port):
        if not addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "not now")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses.pop(0), port))]

    monkeypatch.setattr(dialer.Dialer, "_resolve", resolve)
    push = make(omq.PUSH, connect=f"tcp://moving.example:{port}", **FAST)
    await push.send(b"x")
    await until(lambda: not addresses)
    await asyncio.sleep(0.03)
    addresses.append("127.0.0.2")
    assert await pull.recv(timeout=5) == b"x"


@on_both_loops
async def test_a_name_that_nobody_knows_is_asked_for_again(make, reports):
    push = make(omq.PUSH, connect="tcp://no-such-host.invalid:1", **FAST)
    await until(lambda: sum(event[0] == "connect_failed" for event in reports) >= 2)
    assert push.peers == []


async def test_a_failure_of_any_kind_does_not_end_dialling(make, monkeypatch, reports):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    port = int(pull.endpoints[0].rpartition(":")[2])
    failures = [UnicodeError("label too long"), socket.gaierror("try again"), OverflowError("port")]

    async def resolve(self, host, port):
        if failures:
            raise failures.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(dialer.Dialer, "_resolve", resolve)
    push = make(omq.PUSH, connect=f"tcp://odd.example:{port}", **FAST)
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    assert sum(event[0] == "connect_failed" for event in reports) == 3


@on_both_loops
async def test_the_source_address_is_where_the_peer_sees_it_come_from(make):
    with listening() as server:
        make(omq.PUSH, connect=f"tcp://127.0.0.5:0;127.0.0.1:{port_of(server)}")
        with await accept(server) as connected:
            assert connected.getpeername()[0] == "127.0.0.5"


@on_both_loops
async def test_an_attempt_that_takes_too_long_is_given_up(make, reports):
    """A listener whose backlog is full answers nothing."""
    with listening(backlog=0) as server, contextlib.ExitStack() as fillers:
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port_of(server)))
        make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}", connect_timeout=0.05, **FAST)
        await until(lambda: sum("connect_timeout" in event[2] for event in reports if len(event) > 2) >= 2)


@on_both_loops
async def test_stop_ends_an_attempt_under_way(make):
    with listening(backlog=0) as server, contextlib.ExitStack() as fillers:
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port_of(server)))
        push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{port_of(server)}")
        await asyncio.sleep(0.01)
        await asyncio.wait_for(push.close(linger=0), 2)


async def test_the_interval_grows_up_to_its_ceiling(make, monkeypatch):
    slept = []
    real = asyncio.sleep

    async def sleep(delay, *rest):
        slept.append(delay)
        await real(0, *rest)

    monkeypatch.setattr(dialer.asyncio, "sleep", sleep)
    monkeypatch.setattr(dialer.random, "uniform", lambda low, high: high)
    with listening() as probe:
        port = port_of(probe)
    push = make(omq.PUSH, connect=f"tcp://127.0.0.1:{port}", reconnect_interval=(0.1, 0.5))
    while len(slept) < 6:
        await real(0.001)
    assert slept[:5] == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    push.stop()


async def test_the_interval_starts_anew_after_a_handshake(make, monkeypatch):
    """A peer that served for a while and left is dialled after the first interval, not after the last one."""
    slept = []
    real = asyncio.sleep

    async def sleep(delay, *rest):
        slept.append(delay)
        await real(0, *rest)

    monkeypatch.setattr(dialer.random, "uniform", lambda low, high: high)
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    where = pull.endpoints[0]
    push = make(omq.PUSH, connect=where, reconnect_interval=(0.01, 5.0))
    await push.wait_connected(timeout=5)
    monkeypatch.setattr(dialer.asyncio, "sleep", sleep)
    pull.stop()
    while len(slept) < 4:
        await real(0.001)
    pull = make(omq.PULL, bind=where)
    while not push.peers:
        await real(0.001)
    slept.clear()
    pull.stop()
    while not slept:
        await real(0.001)
    assert slept[0] == pytest.approx(0.01)
    push.stop()


async def test_jitter_keeps_clients_apart(make, monkeypatch):
    asked = []
    monkeypatch.setattr(dialer.random, "uniform", lambda low, high: asked.append((low, high)) or low)
    with listening() as probe:
        port = port_of(probe)
    make(omq.PUSH, connect=f"tcp://127.0.0.1:{port}", **FAST)
    await until(lambda: len(asked) >= 2)
    assert all(0 < low < high <= 1 for low, high in asked)


async def test_a_full_ipc_backlog_is_waited_out(make, tmp_path):
    """A unix socket refuses with EAGAIN when its queue is full: everybody gets through in the end."""
    pull = make(omq.PULL, bind=f"ipc://{tmp_path}/s", backlog=1)
    pushes = [make(omq.PUSH, connect=pull.endpoints[0], **FAST) for _ in range(30)]
    for number, push in enumerate(pushes):
        await push.send(b"%d" % number)
    got = [await pull.recv(timeout=10) for _ in pushes]
    assert sorted(got, key=int) == [b"%d" % number for number in range(30)]


async def test_running_out_of_descriptors_is_survived(make, monkeypatch, reports):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    real, failures = dialer.tcp.prepare, [OSError(errno.EMFILE, "Too many open files")] * 3

    def prepare(*arguments):
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(dialer.tcp, "prepare", prepare)
    push = make(omq.PUSH, connect=pull.endpoints[0], **FAST)
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    assert sum(event[0] == "connect_failed" for event in reports) == 3
