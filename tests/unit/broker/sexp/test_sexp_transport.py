"""A transport knows to the byte what the kernel has taken."""

from __future__ import annotations

import asyncio
import errno
import socket
import time

import pytest
import uvloop

from omq.broker.sexp.transport import SexpTransport


class TransportOwner:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.data = b""
        self.told: list[str] = []
        self.changed = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.data += data
        self.changed.set()

    def ended(self) -> None:
        self.told.append("ended")
        self.changed.set()

    def taken(self) -> None:
        self.changed.set()

    def lost(self) -> None:
        self.told.append("lost")
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
            wire = SexpTransport(asyncio.get_running_loop(), here, owner)
            with there:
                try:
                    await test(wire, owner, there)
                finally:
                    wire.close()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


def drain(there: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += there.recv(size - len(data))
    return data


def test_everything_goes_out_in_order(run):
    async def test(wire, owner, there) -> None:
        wire.write(b"")
        await asyncio.sleep(0)
        pieces = [bytes([at % 256]) * (at * 37 % 5000) for at in range(600)]
        whole = b"".join(pieces)
        for piece in pieces:
            wire.write(piece)
        assert (wire.said, wire.taken) == (len(whole), 0)
        assert await asyncio.to_thread(drain, there, len(whole)) == whole
        await owner.until(lambda: not wire.unsent)
        assert wire.taken == len(whole)

    run(test)


def test_what_the_kernel_has_not_taken_is_known_when_the_peer_is_gone(run):
    async def test(wire, owner, there) -> None:
        for _ in range(100):
            wire.write(bytes(1000))
        wire.flush()
        taken = wire.taken
        assert 0 < taken < 100_000
        assert drain(there, taken) == bytes(taken)
        there.close()
        wire.read(True)
        await owner.until(lambda: owner.told)
        wire.close()
        assert "lost" in owner.told
        assert wire.taken == taken
        wire.write(b"nobody hears it")
        wire.flush()
        wire.close()
        assert owner.told.count("lost") == 1

    run(test)


def test_what_has_gone_out_in_part_is_not_dropped(run):
    async def test(wire, owner, there) -> None:
        wire.write(b"a" * 50_000)
        wire.write(b"b" * 50_000)
        wire.flush()
        assert 0 < wire.taken < 50_000
        wire.drop()
        assert wire.said == 50_000
        wire.write(b"c")
        assert await asyncio.to_thread(drain, there, 50_001) == b"a" * 50_000 + b"c"
        wire.write(b"d")
        wire.drop()
        await asyncio.sleep(0)
        assert wire.said == wire.taken == 50_001

    run(test)


def test_finish_lets_the_peer_read_everything(run):
    async def test(wire, owner, there) -> None:
        there.sendall(b"x" * 1000)  # which nobody reads
        wire.write(b"last words")
        wire.flush()
        wire.finish(10)
        assert await asyncio.to_thread(there.recv, 100) == b"last words"
        assert await asyncio.to_thread(there.recv, 100) == b""
        there.sendall(b"more for nobody")
        there.shutdown(socket.SHUT_WR)
        await owner.until(lambda: owner.told)
        assert owner.told == ["lost"]
        assert owner.data == b""

    run(test)


def test_finish_waits_no_longer_than_it_should(run):
    async def test(wire, owner, there) -> None:
        wire.finish(0.02)
        await owner.until(lambda: owner.told)
        assert owner.told == ["lost"]

    run(test)


def test_reading_can_be_held_up(run):
    async def test(wire, owner, there) -> None:
        there.sendall(b"a")
        wire.read(True)
        await owner.until(lambda: owner.data == b"a")
        wire.read(False)
        there.sendall(b"b")
        await asyncio.sleep(0.02)
        assert owner.data == b"a"
        wire.read(True)
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

    server = SexpServer(None)  # type: ignore[arg-type]
    server.loop = loop = Loop()  # type: ignore[assignment]
    listener = Listener()
    server._accept(listener)  # type: ignore[arg-type]
    assert listener.calls == 1
    assert loop.removed == [listener]
    assert loop.later[0][0] > 0


def test_who_takes_long_over_what_came_gets_less_at_once(run):
    async def test(wire, owner, there) -> None:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sizes: list[int] = []
        slow = True

        def received(data: bytes) -> None:
            sizes.append(len(data))
            end = time.perf_counter() + (0.005 if slow else 0)
            while time.perf_counter() < end:
                pass
            owner.changed.set()

        owner.received = received
        sending = asyncio.create_task(asyncio.to_thread(there.sendall, bytes(1 << 19)))
        wire.read(True)
        await owner.until(lambda: sizes and sizes[-1] <= 1024)
        slow = False
        await owner.until(lambda: max(sizes[-3:]) >= 8192)
        await owner.until(lambda: sum(sizes) == 1 << 19)
        await sending

    run(test)
