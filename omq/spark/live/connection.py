"""Reads a live socket. Bodies are copied once, from the receive buffer into Arrow's memory."""

from __future__ import annotations

import errno
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
from omq.spark.live.columns import BODY_OFFSET_BYTES, MAX_BATCH_ROWS, MessageBatch
from omq.spark.live.peers import MAX_EVENT_WAIT_S, Peers
from omq.spark.live.settings import SocketSettings
from omq.unpatched import sleep, threading

log = logging.getLogger("omq.spark")

MAX_COPIED_BYTES: Final = 65536  # a batch up to this size is copied, so that its block is free again
LARGE_MESSAGE_BYTES: Final = 65536  # from this mean size on, each message is received by itself
MIN_CALL_BYTES: Final = 1 << 18  # a call that receives less is followed by a pause
CALL_PAUSE_S: Final = 0.0005
MAX_CALL_MESSAGES: Final = 64  # of a call for messages that may have several parts
MAX_WAIT_S: Final = 0.25  # of one call
BIND_TIMEOUT_S: Final = 5.0  # for another process to close the endpoint
BIND_RETRY_DELAY_S: Final = 0.05
FIRST_PEER_TIMEOUT_S: Final = 10.0  # of availableNow without connectTimeout

DRAIN_POLL_INTERVAL_S: Final = 0.005  # between two checks for connected peers
DRAIN_IDLE_TIMEOUT_S: Final = 2.0  # without a byte from a peer
DRAIN_TIMEOUT_S: Final = 20.0  # of the whole drain: a peer that does not know it sends for ever


class ReadProgress:
    """The limits of a read, the first of which ends it, and its progress.

    Args:
        max_rows: The maximum number of messages; `None` for no limit.
        max_bytes: The maximum number of bytes of their bodies, `None` for no limit; the first message is taken whatever
            its size.
        max_seconds: The time limit in seconds, from now; `None` for no limit.
        quiet_seconds: Seconds without a message after which the socket is drained; `None` unless the query has
            `availableNow`.

    Attributes:
        available_now: Whether the read ends with the messages that are there now, and drains the socket.
        is_empty: Whether no message has been taken.
        last_arrival: The time of the last message.
        next_too_large: Whether the next message exceeds *bytes_left*.
        timed_out: Whether the read ended because its time was up.
        drain_wait_s: The longest wait of a call in seconds once the socket drains; `None` before.
        interrupted: While this is set, the read ends as if its time were up.
    """

    def __init__(
        self,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        quiet_seconds: float | None = None,
    ) -> None:
        self.rows_left = sys.maxsize if max_rows is None else max_rows
        self.bytes_left = sys.maxsize if max_bytes is None else max_bytes
        self.last_arrival = time.monotonic()
        self.deadline = math.inf if max_seconds is None else self.last_arrival + max_seconds
        self._quiet_seconds = math.inf if quiet_seconds is None else quiet_seconds
        self.available_now = quiet_seconds is not None
        self.is_empty = True
        self.next_too_large = self.timed_out = False
        self.drain_wait_s: float | None = None
        self.interrupted = threading.Event()

    @property
    def bounded(self) -> bool:
        """Returns whether the limit of rows or bytes is reached."""
        return self.next_too_large or self.rows_left <= 0 or self.bytes_left <= 0

    @property
    def in_time(self) -> bool:
        """Returns whether the time is not up, the source not quiet or drained, and the read not interrupted."""
        return self.drain_wait_s is None and self.remaining_s() > 0 and not self.interrupted.is_set()

    def remaining_s(self) -> float:
        """Returns the seconds until the read ends if nothing arrives."""
        return min(self.deadline, self.last_arrival + self._quiet_seconds) - time.monotonic()

    def wait_s(self) -> float:
        """Returns the longest wait of the next call in seconds."""
        return max(0.0, min(MAX_WAIT_S, self.remaining_s())) if self.drain_wait_s is None else self.drain_wait_s


class LiveConnection:
    """A socket for reading, with the messages that were received and are not in a batch yet.

    Attributes:
        sequence: The sequence of the next message.
        interrupted: While this is set, every read ends within `MAX_WAIT_S`.
    """

    def __init__(self, settings: SocketSettings, endpoint: str, pool: BufferPool | None = None) -> None:
        self.socket = _opened(settings, endpoint)
        # Without a peer, a socket that listens only logs a warning.
        fails = settings.fail_on_connect_timeout and endpoint in settings.connect
        self._peers = Peers(self.socket, endpoint, settings.connect_timeout, fails)
        self.endpoint = endpoint
        self.sequence = 0
        self._batch_bytes = settings.batch_bytes
        self._max_parts = None if "parts" in settings.read_columns else 2 if settings.socket == "SUB" else 1
        self._recv_hwm = int(dict(settings.options).get("recv_hwm", omq.Options().recv_hwm))
        self._pending: deque[list[bytes]] = deque()
        self._mean_bytes = 0.0
        self._pool = pool or BufferPool()
        self._drain: _Drain | None = None
        self.interrupted = threading.Event()

    @property
    def ready(self) -> bool:
        """Returns whether a read would take a message, or raise an error, at once."""
        return bool(self._pending or self.socket.poll(0, omq.POLL_IN) or self._peers.is_overdue)

    def stats(self) -> dict[str, Any]:
        """Returns the counts of connected peers, of reconnects, and of waiting and taken messages."""
        stats = self._peers.stats()
        waiting = stats.pop("arrived") - self.sequence
        return {**stats, "waiting": max(waiting, len(self._pending)), "taken": self.sequence}

    # ------------------------------------------------------------------ read-ahead

    def _set_recv_hwm(self, messages: int) -> None:
        """Sets the maximum number of messages that wait in the socket; 1 ends its read-ahead."""
        if self.socket.options.recv_hwm != messages and not self.socket.closed:
            self.socket.set_options(recv_hwm=messages)

    def _adapt_read_ahead(self, size: int, count: int) -> None:
        """Limits the bytes that wait in the socket. `recv_hwm` counts messages, so it depends on their mean size."""
        mean = size / count
        # A larger mean counts at once, a smaller one gradually.
        self._mean_bytes = mean if mean > self._mean_bytes else 0.75 * self._mean_bytes + 0.25 * mean
        messages = max(1, int(self._batch_bytes / max(self._mean_bytes, 1.0)))
        self._set_recv_hwm(min(messages, self._recv_hwm) if self._recv_hwm else messages)

    # ------------------------------------------------------------------ reading

    def take(self, read: ReadProgress) -> Iterator[MessageBatch]:
        """Yields messages until a limit is reached; then ends the read-ahead.

        With `availableNow`, a read that ends before its limit of rows or bytes drains the socket.
        """
        read.interrupted = self.interrupted
        try:
            if self._drain is None:
                self._await_peer(read)
                while not read.bounded and read.in_time:
                    taken = self._take_batch(read)
                    if taken is not None:
                        yield taken
                read.timed_out = not read.bounded and time.monotonic() >= read.deadline
            if read.available_now:
                yield from self._take_drained(read)
        finally:
            self._set_recv_hwm(1)

    def _take_drained(self, read: ReadProgress) -> Iterator[MessageBatch]:
        """Drains the socket, and yields the messages that are on their way, within the limits."""
        may_continue = True
        while may_continue and not read.bounded and not self.interrupted.is_set():
            drain = self._drain = self._drain or _Drain(self.socket, self.endpoint)
            read.drain_wait_s = drain.wait_s()
            taken = self._take_batch(read)
            may_continue = drain.may_continue(taken is not None)
            if taken is not None:
                yield taken

    def _await_peer(self, read: ReadProgress) -> None:
        """Waits for the first peer: until connectTimeout with `availableNow`, otherwise until the end of the read."""
        if read.available_now:
            remaining_s = self._peers.remaining_s
            seconds = FIRST_PEER_TIMEOUT_S if remaining_s == math.inf else max(remaining_s, 0) + MAX_EVENT_WAIT_S
            self._peers.wait(seconds, self.interrupted)
            read.last_arrival = time.monotonic()
        else:
            self._peers.wait(read.remaining_s(), self.interrupted)

    def _take_batch(self, read: ReadProgress) -> MessageBatch | None:
        """Takes messages of one part, or of any number if the first has several.

        Returns:
            The messages; `None` if none arrives in time, or the next one exceeds the limit of bytes.
        """
        if self._pending:
            return self._take_any_parts(read)
        block = self._pool.allocate(BODY_OFFSET_BYTES + self._batch_bytes)
        runs: list[tuple[int, int]] = []
        room = min(self._batch_bytes, read.bytes_left)
        # The kernel writes large frames straight into the block, if a whole batch is within the limit.
        large = self._mean_bytes >= LARGE_MESSAGE_BYTES and room == self._batch_bytes
        try:
            with (
                memoryview(block) as whole,
                whole[BODY_OFFSET_BYTES : BODY_OFFSET_BYTES + room] as target,
                whole[:BODY_OFFSET_BYTES] as ends,
            ):
                used = self._fill_block(target, ends, large, read, runs)
        except omq.MultipartError:
            return self._take_any_parts(read)
        except omq.MessageTooLarge as error:
            if not read.is_empty and error.size is not None and error.size > read.bytes_left:
                read.next_too_large = True
                return None
            body = self.socket.recv(timeout=0)
            return self._record(MessageBatch.of_messages(self.endpoint, self.sequence, [_run(1)], [[body]]), read)
        if not runs:
            return None
        taken = MessageBatch.in_block(self.endpoint, self.sequence, runs, block, used)
        if used + taken.ends.size <= MAX_COPIED_BYTES:
            # An uncommitted batch would keep its whole block.
            body, ends = (pa.py_buffer(buffer.to_pybytes()) for buffer in (taken.body, taken.ends))
            taken = MessageBatch(self.endpoint, self.sequence, runs, body, ends)
        return self._record(taken, read)

    def _fill_block(
        self, target: memoryview, ends: memoryview, large: bool, read: ReadProgress, runs: list[tuple[int, int]]
    ) -> int:
        """Receives one-part messages until the block is full, or none arrives in time; returns their bytes.

        Raises:
            MultipartError: The first message has several parts; it stays in the socket.
            MessageTooLarge: The first message is larger than the block; it stays in the socket.
        """
        used = count = 0
        while (left := min(read.rows_left, MAX_BATCH_ROWS) - count) > 0 and used < len(target):
            before = used
            try:
                if large:
                    used += self.socket.recv_into(target[used:], timeout=read.wait_s())
                    ends[4 * count + 4 : 4 * count + 8] = used.to_bytes(4, sys.byteorder)
                    received = 1
                else:
                    received = self.socket.recv_columns(
                        target, ends[4 * (count + 1) : 4 * (count + 1 + left)], used, timeout=read.wait_s()
                    )
                    used = int.from_bytes(ends[4 * (count + received) : 4 * (count + received + 1)], sys.byteorder)
            except omq.ReceiveTimeout:
                if read.in_time:
                    continue
                break
            except (omq.MessageTooLarge, omq.MultipartError):
                if not count:
                    raise
                break
            runs.append(_run(received))
            count += received
            read.last_arrival = time.monotonic()
            if not read.in_time:
                break  # otherwise a peer that sends all the time would delay the end until the block is full
            if not large and used - before < MIN_CALL_BYTES and received < left:
                # Without a pause, this process and its peer wake for a few hundred rows at a time, and small rows cost
                # four times as much.
                sleep(CALL_PAUSE_S)
        return used

    def _take_any_parts(self, read: ReadProgress) -> MessageBatch | None:
        """Takes messages of any number of parts; messages beyond the limits stay pending."""
        runs: list[tuple[int, int]] = []
        taken: list[list[bytes]] = []
        used = 0
        while len(taken) < min(MAX_BATCH_ROWS, read.rows_left) and used < self._batch_bytes:
            if not self._pending and not self._receive_pending(read, wait=not taken):
                if taken or not read.in_time:
                    break
                continue
            parts = self._pending[0]
            if self._max_parts is not None and len(parts) > self._max_parts:
                if taken:
                    break
                raise omq.MultipartError(
                    f"a message of {len(parts)} parts arrived from {self.endpoint}; read the column 'parts' (option"
                    f" 'columns'), or refuse such peers (option max_parts={self._max_parts})"
                )
            size = sum(map(len, parts))
            if used + size > read.bytes_left and (taken or not read.is_empty):
                read.next_too_large = not taken
                break
            taken.append(self._pending.popleft())
            used += size
            runs.append(_run(1))
        if not taken:
            return None
        return self._record(MessageBatch.of_messages(self.endpoint, self.sequence, runs, taken), read)

    def _record(self, taken: MessageBatch, read: ReadProgress) -> MessageBatch:
        """Counts the messages of a batch, and adapts the read-ahead to their size."""
        self.sequence += taken.count
        read.rows_left -= taken.count
        read.bytes_left -= taken.size
        read.is_empty = False
        self._adapt_read_ahead(taken.size, taken.count)
        return taken

    def _receive_pending(self, read: ReadProgress, wait: bool) -> bool:
        """Receives messages into the pending ones; returns False if none arrives in time."""
        # As many as the read-ahead has; one while their size is unknown.
        limit = min(MAX_CALL_MESSAGES, max(1, int(self._batch_bytes / self._mean_bytes))) if self._mean_bytes else 1
        try:
            found: list[Any] = self.socket.recv_many(limit, timeout=read.wait_s() if wait else 0)
        except omq.ReceiveTimeout:
            return False
        self._pending.extend(one if isinstance(one, list) else [one] for one in found)
        read.last_arrival = time.monotonic()
        return True

    # ------------------------------------------------------------------ the end

    def close(self) -> int:
        """Drains and closes the socket; returns the number of messages that were not taken."""
        lost = len(self._pending)
        self._pending.clear()
        drain = self._drain or _Drain(self.socket, self.endpoint)
        may_continue = True
        while may_continue:
            try:
                received = len(self.socket.recv_many(MAX_CALL_MESSAGES, timeout=drain.wait_s()))
            except omq.ReceiveTimeout:
                received = 0
            lost += received
            may_continue = drain.may_continue(received > 0)
        self.socket.stop()
        return lost


def _opened(settings: SocketSettings, endpoint: str) -> omq.Socket:
    """Opens the socket; retries while another process still has the endpoint."""
    deadline = time.monotonic() + BIND_TIMEOUT_S
    while True:
        try:
            # The read-ahead begins once the size of a message is known.
            return settings.open(endpoint, recv_hwm=1)
        except omq.BindError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            sleep(BIND_RETRY_DELAY_S)


def _run(count: int) -> tuple[int, int]:
    """Returns an entry of `MessageBatch.runs` for *count* messages that are taken now."""
    return time.time_ns() // 1000, count


class _Drain:
    """The drain of a socket: its peers stop sending, and the caller receives the messages that are on their way."""

    def __init__(self, socket: omq.Socket, endpoint: str) -> None:
        self._socket = socket
        self._endpoint = endpoint
        socket.set_options(recv_hwm=MAX_CALL_MESSAGES)
        socket.drain()
        self._started_at = self._last_progress_at = time.monotonic()
        self._bytes_in = 0
        self._peers_gone = False

    def wait_s(self) -> float:
        """Returns the longest wait for the next message in seconds."""
        self._peers_gone = not self._socket.peers
        return 0.0 if self._peers_gone else DRAIN_POLL_INTERVAL_S

    def may_continue(self, received: bool) -> bool:
        """Returns whether more messages may arrive. *received*: whether one has arrived since `wait_s`."""
        if self._peers_gone:
            return received
        # Also a part of a large message is progress.
        bytes_in, now = sum(peer.bytes_in for peer in self._socket.peers), time.monotonic()
        if received or bytes_in != self._bytes_in:
            self._bytes_in, self._last_progress_at = bytes_in, now
        if now <= min(self._last_progress_at + DRAIN_IDLE_TIMEOUT_S, self._started_at + DRAIN_TIMEOUT_S):
            return True
        log.warning("%s: closed before all peers had ended; messages on their way are lost", self._endpoint)
        return False


def read_once(settings: SocketSettings, endpoint: str) -> Iterator[pa.RecordBatch]:
    """Reads one partition once, from a connection that is opened and closed for it."""
    connection = LiveConnection(settings, endpoint)
    try:
        for taken in connection.take(ReadProgress(settings.max_rows, settings.max_bytes, settings.max_seconds)):
            yield taken.record_batch(settings)
    finally:
        if lost := connection.close():
            log.warning("%s: closed; %d messages had arrived and were not read", endpoint, lost)
