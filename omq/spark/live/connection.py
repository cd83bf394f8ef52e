"""A live socket that is read: bodies are copied once, from the receive buffer into Arrow's memory."""

from __future__ import annotations

import logging
import math
import mmap
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

import omq
from omq.spark.buffer_pool import BufferPool
from omq.spark.live.columns import Columns, Marks, Messages, Shape, Taken
from omq.spark.live.first_peer import POLL_INTERVAL_S, FirstPeer
from omq.spark.live.settings import Settings
from omq.spark.options import STREAM_READ
from omq.unpatched import sleep, threading

log = logging.getLogger("omq.spark")

MAX_ROWS: Final = 1 << 18  # of a record batch: 16 MiB of 64 bytes
ENDS_BYTES: Final = 4 * (MAX_ROWS + 1)  # of the ends of so many
COPIED_BYTES: Final = 65536  # of a batch that is copied, so that its block is free
LARGE_BYTES: Final = 65536  # mean size of a message from which on each message is received by itself
ENOUGH_BYTES: Final = 1 << 18  # that one call is to get
GATHER_S: Final = 0.0005  # for which a peer is left alone before the next call, where one has got less
BATCH_LIMIT: Final = 64  # messages that one call takes where they may have several parts
MAX_WAIT_S: Final = 0.25
BIND_TIMEOUT_S: Final = 5.0  # for an endpoint of another process to become free
FIRST_PEER_TIMEOUT_S: Final = 10.0  # of a drain without connectTimeout
GATHERING_S: Final = 1.0  # for a microbatch without triggerSeconds
DRAINING_S: Final = 10.0  # likewise for all microbatches of one availableNow
EVENTS: Final = 1000  # of a socket that may wait until they are counted

# The end of a connection.
LEAVE_POLL_S: Final = 0.005  # between two looks at whether peers are still there
LEAVE_IDLE_TIMEOUT_S: Final = 2.0  # for which nothing may come of what is on its way
LEAVE_TIMEOUT_S: Final = 20.0  # a peer that does not know of the end sends for ever


@dataclass(frozen=True)
class Limits:
    """The end of a read: the first limit that is reached.

    Attributes:
        rows: Messages; `None` for no bound.
        bytes: Bytes of message bodies; the first message is taken whatever its size. `None` for no bound.
        seconds: Seconds since the read began; `None` for no bound.
        quiet: Seconds without a message, after which peers are asked to send no more; `None` for no bound.
    """

    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    quiet: float | None = None

    @classmethod
    def of(cls, settings: Settings, drains: bool = False) -> Limits:
        """Returns the limits of a read, or of a microbatch."""
        seconds = settings.max_seconds
        if settings.use == STREAM_READ and seconds is None:
            seconds = DRAINING_S if drains else GATHERING_S
        return cls(settings.max_rows, settings.max_bytes, seconds, settings.quiet_seconds if drains else None)


class Connection:
    """A socket that is read, and messages of several parts that were taken from it and are in no batch yet.

    Args:
        socket: The socket.
        endpoint: The socket's only endpoint, as the user wrote it.
        ahead: Bytes that the socket may hold next to the batch that is read.
        most: Messages that the socket may hold, the user's recv_hwm; 0 for no bound.
        first_peer: The wait for its first peer; `None`: it may take any time.
        memory: Memory for bodies; `None` for memory of its own.
        ends_memory: Memory for their ends; likewise.

    Attributes:
        sequence: The number of the next message.
        bounded: Whether the last read ended because there was no more room in it.
        cut: Whether it ended because its time was up.
        interrupted: While this is set every read ends within `MAX_WAIT_S`, as if its time were up.
    """

    def __init__(
        self,
        socket: omq.Socket,
        endpoint: str,
        ahead: int,
        most: int,
        first_peer: FirstPeer | None = None,
        memory: BufferPool | None = None,
        ends_memory: BufferPool | None = None,
    ) -> None:
        self.socket = socket
        self._first_peer = first_peer or FirstPeer(socket, endpoint, None, False)
        self.endpoint = endpoint
        self.sequence = 0
        self._ahead = ahead
        self._most = most
        self._pending: deque[list[bytes]] = deque()
        self._mean = 0.0
        self._memory = memory or BufferPool()
        self._ends_memory = ends_memory or BufferPool()
        self._health = _Health(socket)
        self._leaving: _Leaving | None = None
        self.interrupted = threading.Event()
        self.bounded = self.cut = False
        self.pause()

    @classmethod
    def open(
        cls, settings: Settings, endpoint: str, memory: BufferPool | None = None, ends_memory: BufferPool | None = None
    ) -> Connection:
        """Opens the connection of a partition; waits for an endpoint that another process is just giving up.

        Args:
            settings: The options of the read.
            endpoint: The endpoint.
            memory: See `Connection`.
            ends_memory: See `Connection`.
        """
        deadline = time.monotonic() + BIND_TIMEOUT_S
        while True:
            try:
                # How much the socket may hold is known once the size of a message is.
                sock = settings.open(endpoint, recv_hwm=1)
                break
            except omq.BindError:
                if time.monotonic() > deadline:
                    raise
                sleep(0.05)
        # A socket that listens may wait for peers for any time.
        fails = settings.first_peer_required and endpoint in settings.connect
        most = int(dict(settings.options).get("recv_hwm", omq.Options().recv_hwm))
        first_peer = FirstPeer(sock, endpoint, settings.first_peer_seconds, fails)
        return cls(sock, endpoint, settings.batch_bytes, most, first_peer, memory, ends_memory)

    @property
    def ready(self) -> bool:
        """True if a read would begin with a message, or with an error."""
        return bool(self._pending or self.socket.poll(0, omq.POLL_IN) or self._first_peer.is_overdue)

    def health(self) -> dict[str, Any]:
        """Returns how many peers are connected, how often they have come back, and what waits here unread."""
        found = self._health.read()
        waiting = found.pop("arrived") - self.sequence
        return {**found, "waiting": max(waiting, len(self._pending)), "taken": self.sequence}

    # ------------------------------------------------------------------ how far the socket reads ahead

    def pause(self) -> None:
        """Stops reading ahead: the socket holds one message, or what it has read already."""
        self._hold(1)

    def _hold(self, messages: int) -> None:
        if self.socket.options.recv_hwm != messages and not self.socket.closed:
            self.socket.set_options(recv_hwm=messages)

    def _read_ahead(self, size: int, count: int) -> None:
        """Bounds the bytes that wait in the socket: its high-water mark counts messages, so their mean size sets it."""
        mean = size / count
        # A larger mean counts at once, a smaller one bit by bit.
        self._mean = mean if mean > self._mean else 0.75 * self._mean + 0.25 * mean
        fitting = max(1, int(self._ahead / max(self._mean, 1.0)))
        self._hold(min(fitting, self._most) if self._most else fitting)

    # ------------------------------------------------------------------ reading

    def batches(self, shape: Shape, limits: Limits) -> Iterator[pa.RecordBatch]:
        """Yields what arrives until a limit is reached; then pauses the socket."""
        for taken in self.take(shape, limits):
            yield taken.batch(shape)

    def take(self, shape: Shape, limits: Limits) -> Iterator[Taken]:
        """Yields the same, before it is made into batches.

        A drain that ends first has its peers send no more, and takes what is on its way, too.
        """
        read = _Read(limits, self.interrupted)
        drains = limits.quiet is not None
        self.cut = False
        try:
            if self._leaving is None:
                self._await_peer(read, drains)
                while read.goes_on:
                    taken = self._next(shape, read)
                    if taken is not None:
                        yield taken
                self.cut = read.cut
            if drains:
                yield from self._rest(shape, read)
        finally:
            self.bounded = read.bounded
            self.pause()

    def _next(self, shape: Shape, read: _Read) -> Taken | None:
        return self._messages(shape, read) if self._pending else self._columns(shape, read)

    def _rest(self, shape: Shape, read: _Read) -> Iterator[Taken]:
        """Yields what is on its way when a drain ends, as far as there is room."""
        goes_on = True
        while goes_on and not read.bounded and not self.interrupted.is_set():
            leaving = self._leaving = self._leaving or _Leaving(self.socket, self.endpoint)
            read.patience = leaving.wait()
            taken = self._next(shape, read)
            goes_on = leaving.goes_on(taken is not None)
            if taken is not None:
                yield taken

    def _await_peer(self, read: _Read, drains: bool) -> None:
        """Waits for the first peer: a drain until connectTimeout, any other read until its end."""
        if drains:
            left = self._first_peer.left
            seconds = FIRST_PEER_TIMEOUT_S if left == math.inf else max(left, 0) + POLL_INTERVAL_S
            self._first_peer.wait(seconds, self.interrupted)
            read.touched()
        else:
            self._first_peer.wait(read.left(), self.interrupted)

    def _columns(self, shape: Shape, read: _Read) -> Taken | None:
        """Takes messages of one part, or any if the first has several; returns `None` if none comes in time."""
        data = self._memory.take(shape.batch_bytes)
        ends = self._ends_memory.take(ENDS_BYTES)
        marks = Marks(self.endpoint, self.sequence)
        room = min(len(data), read.bytes_left)
        # The kernel writes large frames straight into the batch, if the bound in bytes leaves room for a whole batch.
        blocks: tuple[mmap.mmap, mmap.mmap] | None = None
        large = self._mean >= LARGE_BYTES and room == len(data)
        try:
            with memoryview(data)[:room] as target, memoryview(ends) as view:
                used = self._fill(target, view, large, read, marks)
            count = marks.count
            if used + 4 * count <= COPIED_BYTES:
                # A whole block for them would be wasted, where they are kept.
                body, ends_used = pa.py_buffer(data[:used]), pa.py_buffer(ends[: 4 * (count + 1)])
            else:
                body, ends_used = pa.py_buffer(data).slice(0, used), pa.py_buffer(ends).slice(0, 4 * (count + 1))
                blocks = data, ends
        except omq.MultipartError:
            return self._messages(shape, read)
        except omq.MessageTooLarge as error:
            if read.rows and error.size is not None and error.size > read.bytes_left:
                read.ended = True
                return None
            body = pa.py_buffer(self.socket.recv(timeout=0))
            count, used = 1, body.size
            ends_used = pa.py_buffer(array("i", [0, used]))
            marks.took(1)
        if not count:
            return None
        self._note(count, used, read)
        return Columns(body, ends_used, marks, blocks)

    def _fill(self, target: memoryview, view: memoryview, large: bool, read: _Read, marks: Marks) -> int:
        """Takes one-part messages until no more fits, or none comes in time; returns the bytes that they use.

        Raises:
            MultipartError: The first message has several parts; it stays first in line.
            MessageTooLarge: The first message does not fit; it stays first in line.
        """
        used = count = 0
        while (left := min(read.rows_left, MAX_ROWS) - count) > 0 and used < len(target):
            before = used
            try:
                if large:
                    used += self.socket.recv_into(target[used:], timeout=read.wait())
                    view[4 * count + 4 : 4 * count + 8] = used.to_bytes(4, sys.byteorder)
                    got = 1
                else:
                    got = self.socket.recv_columns(
                        target, view[4 * (count + 1) : 4 * (count + 1 + left)], used, timeout=read.wait()
                    )
                    used = int.from_bytes(view[4 * (count + got) : 4 * (count + got + 1)], sys.byteorder)
            except omq.ReceiveTimeout:
                if read.in_time:
                    continue
                break
            except (omq.MessageTooLarge, omq.MultipartError):
                if not count:
                    raise
                break
            marks.took(got)
            count += got
            read.touched()
            if not read.in_time:
                break  # a peer that goes on sending would keep us here until the batch is full
            if not large and used - before < ENOUGH_BYTES and got < left:
                # One that waits for each piece wakes for a few hundred rows at a time, and so does its peer: small rows
                # cost four times as much.
                sleep(GATHER_S)
        return used

    def _messages(self, shape: Shape, read: _Read) -> Taken | None:
        """Takes messages of any number of parts; messages that do not fit stay pending."""
        marks = Marks(self.endpoint, self.sequence)
        taken: list[list[bytes]] = []
        used = 0
        while len(taken) < min(MAX_ROWS, read.rows_left) and used < shape.batch_bytes:
            if not self._pending and not self._restock(read, wait=not taken):
                if taken or not read.in_time:
                    break
                continue
            parts = self._pending[0]
            if shape.refuses(parts):
                if taken:
                    break
                raise omq.MultipartError(
                    f"a message of {len(parts)} parts came from {self.endpoint}: ask for them (columns=parts), or have"
                    " such peers refused (max_parts)"
                )
            size = sum(map(len, parts))
            if used + size > read.bytes_left and (taken or read.rows):
                read.ended = not taken
                break
            taken.append(self._pending.popleft())
            used += size
            marks.took(1)
        if not taken:
            return None
        self._note(len(taken), used, read)
        return Messages(taken, used, marks)

    def _note(self, count: int, size: int, read: _Read) -> None:
        """Counts a batch, and adapts how far the socket reads ahead."""
        self.sequence += count
        read.took(count, size)
        self._read_ahead(size, count)

    def _restock(self, read: _Read, wait: bool) -> bool:
        # As many messages as may be read ahead; one while their size is unknown.
        limit = min(BATCH_LIMIT, max(1, int(self._ahead / self._mean))) if self._mean else 1
        try:
            found: list[Any] = self.socket.recv_many(limit, timeout=read.wait() if wait else 0)
        except omq.ReceiveTimeout:
            return False
        self._pending.extend(one if isinstance(one, list) else [one] for one in found)
        read.touched()
        return True

    # ------------------------------------------------------------------ the end

    def close(self) -> int:
        """Closes the socket; returns how many messages had arrived, or were on their way, that no read has taken."""
        lost = len(self._pending)
        self._pending.clear()
        leaving = self._leaving or _Leaving(self.socket, self.endpoint)
        goes_on = True
        while goes_on:
            try:
                came = len(self.socket.recv_many(BATCH_LIMIT, timeout=leaving.wait()))
            except omq.ReceiveTimeout:
                came = 0
            lost += came
            goes_on = leaving.goes_on(came > 0)
        self.socket.stop()
        return lost


class _Leaving:
    """The end of a socket: its peers are asked to send no more, and what is on its way is taken."""

    def __init__(self, socket: omq.Socket, endpoint: str) -> None:
        self._socket = socket
        self._endpoint = endpoint
        socket.set_options(recv_hwm=BATCH_LIMIT)
        socket.drain()
        self._begun = self._moved = time.monotonic()
        self._bytes = 0
        self._alone = False

    def wait(self) -> float:
        """Returns how long to wait for the next message."""
        self._alone = not self._socket.peers
        return 0.0 if self._alone else LEAVE_POLL_S

    def goes_on(self, came: bool) -> bool:
        """Returns whether more may come.

        Args:
            came: Whether a message has come in that wait.
        """
        if self._alone:
            return came
        # A large message counts while it comes.
        arrived, now = sum(peer.bytes_in for peer in self._socket.peers), time.monotonic()
        if came or arrived != self._bytes:
            self._bytes, self._moved = arrived, now
        if now <= min(self._moved + LEAVE_IDLE_TIMEOUT_S, self._begun + LEAVE_TIMEOUT_S):
            return True
        log.warning("%s: closed while peers still sent; what was on its way is lost", self._endpoint)
        return False


class _Health:
    """Counts a socket's peers and what has arrived from them, by its events."""

    def __init__(self, socket: omq.Socket) -> None:
        self._socket = socket
        self._monitor = socket.monitor(EVENTS)
        self._met = 0
        self._gone = 0  # messages of peers that have gone
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """Returns the counts; for any thread."""
        with self._lock:
            self._count()
            peers = self._socket.peers
            return {
                "connected": len(peers),
                "reconnects": max(self._met - max(len(peers), 1), 0),
                "arrived": self._gone + sum(peer.messages_in for peer in peers),
            }

    def _count(self) -> None:
        try:
            while True:
                event = self._monitor.recv(timeout=0)
                if event.kind is omq.EventKind.HANDSHAKE_SUCCEEDED:
                    self._met += 1
                elif event.kind is omq.EventKind.DISCONNECTED and event.peer is not None:
                    self._gone += event.peer.messages_in
        except (omq.ReceiveTimeout, omq.ClosedError):
            pass


class _Read:
    """The progress of one read."""

    def __init__(self, limits: Limits, interrupted: threading.Event) -> None:
        self._limits = limits
        self._interrupted = interrupted
        self._last = time.monotonic()
        self._end = self._last + (math.inf if limits.seconds is None else limits.seconds)
        self._quiet = math.inf if limits.quiet is None else limits.quiet
        self.rows = 0
        self.bytes = 0
        self.ended = False
        self.patience: float | None = None  # seconds that one wait may last once the time is up

    @property
    def rows_left(self) -> int:
        return sys.maxsize if self._limits.rows is None else self._limits.rows - self.rows

    @property
    def bytes_left(self) -> int:
        return sys.maxsize if self._limits.bytes is None else self._limits.bytes - self.bytes

    @property
    def bounded(self) -> bool:
        return self.ended or self.rows_left <= 0 or self.bytes_left <= 0

    @property
    def cut(self) -> bool:
        return not self.bounded and time.monotonic() >= self._end

    @property
    def goes_on(self) -> bool:
        return not self.bounded and self.in_time

    @property
    def in_time(self) -> bool:
        return self.patience is None and self.left() > 0 and not self._interrupted.is_set()

    def left(self) -> float:
        """Seconds until the end, if nothing comes."""
        return min(self._end, self._last + self._quiet) - time.monotonic()

    def wait(self) -> float:
        """Seconds that the next wait may last."""
        if self.patience is not None:
            return self.patience
        return max(0.0, min(MAX_WAIT_S, self.left()))

    def touched(self) -> None:
        """Records that a message has come."""
        self._last = time.monotonic()

    def took(self, rows: int, size: int) -> None:
        self.rows += rows
        self.bytes += size


def read_once(settings: Settings, endpoint: str) -> Iterator[pa.RecordBatch]:
    """Reads one partition once, from a connection that is opened and closed for it."""
    connection = Connection.open(settings, endpoint)
    try:
        yield from connection.batches(Shape.of(settings), Limits.of(settings))
    finally:
        if lost := connection.close():
            log.warning("%s: closed with %d messages that had arrived and were not read", endpoint, lost)
