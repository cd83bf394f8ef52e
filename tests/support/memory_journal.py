"""A journal in memory that several nodes share, with faults for each node. It implements `Journal` without servers.

All times are those of the running loop, so a loop with virtual time makes it deterministic.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from omq.store.replication.journal import Fenced, JournalEntry, JournalUnavailable, Sending, Truncated

#: The outcomes that a test may give to an append, apart from the usual one.
ACK_LOST = "the entry is stored, and the ack is lost"
REQUEST_LOST = "the entry is not stored"
ARRIVES_LATE = "the entry is stored after the node has stopped waiting, if its place is free then"
TORN = "only the first chunk is stored"
OUTCOMES = (ACK_LOST, REQUEST_LOST, ARRIVES_LATE, TORN)


_T = TypeVar("_T")


class Chunk(NamedTuple):
    """A message of the journal.

    Attributes:
        run: The append that it is part of.
        index: Its index in the entry.
        more: True if another chunk of the entry follows.
        data: The bytes; empty without an entry.
    """

    run: int
    index: int
    more: bool
    data: bytes


class _Assembler:
    """The chunks of one entry, as they arrive."""

    def __init__(self) -> None:
        self._run = 0
        self._chunks: list[bytes] = []

    def add(self, chunk: Chunk) -> bytes | None:
        """Returns the entry, if this is its last chunk; `None` within an entry; empty bytes without one."""
        if not chunk.data or (chunk.index and (chunk.run, chunk.index) != (self._run, len(self._chunks))):
            self._run, self._chunks = 0, []
            return b""
        self._run, self._chunks = chunk.run, [*(self._chunks if chunk.index else ()), chunk.data]
        if chunk.more:
            return None
        entry = b"".join(self._chunks)
        self._run, self._chunks = 0, []
        return entry


class MemoryJournal:
    """The servers of a journal.

    Args:
        chunk_bytes: The size to which entries are cut.
        lease: The duration of the lease in seconds.
    """

    def __init__(self, chunk_bytes: int = 1 << 20, lease: float = 1.0) -> None:
        self.lease = lease
        self.first = 1
        self.chunks: list[Chunk] = []  # from the sequence `first` on
        self.snapshot: tuple[int, dict[str, bytes]] | None = None
        self.chunk_bytes = chunk_bytes
        self.appended: list[JournalEntry] = []  # all that were ever finished, also truncated ones
        self.listeners: list[asyncio.Queue[bytes]] = []  # of announcements
        self._runs = 0
        self._assembler = _Assembler()
        self._changed = asyncio.Event()

    @property
    def last(self) -> int:
        """The last sequence."""
        return self.first + len(self.chunks) - 1

    @property
    def size(self) -> int:
        """The bytes of its chunks."""
        return sum(len(chunk.data) for chunk in self.chunks)

    @property
    def marks(self) -> int:
        """The number of its chunks without an entry."""
        return sum(not chunk.data for chunk in self.chunks)

    def node(self) -> NodeJournal:
        """Returns the connection of another node."""
        return NodeJournal(self)

    def cut(self, payload: bytes | bytearray) -> list[Chunk]:
        """Returns the chunks of an entry."""
        self._runs += 1
        pieces = [payload[at : at + self.chunk_bytes] for at in range(0, len(payload), self.chunk_bytes)] or [b""]
        return [Chunk(self._runs, i, i + 1 < len(pieces), piece) for i, piece in enumerate(pieces)]

    def store(self, chunk: Chunk, expected: int) -> int:
        """Stores a chunk at its place; returns its sequence. Raises `Fenced`."""
        if expected != self.last:
            raise Fenced(f"the journal has the last sequence {self.last}, expected {expected}", self.last)
        self.chunks.append(chunk)
        if entry := self._assembler.add(chunk):
            self.appended.append(JournalEntry(self.last, entry))
        self._notify()
        return self.last

    def truncate(self, below: int) -> None:
        """Drops the chunks below a sequence."""
        dropped = min(max(below - self.first, 0), len(self.chunks))
        del self.chunks[:dropped]
        self.first += dropped
        self._notify()

    def after(self, sequence: int) -> list[Chunk]:
        """Returns the chunks after a sequence. Raises `Truncated`."""
        if sequence + 1 < self.first:
            raise Truncated(f"the journal begins at {self.first}", self.first)
        return self.chunks[sequence + 1 - self.first :]

    def fences(self, expected: int, runs: set[int]) -> bool:
        """Returns whether the journal has, or had, a chunk after a sequence that is not one of these appends'."""
        try:
            return any(chunk.data and chunk.run not in runs for chunk in self.after(expected))
        except Truncated:
            return True

    def entry(self, sequence: int) -> bytes | None:
        """Returns the entry that ends with a sequence, empty bytes if none does; `None` if the sequence is missing."""
        if not self.first <= sequence <= self.last:
            return None
        end = sequence - self.first
        begin = end - self.chunks[end].index
        if begin < 0:
            return None
        assembler = _Assembler()
        return [assembler.add(chunk) for chunk in self.chunks[begin : end + 1]][-1] or b""

    async def changed(self) -> None:
        """Waits for the next change."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass
class Faults:
    """The faults of a node's connection to the servers.

    Attributes:
        requests_pass: Requests of the node reach the servers.
        answers_pass: Answers and entries reach the node.
        entries_pass: Entries reach it.
        timeout: The seconds after which a call without an answer fails.
        chunk_s: The seconds that a chunk of an entry with several takes in addition.
        running: Waits while the node is paused: it sends and gets no chunks then.
        latency: Returns the seconds that a message takes, one way.
        outcome: Returns the outcome of an append, one of `OUTCOMES`; empty: the usual one.
    """

    requests_pass: bool = True
    answers_pass: bool = True
    entries_pass: bool = True
    timeout: float = 1.0
    chunk_s: float = 0.0
    running: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
    latency: Callable[[], float] = lambda: 0.0
    outcome: Callable[[], str] = lambda: ""

    def part(self) -> None:
        """Cuts the connection in both directions."""
        self.requests_pass = self.answers_pass = False

    @property
    def pass_all(self) -> bool:
        """True if the connection is whole."""
        return self.requests_pass and self.answers_pass and self.entries_pass

    def heal(self) -> None:
        """Ends all interruptions."""
        self.requests_pass = self.answers_pass = self.entries_pass = True


@dataclass
class _Append:
    """An append of a node.

    Attributes:
        payload: The entry.
        expected: The sequence that it expects.
        outcome: One of `OUTCOMES`, or empty.
        sending: See `Journal.append`.
        waiting: The caller waits.
        acknowledged: The chunks that were acknowledged.
        stored: To be called for the last chunk that was sent, once it is acknowledged.
    """

    payload: bytes
    expected: int
    outcome: str
    sending: Sending
    waiting: bool = True
    acknowledged: int = 0
    stored: Callable[[], None] = lambda: None


class NodeJournal:
    """The connection of one node to a `MemoryJournal`. Implements `Journal`."""

    def __init__(self, servers: MemoryJournal) -> None:
        self.servers = servers
        self.lease = servers.lease
        self.failure = ""
        self.faults = Faults()
        self.late = 1.5  # times `Faults.timeout`, after which a late entry arrives
        self._closed = False
        self._deliveries: set[asyncio.Task[int]] = set()

    async def append(self, payload: bytes | bytearray, expected: int, sending: Sending | None = None) -> int:
        append = _Append(payload, expected, self.faults.outcome(), sending or (lambda: lambda: None))
        delivery = asyncio.ensure_future(self._deliver(append))
        self._deliveries.add(delivery)  # it stays on its way when the caller has stopped waiting
        delivery.add_done_callback(self._delivered)
        try:
            acknowledged = -1
            while not delivery.done() and acknowledged < append.acknowledged:
                acknowledged = append.acknowledged
                await asyncio.wait([delivery], timeout=self.faults.timeout)
                await self.faults.running()
                await asyncio.sleep(0)  # an ack that has arrived in the pause comes first
        finally:
            append.waiting = False
        if not delivery.done() or append.outcome:
            await self._no_answer(delivery.done())
        await self._answer()
        last = delivery.result()
        append.stored()
        return last

    async def _deliver(self, append: _Append) -> int:
        await self._travel()
        if append.outcome == ARRIVES_LATE:
            await asyncio.sleep(self.faults.timeout * self.late)
        if append.outcome == REQUEST_LOST or not self.faults.requests_pass:
            raise JournalUnavailable("the request is lost")
        runs: set[int] = set()
        expected = append.expected
        while True:
            chunks = self.servers.cut(append.payload)
            runs.add(chunks[0].run)
            if append.waiting and not self.servers.fences(append.expected, runs):
                expected = max(expected, self.servers.last)
            try:
                return await self._send(append, chunks, expected)
            except Fenced:
                behind = self.servers.last < append.expected
                if behind or not append.waiting or self.servers.fences(append.expected, runs):
                    raise

    async def _send(self, append: _Append, chunks: list[Chunk], expected: int) -> int:
        """Sends chunks one after the other, as long as the caller waits."""
        for chunk in chunks:
            await self.faults.running()
            if chunk.index and (not append.waiting or append.outcome == TORN):
                raise JournalUnavailable("the rest is not sent")
            append.stored = append.sending()
            if chunk.more or chunk.index:
                await asyncio.sleep(self.faults.chunk_s)
            try:
                expected = self.servers.store(chunk, expected)
            except Fenced:
                if chunk.more:  # the next one was sent already
                    with contextlib.suppress(Fenced):
                        self.servers.store(chunks[chunk.index + 1], expected + 1)
                raise
            if chunk.more:
                await self._travel()
                await self.faults.running()
                if not self.faults.answers_pass or not self.faults.requests_pass:
                    raise JournalUnavailable("the connection is lost")
                if append.waiting:
                    append.acknowledged += 1
                    append.stored()
        return expected

    def _delivered(self, delivery: asyncio.Task[int]) -> None:
        self._deliveries.discard(delivery)
        if not delivery.cancelled():
            delivery.exception()

    async def read(self, after: int) -> AsyncIterator[JournalEntry]:
        await self._request()
        assembler = _Assembler()
        while True:
            changed = asyncio.ensure_future(self.servers.changed())
            try:
                chunks = self.servers.after(after)
                if not chunks:
                    await changed
                    continue
            finally:
                changed.cancel()
            await self._answer()
            if not self.faults.entries_pass:
                await self._no_answer()
            after += 1
            yield JournalEntry(after, assembler.add(chunks[0]))

    async def last(self) -> int:
        await self._request()
        (mark,) = self.servers.cut(b"")
        last = self.servers.store(mark, self.servers.last)
        await self._answer()
        return last

    async def entry(self, sequence: int) -> bytes | None:
        await self._request()
        entry = self.servers.entry(sequence)
        await self._answer()
        return entry

    async def size(self) -> int:
        await self._request()
        size = self.servers.size
        await self._answer()
        return size

    async def is_complete(self) -> bool:
        await self._request()
        servers = self.servers
        complete = servers.first == 1 or (servers.snapshot is not None and servers.snapshot[0] >= servers.first - 1)
        await self._answer()
        return complete

    async def truncate(self, below: int) -> None:
        await self._request()
        self.servers.truncate(below)
        await self._answer()

    async def put_snapshot(self, position: int, directory: Path) -> int:
        files = _files(directory)
        await self._request()
        replaced = self.servers.snapshot[0] if self.servers.snapshot else 0
        if replaced <= position:
            self.servers.snapshot = position, files
        await self._answer()
        return replaced if replaced <= position else 0

    async def get_snapshot(self, target: Path) -> int | None:
        await self._request()
        snapshot = self.servers.snapshot
        await self._answer()
        if snapshot is None:
            return None
        for name, data in snapshot[1].items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return snapshot[0]

    async def announce(self, payload: bytes) -> None:
        if self.faults.requests_pass:
            for listener in self.servers.listeners:
                listener.put_nowait(payload)

    async def announcements(self) -> AsyncGenerator[bytes, None]:
        listener: asyncio.Queue[bytes] = asyncio.Queue()
        self.servers.listeners.append(listener)
        try:
            while True:
                payload = await listener.get()
                if self.faults.answers_pass:
                    yield payload
        finally:
            self.servers.listeners.remove(listener)

    async def close(self) -> None:
        self._closed = True

    async def _travel(self) -> None:
        seconds = self.faults.latency()
        if seconds:
            await asyncio.sleep(seconds)

    async def _request(self) -> None:
        await self._travel()
        if self._closed or not self.faults.requests_pass:
            await self._no_answer()

    async def _answer(self) -> None:
        await self._travel()
        if self._closed or not self.faults.answers_pass:
            await self._no_answer()

    async def _no_answer(self, waits: bool = True) -> None:
        if waits:
            await asyncio.sleep(self.faults.timeout)
        raise JournalUnavailable("the journal does not answer")


def _files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


class JournalThread:
    """A `MemoryJournal` in a thread of its own, for nodes with loops of their own."""

    def __init__(self, chunk_bytes: int = 1 << 20) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.servers = asyncio.run_coroutine_threadsafe(self._make(chunk_bytes), self.loop).result()

    async def _make(self, chunk_bytes: int) -> MemoryJournal:
        return MemoryJournal(chunk_bytes)

    def node(self) -> RemoteJournal:
        """Returns the connection of another node."""
        return RemoteJournal(self.servers.node(), self.loop)

    def close(self) -> None:
        """Ends the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class RemoteJournal:
    """The connection of a node to a journal in another loop. Implements `Journal`."""

    def __init__(self, node: NodeJournal, loop: asyncio.AbstractEventLoop) -> None:
        self.lease = node.lease
        self.failure = node.failure
        self.faults = node.faults
        self._node = node
        self._loop = loop

    def _call(self, call: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    async def append(self, payload: bytes | bytearray, expected: int, sending: Sending | None = None) -> int:
        if sending is None:
            return await self._call(self._node.append(payload, expected))
        loop, waiting = asyncio.get_running_loop(), [True]

        def sending_there() -> Callable[[], None]:
            stored = sending()

            def stored_there() -> None:
                loop.call_soon_threadsafe(lambda: stored() if waiting else None)

            return stored_there

        try:
            return await self._call(self._node.append(payload, expected, sending_there))
        finally:
            waiting.clear()

    async def read(self, after: int) -> AsyncIterator[JournalEntry]:
        entries = self._node.read(after)
        while True:
            entry = await self._call(self._next(entries))
            yield entry

    @staticmethod
    async def _next(items: AsyncIterator[_T]) -> _T:
        return await anext(items)

    async def announce(self, payload: bytes) -> None:
        await self._call(self._node.announce(payload))

    async def announcements(self) -> AsyncGenerator[bytes, None]:
        announcements = self._node.announcements()
        while True:
            yield await self._call(self._next(announcements))

    async def last(self) -> int:
        return await self._call(self._node.last())

    async def entry(self, sequence: int) -> bytes | None:
        return await self._call(self._node.entry(sequence))

    async def size(self) -> int:
        return await self._call(self._node.size())

    async def is_complete(self) -> bool:
        return await self._call(self._node.is_complete())

    async def truncate(self, below: int) -> None:
        await self._call(self._node.truncate(below))

    async def put_snapshot(self, position: int, directory: Path) -> int:
        return await self._call(self._node.put_snapshot(position, directory))

    async def get_snapshot(self, target: Path) -> int | None:
        return await self._call(self._node.get_snapshot(target))

    async def close(self) -> None:
        await self._call(self._node.close())
