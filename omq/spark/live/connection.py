"""A live socket that is read: bodies are copied once, from the receive buffer into Arrow's memory."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

import omq
from omq.spark.buffer_pool import BufferPool
from omq.spark.live.columns import BODY_AT, MAX_ROWS, MessageBatch
from omq.spark.live.peers import POLL_INTERVAL_S, Peers
from omq.spark.live.settings import SocketSettings
from omq.unpatched import sleep, threading

log = logging.getLogger("omq.spark")

COPIED_BYTES: Final = 65536  # of a batch that is copied, so that its block is free
LARGE_BYTES: Final = 65536  # mean size of a message from which on each message is received by itself
ENOUGH_BYTES: Final = 1 << 18  # that one call is to get
GATHER_S: Final = 0.0005  # for which a peer is left alone before the next call, where one has got less
BATCH_LIMIT: Final = 64  # messages that one call takes where they may have several parts
MAX_WAIT_S: Final = 0.25
BIND_TIMEOUT_S: Final = 5.0  # for an endpoint of another process to become free
FIRST_PEER_TIMEOUT_S: Final = 10.0  # of a drain without connectTimeout

# The end of a connection.
LEAVE_POLL_S: Final = 0.005  # between two looks at whether peers are still there
LEAVE_IDLE_TIMEOUT_S: Final = 2.0  # for which nothing may come of what is on its way
LEAVE_TIMEOUT_S: Final = 20.0  # a peer that does not know of the end sends for ever


class ReadProgress:
    """One read: its limits, the first of which ends it, and how far it is.

    Args:
        rows: Messages at most; `None` for no bound.
        bytes: Bytes of their bodies; the first message is taken whatever its size. `None` for no bound.
        seconds: Seconds from now; `None` for no bound.
        quiet: Seconds without a message, after which peers are asked to send no more; `None`: it is not a drain.

    Attributes:
        drains: Whether it is a drain.
        is_empty: Whether no message has been taken.
        ended: Whether a message did not fit.
        late_wait_s: The longest single wait in seconds once the time is up; `None` before.
        interrupted: While this is set it ends as if its time were up.
    """

    def __init__(
        self,
        rows: int | None = None,
        bytes: int | None = None,
        seconds: float | None = None,
        quiet: float | None = None,
    ) -> None:
        self.rows_left = sys.maxsize if rows is None else rows
        self.bytes_left = sys.maxsize if bytes is None else bytes
        self._last = time.monotonic()
        self._end = math.inf if seconds is None else self._last + seconds
        self._quiet = math.inf if quiet is None else quiet
        self.drains = quiet is not None
        self.is_empty = True
        self.ended = False
        self.late_wait_s: float | None = None
        self.interrupted = threading.Event()

    @property
    def bounded(self) -> bool:
        """True if there is no more room."""
        return self.ended or self.rows_left <= 0 or self.bytes_left <= 0

    @property
    def cut(self) -> bool:
        """True if its time is up, and there is room."""
        return not self.bounded and time.monotonic() >= self._end

    @property
    def in_time(self) -> bool:
        """True until its time is up."""
        return self.late_wait_s is None and self.left() > 0 and not self.interrupted.is_set()

    def left(self) -> float:
        """Returns the seconds until its time is up, if nothing comes."""
        return min(self._end, self._last + self._quiet) - time.monotonic()

    def wait(self) -> float:
        """Returns the seconds that the next wait may last."""
        return max(0.0, min(MAX_WAIT_S, self.left())) if self.late_wait_s is None else self.late_wait_s

    def touched(self) -> None:
        """Records that a message has come."""
        self._last = time.monotonic()

    def took(self, rows: int, size: int) -> None:
        """Records that messages have been taken."""
        self.rows_left -= rows
        self.bytes_left -= size
        self.is_empty = False


class LiveConnection:
    """A socket that is read, and messages of several parts that were taken from it and are in no batch yet.

    Args:
        settings: The options of the read.
        endpoint: The endpoint, as the user wrote it.
        memory: The memory for batches; `None` for memory of its own.

    Attributes:
        sequence: The number of the next message.
        bounded: Whether the last read ended because there was no more room in it.
        cut: Whether it ended because its time was up.
        interrupted: While this is set every read ends within `MAX_WAIT_S`, as if its time were up.

    Raises:
        OmqError: The socket cannot be opened.
    """

    def __init__(self, settings: SocketSettings, endpoint: str, memory: BufferPool | None = None) -> None:
        self.socket = _opened(settings, endpoint)
        # A socket that listens may wait for peers for any time.
        fails = settings.fail_on_connect_timeout and endpoint in settings.connect
        self._peers = Peers(self.socket, endpoint, settings.connect_timeout, fails)
        self.endpoint = endpoint
        self.sequence = 0
        self._batch_bytes = settings.batch_bytes
        self._max_parts = None if "parts" in settings.read_columns else 2 if settings.socket == "SUB" else 1
        self._recv_hwm = int(dict(settings.options).get("recv_hwm", omq.Options().recv_hwm))
        self._pending: deque[list[bytes]] = deque()
        self._mean = 0.0
        self._memory = memory or BufferPool()
        self._leaving: _Leaving | None = None
        self.interrupted = threading.Event()
        self.bounded = self.cut = False

    @property
    def ready(self) -> bool:
        """True if a read would begin with a message, or with an error."""
        return bool(self._pending or self.socket.poll(0, omq.POLL_IN) or self._peers.is_overdue)

    def health(self) -> dict[str, Any]:
        """Returns how many peers are connected, how often they have come back, and what waits here unread."""
        found = self._peers.health()
        waiting = found.pop("arrived") - self.sequence
        return {**found, "waiting": max(waiting, len(self._pending)), "taken": self.sequence}

    # ------------------------------------------------------------------ how far the socket reads ahead

    def _hold(self, messages: int) -> None:
        """Has the socket hold that many messages; with one it reads nothing ahead."""
        if self.socket.options.recv_hwm != messages and not self.socket.closed:
            self.socket.set_options(recv_hwm=messages)

    def _read_ahead(self, size: int, count: int) -> None:
        """Bounds the bytes that wait in the socket: its high-water mark counts messages, so their mean size sets it."""
        mean = size / count
        # A larger mean counts at once, a smaller one bit by bit.
        self._mean = mean if mean > self._mean else 0.75 * self._mean + 0.25 * mean
        fitting = max(1, int(self._batch_bytes / max(self._mean, 1.0)))
        self._hold(min(fitting, self._recv_hwm) if self._recv_hwm else fitting)

    # ------------------------------------------------------------------ reading

    def take(self, read: ReadProgress) -> Iterator[MessageBatch]:
        """Yields what arrives until a limit is reached; then has the socket read no more ahead.

        A drain that ends first has its peers send no more, and takes what is on its way, too.
        """
        read.interrupted = self.interrupted
        self.cut = False
        try:
            if self._leaving is None:
                self._await_peer(read)
                while not read.bounded and read.in_time:
                    taken = self._next(read)
                    if taken is not None:
                        yield taken
                self.cut = read.cut
            if read.drains:
                yield from self._rest(read)
        finally:
            self.bounded = read.bounded
            self._hold(1)

    def _next(self, read: ReadProgress) -> MessageBatch | None:
        return self._messages(read) if self._pending else self._columns(read)

    def _rest(self, read: ReadProgress) -> Iterator[MessageBatch]:
        """Yields what is on its way when a drain ends, as far as there is room."""
        goes_on = True
        while goes_on and not read.bounded and not self.interrupted.is_set():
            leaving = self._leaving = self._leaving or _Leaving(self.socket, self.endpoint)
            read.late_wait_s = leaving.wait()
            taken = self._next(read)
            goes_on = leaving.goes_on(taken is not None)
            if taken is not None:
                yield taken

    def _await_peer(self, read: ReadProgress) -> None:
        """Waits for the first peer: a drain until connectTimeout, any other read until its end."""
        if read.drains:
            left = self._peers.left
            seconds = FIRST_PEER_TIMEOUT_S if left == math.inf else max(left, 0) + POLL_INTERVAL_S
            self._peers.wait(seconds, self.interrupted)
            read.touched()
        else:
            self._peers.wait(read.left(), self.interrupted)

    def _columns(self, read: ReadProgress) -> MessageBatch | None:
        """Takes messages of one part, or any if the first has several; returns `None` if none comes in time."""
        block = self._memory.allocate(BODY_AT + self._batch_bytes)
        runs: list[tuple[int, int]] = []
        room = min(self._batch_bytes, read.bytes_left)
        # The kernel writes large frames straight into the batch, if the bound in bytes leaves room for a whole batch.
        large = self._mean >= LARGE_BYTES and room == self._batch_bytes
        try:
            with memoryview(block) as whole, whole[BODY_AT : BODY_AT + room] as target, whole[:BODY_AT] as view:
                used = self._fill(target, view, large, read, runs)
        except omq.MultipartError:
            return self._messages(read)
        except omq.MessageTooLarge as error:
            if not read.is_empty and error.size is not None and error.size > read.bytes_left:
                read.ended = True
                return None
            body = self.socket.recv(timeout=0)
            return self._noted(MessageBatch.of_messages(self.endpoint, self.sequence, [_run(1)], [[body]]), read)
        if not runs:
            return None
        taken = MessageBatch.in_block(self.endpoint, self.sequence, runs, block, used)
        if used + taken.ends.size <= COPIED_BYTES:
            # A whole block for them would be wasted, where they are kept.
            body, ends = (pa.py_buffer(memory.to_pybytes()) for memory in (taken.body, taken.ends))
            taken = MessageBatch(self.endpoint, self.sequence, runs, body, ends)
        return self._noted(taken, read)

    def _fill(
        self, target: memoryview, view: memoryview, large: bool, read: ReadProgress, runs: list[tuple[int, int]]
    ) -> int:
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
            runs.append(_run(got))
            count += got
            read.touched()
            if not read.in_time:
                break  # a peer that goes on sending would keep us here until the batch is full
            if not large and used - before < ENOUGH_BYTES and got < left:
                # One that waits for each piece wakes for a few hundred rows at a time, and so does its peer: small rows
                # cost four times as much.
                sleep(GATHER_S)
        return used

    def _messages(self, read: ReadProgress) -> MessageBatch | None:
        """Takes messages of any number of parts; messages that do not fit stay pending."""
        runs: list[tuple[int, int]] = []
        taken: list[list[bytes]] = []
        used = 0
        while len(taken) < min(MAX_ROWS, read.rows_left) and used < self._batch_bytes:
            if not self._pending and not self._restock(read, wait=not taken):
                if taken or not read.in_time:
                    break
                continue
            parts = self._pending[0]
            if self._max_parts is not None and len(parts) > self._max_parts:
                if taken:
                    break
                raise omq.MultipartError(
                    f"a message of {len(parts)} parts came from {self.endpoint}: ask for them (columns=parts), or have"
                    " such peers refused (max_parts)"
                )
            size = sum(map(len, parts))
            if used + size > read.bytes_left and (taken or not read.is_empty):
                read.ended = not taken
                break
            taken.append(self._pending.popleft())
            used += size
            runs.append(_run(1))
        return self._noted(MessageBatch.of_messages(self.endpoint, self.sequence, runs, taken), read) if taken else None

    def _noted(self, taken: MessageBatch, read: ReadProgress) -> MessageBatch:
        """Counts what was taken, and adapts how far the socket reads ahead."""
        self.sequence += taken.count
        read.took(taken.count, taken.size)
        self._read_ahead(taken.size, taken.count)
        return taken

    def _restock(self, read: ReadProgress, wait: bool) -> bool:
        # As many messages as may be read ahead; one while their size is unknown.
        limit = min(BATCH_LIMIT, max(1, int(self._batch_bytes / self._mean))) if self._mean else 1
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


def _opened(settings: SocketSettings, endpoint: str) -> omq.Socket:
    """Opens the socket; waits for an endpoint that another process is just giving up."""
    deadline = time.monotonic() + BIND_TIMEOUT_S
    while True:
        try:
            # How much the socket may hold is known once the size of a message is.
            return settings.open(endpoint, recv_hwm=1)
        except omq.BindError:
            if time.monotonic() > deadline:
                raise
            sleep(0.05)


def _run(count: int) -> tuple[int, int]:
    """Returns an entry of `MessageBatch.runs`: *count* messages have been taken now."""
    return time.time_ns() // 1000, count


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


def read_once(settings: SocketSettings, endpoint: str) -> Iterator[pa.RecordBatch]:
    """Reads one partition once, from a connection that is opened and closed for it."""
    connection = LiveConnection(settings, endpoint)
    try:
        for taken in connection.take(ReadProgress(settings.max_rows, settings.max_bytes, settings.max_seconds)):
            yield taken.batch(settings)
    finally:
        if lost := connection.close():
            log.warning("%s: closed with %d messages that had arrived and were not read", endpoint, lost)
