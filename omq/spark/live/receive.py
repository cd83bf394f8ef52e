"""Record batches straight from a socket: bodies are copied once, from the receive buffer into Arrow's memory."""

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
from omq.spark.live.columns import Columns, Marks, Messages, Shape, Taken
from omq.spark.live.meeting import LOOK, Meeting
from omq.spark.memory import Memory
from omq.unpatched import sleep, threading

log = logging.getLogger("omq.spark")

ROWS: Final = 1 << 18  # rows of a record batch at most: 16 MiB of 64 bytes
ENDS: Final = 4 * (ROWS + 1)  # bytes of the ends of so many
SMALL: Final = 65536  # bytes of a batch that is copied, so that its block is free
LARGE: Final = 65536  # mean bytes of a message from which on each message is received by itself
ENOUGH: Final = 1 << 18  # bytes that one call is to get
GATHER: Final = 0.0005  # seconds that we leave a peer before the next call, where one has got less
FEW: Final = 64  # messages that one call takes where they may have several parts
WAKE: Final = 0.25  # seconds that one wait lasts at most
GLANCE: Final = 0.005  # seconds between two looks at whether peers are still there when we leave
LEAVING: Final = 2.0  # seconds that nothing may come of what is on its way when we leave
LONGEST: Final = 20.0  # seconds that leaving takes at most: a peer that does not care sends for ever
CONNECTING: Final = 10.0  # seconds that a drain waits for the first peer where there is no connectTimeout


@dataclass(frozen=True)
class Limits:
    """Where a read ends, whichever comes first.

    Attributes:
        rows: Messages; `None` for no bound.
        bytes: Bytes of message bodies; the first message is taken whatever its size. `None` for no bound.
        seconds: Seconds since the read began; `None` for no bound.
        quiet: Seconds without a message; `None` for no bound.
    """

    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    quiet: float | None = None


class Connection:
    """A socket that is read, with the messages that were taken from it and are in no batch yet.

    Args:
        socket: The socket.
        endpoint: The socket's only endpoint, as the user wrote it.
        ahead: Bytes that the socket may hold beside the batch that is read.
        most: Messages that the socket may hold, the user's recv_hwm; 0 for no bound.
        meeting: The wait for its first peer; `None`: it may take any time.
        memory: Where bodies are put; `None` for memory of its own.
        ends_memory: Where their ends are put; likewise.

    Attributes:
        sequence: The number of the next message.
        bounded: Whether the last read ended because there was no more room in it.
        cut: Whether it ended because its time was up.
        interrupted: While this is set every read ends within `WAKE`, as if its time were up.
    """

    def __init__(
        self,
        socket: omq.Socket,
        endpoint: str,
        ahead: int,
        most: int,
        meeting: Meeting | None = None,
        memory: Memory | None = None,
        ends_memory: Memory | None = None,
    ) -> None:
        self.socket = socket
        self._meeting = meeting or Meeting(socket, endpoint, None, False)
        self.endpoint = endpoint
        self.sequence = 0
        self.ahead = ahead
        self._most = most
        self._stash: deque[list[bytes]] = deque()
        self._mean = 0.0
        self._memory = memory or Memory()
        self._ends_memory = ends_memory or Memory()
        self.interrupted = threading.Event()
        self.bounded = self.cut = False
        self.pause()

    @property
    def closed(self) -> bool:
        """Whether the socket is closed."""
        return self.socket.closed

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
        fitting = max(1, int(self.ahead / max(self._mean, 1.0)))
        self._hold(min(fitting, self._most) if self._most else fitting)

    # ------------------------------------------------------------------ reading

    def batches(self, shape: Shape, limits: Limits) -> Iterator[pa.RecordBatch]:
        """Yields what arrives until a limit is reached; then pauses the socket."""
        for taken in self.take(shape, limits):
            yield taken.batch(shape)

    def take(self, shape: Shape, limits: Limits) -> Iterator[Taken]:
        """The same, before it is made into batches."""
        read = _Read(limits, self.interrupted)
        try:
            self._await_peer(read, drains=limits.quiet is not None)
            while read.goes_on:
                taken = self._messages(shape, read) if self._stash else self._columns(shape, read)
                if taken is not None:
                    yield taken
        finally:
            self.bounded, self.cut = read.bounded, read.cut
            self.pause()

    def _await_peer(self, read: _Read, drains: bool) -> None:
        """Waits for the first peer: a drain for as long as one may be awaited, any other read until its end."""
        if drains:
            left = self._meeting.left
            self._meeting.wait(CONNECTING if left == math.inf else max(left, 0) + LOOK, self.interrupted)
            read.touched()
        else:
            self._meeting.wait(read.left(), self.interrupted)

    def _columns(self, shape: Shape, read: _Read) -> Taken | None:
        """Messages of one part, or any if the first has several; `None` if no message comes in time."""
        data = self._memory.take(shape.batch_bytes)
        ends = self._ends_memory.take(ENDS)
        marks = Marks(self.endpoint, self.sequence)
        room = min(len(data), read.bytes_left)
        # The kernel writes large frames straight into the batch, if the bound in bytes leaves room for a whole batch.
        blocks: tuple[mmap.mmap, mmap.mmap] | None = None
        large = self._mean >= LARGE and room == len(data)
        try:
            with memoryview(data)[:room] as target, memoryview(ends) as view:
                used = self._fill(target, view, large, read, marks)
            count = marks.count
            if used + 4 * count <= SMALL:
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
        while (left := min(read.rows_left, ROWS) - count) > 0 and used < len(target):
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
            if not large and used - before < ENOUGH and got < left:
                # One that waits for each piece wakes for a few hundred rows at a time, and so does its peer: small rows
                # cost four times as much.
                sleep(GATHER)
        return used

    def _messages(self, shape: Shape, read: _Read) -> Taken | None:
        """Messages of any number of parts; messages that do not fit wait in the stash."""
        marks = Marks(self.endpoint, self.sequence)
        taken: list[list[bytes]] = []
        used = 0
        while len(taken) < min(ROWS, read.rows_left) and used < shape.batch_bytes:
            if not self._stash and not self._restock(read, wait=not taken):
                if taken or not read.in_time:
                    break
                continue
            parts = self._stash[0]
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
            taken.append(self._stash.popleft())
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
        limit = min(FEW, max(1, int(self.ahead / self._mean))) if self._mean else 1
        try:
            self._stow(self.socket.recv_many(limit, timeout=read.wait() if wait else 0))
        except omq.ReceiveTimeout:
            return False
        read.touched()
        return True

    # ------------------------------------------------------------------ the end

    @property
    def held(self) -> int:
        """Messages that were taken from the socket, and that no read has given."""
        return len(self._stash)

    def close(self) -> int:
        """Closes the socket; returns and logs how many messages it held that nobody will read."""
        self.retire()
        held = len(self._stash)
        self._stash.clear()
        if held:
            log.warning("%s: closed with %d messages that had arrived and were not read", self.endpoint, held)
        return held

    def retire(self) -> None:
        """Closes the socket, having taken what its peers have sent; that can still be read."""
        sock = self.socket
        if sock.closed:
            return
        sock.set_options(recv_hwm=FEW)
        sock.drain()
        begun = moved = time.monotonic()
        before = 0
        while True:
            alone = not sock.peers
            try:
                self._stow(sock.recv_many(FEW, timeout=0 if alone else GLANCE))
            except omq.ReceiveTimeout:
                if alone:
                    break
            # A large message counts while it comes.
            arrived, now = sum(peer.bytes_in for peer in sock.peers), time.monotonic()
            if arrived != before:
                before, moved = arrived, now
            if now > min(moved + LEAVING, begun + LONGEST):
                log.warning("%s: closed while peers still sent; what was on its way is lost", self.endpoint)
                break
        sock.stop()

    def _stow(self, messages: list[Any]) -> None:
        self._stash.extend(one if isinstance(one, list) else [one] for one in messages)


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
        return self.left() > 0 and not self._interrupted.is_set()

    def left(self) -> float:
        """Seconds until the end, if nothing comes."""
        return min(self._end, self._last + self._quiet) - time.monotonic()

    def wait(self) -> float:
        """Seconds that the next wait may last."""
        return max(0.0, min(WAKE, self.left()))

    def touched(self) -> None:
        """Records that a message has come."""
        self._last = time.monotonic()

    def took(self, rows: int, size: int) -> None:
        self.rows += rows
        self.bytes += size
