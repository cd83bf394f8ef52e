"""A relay between two peers that does to their bytes what networks do: it delays, splits, cuts, swallows and alters.

It runs in a thread of its own. A fault happens when the test asks for it (`Link.reset()`), or after some bytes
(`Fault`), and a script of faults comes from a seed, so that a run can be repeated.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

UP, DOWN = "up", "down"  # from who connects to who listens, and back
DIRECTIONS = (UP, DOWN)
_BLOCK = 65536  # bytes read at once
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST
THREAD_TIMEOUT_S = 10.0  # seconds that a test waits for the proxy's thread


@dataclass(frozen=True)
class Fault:
    """A fault of a connection once *after* bytes have passed in one direction.

    Attributes:
        after: Bytes.
        direction: `UP` or `DOWN`.
        what: `reset` (RST), `drop` (FIN both ways), `half_close` (FIN that way), `stall` (nothing passes any more),
            `swallow` (what is read is thrown away), `flip` (the next byte is altered), `split` (single bytes),
            `delay` (each piece waits).
        amount: The bits of `flip`, the seconds of `delay`.
    """

    after: int
    direction: str
    what: str
    amount: float = 0


Script = Sequence[Fault]


def seeded(chance: random.Random, within: int, whats: Sequence[str], ways: Sequence[str] = DIRECTIONS) -> Fault:
    """A fault somewhere in the first *within* bytes of one of the directions."""
    amounts = {"flip": 1 << chance.randrange(8), "delay": chance.choice([0.0002, 0.001])}
    what = chance.choice(whats)
    return Fault(chance.randrange(within), chance.choice(ways), what, amounts.get(what, 0))


class _Ended(Exception):
    """A pump has ended its own connection."""


class Relay:
    """One connection and its other half."""

    def __init__(self, link: Link, near: socket.socket, script: Script) -> None:
        self.link = link
        self.passed = dict.fromkeys(DIRECTIONS, 0)
        self.task: asyncio.Task[None]
        self._near = near
        self._far: socket.socket | None = None
        self._acts = {way: deque(sorted((f for f in script if f.direction == way), key=_when)) for way in DIRECTIONS}
        self._swallowing: set[str] = set()
        self._chunk = dict.fromkeys(DIRECTIONS, _BLOCK)
        self._delay = dict.fromkeys(DIRECTIONS, 0.0)
        self._flip = dict.fromkeys(DIRECTIONS, 0)
        self._stalled: set[str] = set()
        self._pumps: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Relays until both directions have ended."""
        loop = asyncio.get_running_loop()
        family, address = _address(self.link.target)
        self._far = socket.socket(family, socket.SOCK_STREAM)
        self._far.setblocking(False)
        try:
            await loop.sock_connect(self._far, address)
            if family == socket.AF_INET:
                self._far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pumps = [loop.create_task(self._pump(way)) for way in DIRECTIONS]
            await asyncio.wait(self._pumps)
            for pump in self._pumps:
                if not pump.cancelled():
                    pump.result()
        except OSError:
            self.end("reset")
        except _Ended:
            pass
        finally:
            self.end("drop")

    async def _pump(self, way: str) -> None:
        loop = asyncio.get_running_loop()
        assert self._far is not None
        source, sink = (self._near, self._far) if way == UP else (self._far, self._near)
        while True:
            await self._passable(way)
            data = await loop.sock_recv(source, _BLOCK)
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            while data:
                piece = await self._next_piece(way, data)
                data = data[len(piece) :]
                self.passed[way] += len(piece)
                if self._flip[way]:
                    piece = bytes([piece[0] ^ self._flip[way]]) + piece[1:]
                    self._flip[way] = 0
                if way not in self._swallowing and way not in self.link.swallowing:
                    await loop.sock_sendall(sink, piece)
                if data:
                    # That did not have to wait. Many small pieces must not keep the thread from what tests ask of it.
                    await asyncio.sleep(0)

    async def _next_piece(self, way: str, data: bytes) -> bytes:
        """Returns the next piece to forward, if nothing holds it back."""
        acts = self._acts[way]
        while acts and acts[0].after <= self.passed[way]:
            self._act(acts.popleft())
        await self._passable(way)
        delay = max(self._delay[way], self.link.delay)
        if delay:
            await asyncio.sleep(delay)
        room = acts[0].after - self.passed[way] if acts else len(data)
        # A flip concerns one byte, wherever the stream is split.
        return data[: min(room, self._chunk[way], self.link.chunk)]

    async def _passable(self, way: str) -> None:
        while way in self._stalled or way in self.link.stalled:
            await self.link.changed.wait()

    def _act(self, fault: Fault) -> None:
        way = fault.direction
        self.link.happened.append(fault)
        if fault.what in ("reset", "drop"):
            self.end(fault.what)
            raise _Ended
        if fault.what == "half_close":
            self.half_close(way)
            raise asyncio.CancelledError
        if fault.what == "stall":
            self._stalled.add(way)
        elif fault.what == "swallow":
            self._swallowing.add(way)
        elif fault.what == "split":
            self._chunk[way] = 1
        elif fault.what == "delay":
            self._delay[way] = fault.amount
        elif fault.what == "flip":
            self._flip[way] = int(fault.amount)
        else:
            raise ValueError(f"no fault: {fault.what!r}")

    def half_close(self, way: str) -> None:
        """Ends one direction with FIN; what was read for it and has not passed is gone."""
        sink = self._far if way == UP else self._near
        try:
            if sink is not None and sink.fileno() >= 0:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        for number, pump in enumerate(self._pumps):
            if DIRECTIONS[number] == way:
                pump.cancel()

    def end(self, how: str) -> None:
        """Ends the connection: `reset` or `drop`. Idempotent."""
        self.link.relays.discard(self)
        for pump in self._pumps:
            pump.cancel()
        if not self._pumps and self.task is not asyncio.current_task():
            self.task.cancel()  # it is still on its way to the target
        loop = asyncio.get_running_loop()
        for side in (self._near, self._far):
            if side is not None and side.fileno() >= 0:
                loop.remove_reader(side.fileno())
                loop.remove_writer(side.fileno())
                if how == "reset" and side.family == socket.AF_INET:
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                side.close()


def _when(fault: Fault) -> int:
    return fault.after


def _address(endpoint: str) -> tuple[int, Any]:
    scheme, where = endpoint.split("://")
    if scheme == "ipc":
        return socket.AF_UNIX, where
    host, port = where.rsplit(":", 1)
    return socket.AF_INET, (host, int(port))


class Link:
    """An endpoint that leads to another one, through the proxy.

    Attributes:
        endpoint: Where to connect.
        target: Where it leads; may change between connections.
        happened: The scripted faults that have happened.
        accepted: Connections that came.
        stalled, swallowing, delay, chunk: What holds for all its connections, changed with `set`.
    """

    def __init__(self, proxy: Proxy, target: str, listen: str, scripts: Callable[[int], Script]) -> None:
        self.target = target
        self.endpoint = listen
        self.happened: list[Fault] = []
        self.accepted = 0
        self.relays: set[Relay] = set()
        self.stalled: frozenset[str] = frozenset()
        self.swallowing: frozenset[str] = frozenset()
        self.delay = 0.0
        self.chunk = _BLOCK
        self.changed: asyncio.Event
        self._proxy = proxy
        self._scripts = scripts
        self._listening: socket.socket | None = None
        self._running: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ on the proxy's thread

    def open(self) -> None:
        if self._listening is not None:
            return
        self.changed = asyncio.Event()
        family, address = _address(self.endpoint)
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setblocking(False)
        if family == socket.AF_INET:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif os.path.exists(address):
            os.unlink(address)
        listening.bind(address)
        listening.listen(128)
        if family == socket.AF_INET:
            self.endpoint = "tcp://{}:{}".format(*listening.getsockname())
        self._listening = listening
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            near, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        near.setblocking(False)
        relay = Relay(self, near, self._scripts(self.accepted))
        self.accepted += 1
        self.relays.add(relay)
        task = relay.task = asyncio.get_running_loop().create_task(relay.run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def shut(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None

    def end_all(self, how: str) -> None:
        for relay in tuple(self.relays):
            relay.end(how)

    def half_close_all(self, way: str) -> None:
        for relay in tuple(self.relays):
            relay.half_close(way)

    def change(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    # ------------------------------------------------------------------ on the test's thread

    def reset(self) -> None:
        """Ends every connection with RST."""
        self._proxy.call(self.end_all, "reset")

    def drop(self) -> None:
        """Ends every connection with FIN."""
        self._proxy.call(self.end_all, "drop")

    def half_close(self, way: str) -> None:
        """Ends one direction of every connection."""
        self._proxy.call(self.half_close_all, way)

    def set(self, **values: Any) -> None:
        """Changes what holds for all connections, those that are there too."""
        self._proxy.call(self.change, values)

    def stall(self, *ways: str) -> None:
        """Nothing passes in these directions, in both if none is given, until `release`."""
        self.set(stalled=frozenset(ways or DIRECTIONS))

    def release(self) -> None:
        """Everything passes again."""
        self.set(stalled=frozenset(), swallowing=frozenset(), delay=0.0, chunk=_BLOCK)

    def refuse(self) -> None:
        """Stops listening; connections that came go on."""
        self._proxy.call(self.shut)

    def admit(self) -> None:
        """Listens again."""
        self._proxy.call(self.open)

    def close(self) -> None:
        """Stops listening and ends every connection with FIN."""
        self._proxy.call(self._close)

    def _close(self) -> None:
        self.shut()
        self.end_all("drop")
        if self.endpoint.startswith("ipc:"):
            try:
                os.unlink(self.endpoint[6:])
            except FileNotFoundError:
                pass
        self._proxy.links.discard(self)


class Proxy:
    """The thread in which links live; leaving its `with` block ends them all."""

    def __init__(self) -> None:
        self.links: set[Link] = set()
        self._loop = asyncio.SelectorEventLoop()
        self._failures: list[str] = []
        self._loop.set_exception_handler(lambda _, context: self._failures.append(str(context)))
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._cancel_all())
        self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function on the proxy's thread and waits for it."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(function(*arguments))
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        done.result(THREAD_TIMEOUT_S)

    def link(
        self, target: str, listen: str = "tcp://127.0.0.1:0", scripts: Callable[[int], Script] = lambda _: ()
    ) -> Link:
        """An endpoint that leads to *target*; *scripts* gives each connection, by its number, its faults."""
        link = Link(self, target, listen, scripts)
        self.call(link.open)
        self.links.add(link)
        return link

    def close(self) -> None:
        """Ends everything; raises what went wrong in the thread."""
        for link in tuple(self.links):
            link.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(THREAD_TIMEOUT_S)
        assert not self._failures, self._failures

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
