"""The S-expression transport counts exactly the bytes that the kernel has taken."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import uvloop

from omq.broker.sexp.transport import SexpTransport


class TransportOwner:
    """Records the callbacks."""

    def __init__(self) -> None:
        self.data = b""
        self.events: list[str] = []
        self.changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.changed.set()

    def eof_received(self) -> None:
        self.events.append("eof_received")
        self.changed.set()

    def data_written(self) -> None:
        self.changed.set()

    def connection_lost(self) -> None:
        self.events.append("connection_lost")
        self.changed.set()

    async def until(self, true) -> None:
        async with asyncio.timeout(10):
            while not true():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    def run(test) -> None:
        async def main() -> None:
            here, there = socket.socketpair()
            here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            here.setblocking(False)
            there.settimeout(10)
            owner = TransportOwner()
            transport = SexpTransport(asyncio.get_running_loop(), here, owner)
            with there:
                try:
                    await test(transport, owner, there)
                finally:
                    transport.close()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


def drain(there: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += there.recv(size - len(data))
    return data


def test_everything_goes_out_in_order(run):
    async def test(transport, owner, there) -> None:
        transport.write(b"")
        await asyncio.sleep(0)
        pieces = [bytes([at % 256]) * (at * 37 % 5000) for at in range(600)]
        whole = b"".join(pieces)
        for piece in pieces:
            transport.write(piece)
        assert (transport.queued, transport.written) == (len(whole), 0)
        assert await asyncio.to_thread(drain, there, len(whole)) == whole
        await owner.until(lambda: not transport.unsent)
        assert transport.written == len(whole)

    run(test)


def test_unsent_bytes_are_known_after_the_peer_has_closed(run):
    async def test(transport, owner, there) -> None:
        for _ in range(100):
            transport.write(bytes(1000))
        transport.flush()
        taken = transport.written
        assert 0 < taken < 100_000
        assert drain(there, taken) == bytes(taken)
        there.close()
        transport.read(True)
        await owner.until(lambda: owner.events)
        transport.close()
        assert "connection_lost" in owner.events
        assert transport.written == taken
        transport.write(b"not received")
        transport.flush()
        transport.close()
        assert owner.events.count("connection_lost") == 1

    run(test)


def test_a_partly_sent_piece_is_not_dropped(run):
    async def test(transport, owner, there) -> None:
        transport.write(b"a" * 50_000)
        transport.write(b"b" * 50_000)
        transport.flush()
        assert 0 < transport.written < 50_000
        transport.drop()
        assert transport.queued == 50_000
        transport.write(b"c")
        assert await asyncio.to_thread(drain, there, 50_001) == b"a" * 50_000 + b"c"
        transport.write(b"d")
        transport.drop()
        await asyncio.sleep(0)
        assert transport.queued == transport.written == 50_001

    run(test)


def test_finish_lets_the_peer_read_everything(run):
    async def test(transport, owner, there) -> None:
        there.sendall(b"x" * 1000)  # which is not read
        transport.write(b"last words")
        transport.flush()
        transport.finish(10)
        assert await asyncio.to_thread(there.recv, 100) == b"last words"
        assert await asyncio.to_thread(there.recv, 100) == b""
        there.sendall(b"more unread")
        there.shutdown(socket.SHUT_WR)
        await owner.until(lambda: owner.events)
        assert owner.events == ["connection_lost"]
        assert owner.data == b""

    run(test)


def test_finish_waits_no_longer_than_it_should(run):
    async def test(transport, owner, there) -> None:
        transport.finish(0.02)
        await owner.until(lambda: owner.events)
        assert owner.events == ["connection_lost"]

    run(test)


def test_reading_can_be_held_up(run):
    async def test(transport, owner, there) -> None:
        there.sendall(b"a")
        transport.read(True)
        await owner.until(lambda: owner.data == b"a")
        transport.read(False)
        there.sendall(b"b")
        await asyncio.sleep(0.02)
        assert owner.data == b"a"
        transport.read(True)
        await owner.until(lambda: owner.data == b"ab")

    run(test)


def test_a_server_without_descriptors_looks_again_later():
    from omq.broker.sexp.server import SexpServer

    class Listener:
        calls = 0

        def accept(self):
            self.calls += 1
            raise OSError(errno.EMFILE, "no descriptors")

    class Loop:
        def __init__(self) -> None:
            self.removed: list = []
            self.later: list = []

        def remove_reader(self, one) -> None:
            self.removed.append(one)

        def call_later(self, seconds, call, *arguments) -> None:
            self.later.append((seconds, arguments))

    counts = {"sexp": Counter()}
    server = SexpServer(SimpleNamespace(accepts_failed=counts))  # type: ignore[arg-type]
    server.loop = loop = Loop()  # type: ignore[assignment]
    listener = Listener()
    server._accept(listener)  # type: ignore[arg-type]
    assert listener.calls == 1
    assert loop.removed == [listener]
    assert loop.later[0][0] > 0


def test_a_slow_owner_gets_smaller_reads(run):
    async def test(transport, owner, there) -> None:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sizes: list[int] = []
        slow = True

        def received(data: bytes) -> None:
            sizes.append(len(data))
            end = time.perf_counter() + (0.005 if slow else 0)
            while time.perf_counter() < end:
                pass
            owner.changed.set()

        owner.data_received = received
        sending = asyncio.create_task(asyncio.to_thread(there.sendall, bytes(1 << 19)))
        transport.read(True)
        await owner.until(lambda: sizes and sizes[-1] <= 1024)
        slow = False
        await owner.until(lambda: max(sizes[-3:]) >= 8192)
        await owner.until(lambda: sum(sizes) == 1 << 19)
        await sending

    run(test)
