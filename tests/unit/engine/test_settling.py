"""A peer that ends its side of the stream, and reads on, gets what was accepted for it, and nothing new."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import omq.asyncio as omq
from omq._core.wire.framing import FrameDecoder
from tests.support.async_waits import stable, until
from tests.support.raw_peer import RawPeer, command, frames
from tests.unit.conftest import on_both_loops

SIZE = 100_000
COUNT = 60  # messages: more than the kernels hold with the buffers below
LARGE = 8 << 20
SMALL = {"send_buffer": 65536, "send_hwm": 0}

#: The types that send to any connected peer, or to all: what a raw peer is to them.
SENDERS = [
    (omq.PUSH, b"PULL"),
    (omq.PAIR, b"PAIR"),
    (omq.DEALER, b"ROUTER"),
    (omq.PUB, b"SUB"),
    (omq.XPUB, b"SUB"),
    (omq.ROUTER, b"DEALER"),
    (omq.XSUB, b"XPUB"),
    (omq.SCATTER, b"GATHER"),
    (omq.CLIENT, b"SERVER"),
    (omq.CHANNEL, b"CHANNEL"),
    (omq.RADIO, b"DISH"),
    (omq.SERVER, b"CLIENT"),
    (omq.PEER, b"PEER"),
]


def numbered(number: int) -> bytes:
    return b"%d " % number + bytes(SIZE)


async def met(sock: omq.Socket, kind: bytes) -> RawPeer:
    raw = await RawPeer.dial(sock.endpoints[0])
    await raw.handshake(kind, **({"Identity": b"raw"} if kind in (b"DEALER", b"ROUTER") else {}))
    await sock.wait_connected(timeout=5)
    return raw


@asynccontextmanager
async def listened() -> AsyncIterator[tuple[str, Callable[[bytes], Awaitable[RawPeer]]]]:
    """A listener made by hand, and what takes its next connection through the handshake."""
    loop = asyncio.get_running_loop()
    peers: list[RawPeer] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)

        async def accept(kind: bytes) -> RawPeer:
            raw = RawPeer((await loop.sock_accept(server))[0])
            peers.append(raw)
            await raw.handshake(kind)
            return raw

        try:
            yield "tcp://{}:{}".format(*server.getsockname()), accept
        finally:
            for raw in peers:
                raw.close()


async def send_all(sock: omq.Socket, raw: RawPeer, count: int = COUNT) -> None:
    """Has the socket accept *count* messages for the peer."""
    if isinstance(sock, omq.PUB | omq.XPUB):
        await raw.subscribe(b"")
        await sock.wait_subscribed(timeout=5)
    route = await route_to(sock, raw)
    for number in range(count):
        body = numbered(number)
        if isinstance(sock, omq.ROUTER):
            await sock.send_multipart([b"raw", body], timeout=5)
        else:
            await sock.send(body, timeout=5, **route)


async def route_to(sock: omq.Socket, raw: RawPeer) -> dict[str, Any]:
    """Has a peer join a group, or send a message: the keyword that `send` needs."""
    if isinstance(sock, omq.RADIO):
        await raw.send(command(b"JOIN", b"g"))
        await sock.wait_subscribed("g", timeout=5)
        return {"group": "g"}
    if isinstance(sock, omq.SERVER | omq.PEER):
        await raw.send(frames(b"hello"))
        return {"routing_id": (await sock.recv_message(timeout=5)).routing_id}
    return {}


def bodies(data: bytes) -> list[bytes]:
    """The last parts of the messages in a stream, which ends with a whole one."""
    decoder = FrameDecoder()
    decoder.feed(data)
    found = []
    size = 0
    while (frame := decoder.next_frame()) is not None:
        flags, body = frame
        size += len(body) + (9 if len(body) > 255 else 2)
        if not flags & 5:  # neither a command nor a part that others follow
            found.append(body)
    assert size == len(data), "the end is torn"
    return found


async def full(sock: omq.Socket) -> None:
    """Waits until the kernels take nothing more."""
    await sock.wait_connected(timeout=5)
    peer = next(iter(sock._engine.sessions)).peer
    await until(lambda: peer.unsent_bytes)
    await stable(lambda: peer.unsent_bytes, quiet=0.02)


@pytest.mark.parametrize(("kind", "theirs"), SENDERS, ids=lambda one: getattr(one, "__name__", None))
@pytest.mark.parametrize("endpoint", ["tcp", "ipc"], indirect=True)
async def test_a_leaving_peer_gets_whole_messages_in_their_order(make, endpoint, kind, theirs):
    sock = make(kind, bind=endpoint, **SMALL)
    raw = await met(sock, theirs)
    await send_all(sock, raw)
    await full(sock)
    session = next(iter(sock._engine.sessions))
    raw.sock.shutdown(socket.SHUT_WR)
    await until(lambda: not sock.peers)
    got = bodies(await raw.read_all())
    given = session.peer.messages_out
    assert [body.split(b" ")[0] for body in got] == [b"%d" % number for number in range(given)]
    assert all(len(body.split(b" ", 1)[1]) == SIZE for body in got)
    await until(lambda: not sock._engine._sessions)
    raw.close()


@on_both_loops
async def test_a_slow_peer_gets_all_of_it(make, monkeypatch):
    monkeypatch.setattr("omq.engine.wire_session._SETTLE_TIMEOUT_S", 0.5)
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*", **SMALL)
    raw = await met(push, b"PULL")
    await push.send(bytes(LARGE // 2))
    await full(push)
    raw.sock.shutdown(socket.SHUT_WR)
    begun, data = time.monotonic(), b""
    while more := await raw.read(1 << 20):
        data += more
        if time.monotonic() - begun < 1.2:
            await asyncio.sleep(0.05)  # each part in time, the whole long after it
    assert bodies(data) == [bytes(LARGE // 2)]
    raw.close()


@on_both_loops
@pytest.mark.parametrize("leaves", [False, True], ids=["ready", "disconnected"])
async def test_one_that_takes_nothing_is_given_up_also_where_linger_has_no_end(make, monkeypatch, reports, leaves):
    monkeypatch.setattr("omq.engine.wire_session._SETTLE_TIMEOUT_S", 0.1)
    async with listened() as (endpoint, accept):
        push = make(omq.PUSH, connect=endpoint, reconnect_interval=None, linger=None, **SMALL)
        raw = await accept(b"PULL")
        await push.send(bytes(LARGE))
        await full(push)
        if leaves:
            push.disconnect(endpoint)
        raw.sock.shutdown(socket.SHUT_WR)
        await until(lambda: not push._engine._sessions)
        assert ("disconnected", "the peer has ended its side and has taken nothing for 0.1 s") in [
            (kind, reason) for kind, _, reason in reports
        ]
        await push.close()  # without a peer nothing is to be waited for


async def test_one_that_was_disconnected_before_gets_all_of_it(make):
    async with listened() as (endpoint, accept):
        push = make(omq.PUSH, connect=endpoint, linger=None, **SMALL)
        raw = await accept(b"PULL")
        for number in range(20):
            await push.send(numbered(number))
        push.disconnect(endpoint)
        raw.sock.shutdown(socket.SHUT_WR)
        assert bodies(await raw.read_all()) == [numbered(number) for number in range(20)]


@pytest.mark.parametrize("disconnects", [False, True])
async def test_closing_waits_for_it(make, disconnects):
    async with listened() as (endpoint, accept):
        push = make(omq.PUSH, connect=endpoint, **SMALL)
        raw = await accept(b"PULL")
        await push.send(bytes(LARGE))
        await full(push)
        raw.sock.shutdown(socket.SHUT_WR)
        await until(lambda: not push.peers)
        if disconnects:
            push.disconnect(endpoint)
        closing = asyncio.create_task(push.close())
        assert bodies(await raw.read_all()) == [bytes(LARGE)]
        await closing


@on_both_loops
async def test_the_dialler_does_not_wait_for_it(make):
    async with listened() as (endpoint, accept):
        push = make(omq.PUSH, connect=endpoint, reconnect_interval=0.01, **SMALL)
        old = await accept(b"PULL")
        await push.send(bytes(LARGE))
        await full(push)
        await push.send(b"behind")
        old.sock.shutdown(socket.SHUT_WR)
        new = await accept(b"PULL")
        assert await new.next_frame() == (0, b"behind")
        assert bodies(await old.read_all()) == [bytes(LARGE)]
        await push.send(b"later")
        assert await new.next_frame() == (0, b"later")


async def test_no_sign_of_life_is_asked_of_it(make):
    """Its last PING allowed a silence that is over before it reads on, and ours is not answered."""
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*", heartbeat_interval=0.05, heartbeat_timeout=0.05, **SMALL)
    raw = await met(push, b"PULL")
    await push.send(bytes(LARGE))
    await full(push)
    await raw.send(command(b"PING", b"\0\1"))
    await until(lambda: next(iter(push._engine.sessions)).peer.pings == 1)
    raw.sock.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.3)
    assert bodies(await raw.read_all()) == [bytes(LARGE)]
    raw.close()


async def test_a_request_whose_peer_ends_its_side_is_over(make):
    req = make(omq.REQ, bind="tcp://127.0.0.1:*", **SMALL)
    raw = await met(req, b"REP")
    await req.send(bytes(LARGE))
    await full(req)
    raw.sock.shutdown(socket.SHUT_WR)
    assert bodies(await raw.read_all()) == [bytes(LARGE)]
    raw.close()
    other = await met(req, b"REP")
    await req.send(b"again")
    assert [await other.next_frame() for _ in range(2)] == [(1, b""), (0, b"again")]
    await other.send(frames(b"", b"reply"))
    assert await req.recv(timeout=5) == b"reply"
    other.close()


@pytest.mark.parametrize("kind", [b"REQ", b"DEALER"])
async def test_a_reply_that_was_sent_arrives_and_a_later_one_is_dropped(make, kind):
    """A peer that ends its side mostly has closed: a connection is not kept for a reply that comes late (RFC 28)."""
    rep = make(omq.REP, bind="tcp://127.0.0.1:*", **SMALL)
    raw = await met(rep, kind)
    await raw.send(frames(b"", b"question"))
    assert await rep.recv(timeout=5) == b"question"
    await rep.send(bytes(LARGE))
    await full(rep)
    raw.sock.shutdown(socket.SHUT_WR)
    assert bodies(await raw.read_all()) == [bytes(LARGE)]
    raw.close()
    late = await met(rep, kind)
    await late.send(frames(b"", b"question"))
    late.sock.shutdown(socket.SHUT_WR)
    assert await rep.recv(timeout=5) == b"question"
    await until(lambda: not rep.peers)
    await rep.send(b"too late", timeout=5)
    assert await late.read_all() == b""
    late.close()
    other = await met(rep, kind)
    await other.send(frames(b"", b"next"))
    assert await rep.recv(timeout=5) == b"next"
    await rep.send(b"reply")
    assert [await other.next_frame() for _ in range(2)] == [(1, b""), (0, b"reply")]
    other.close()
