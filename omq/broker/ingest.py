"""Copies messages from a ZeroMQ socket to a topic, in columns: one-part messages never become Python objects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from omq._core.blocks import encode_record
from omq.asyncio.broker import Client
from omq.broker.columns import Strings, encode_columns
from omq.broker.errors import BrokerFailed, StoreFull
from omq.broker.protocol import MAX_APPEND_BYTES, MAX_RECORDS
from omq.broker.types import Records
from omq.errors import MessageTooLarge, MultipartError, ReceiveTimeout
from omq.executor import in_thread
from omq.serving.rate_limit import RateLimit
from omq.socket import DISH, Socket
from omq.unpatched import threading

__all__ = ["ACK_TIMEOUT_S", "DEFAULT_IN_FLIGHT_BYTES", "Ingest", "IngestStats"]

log = logging.getLogger("omq.ingest")

DEFAULT_IN_FLIGHT_BYTES: Final = 8 << 20
#: A longer wait for an answer of the broker is reported.
ACK_TIMEOUT_S: Final = 5.0

_END_BYTES: Final = 4  # of the offset after a body
_RECORD_BYTES: Final = 16  # approximate overhead of a record, without body and key
#: The minimum number of batches that a bounded topic has room for.
_MIN_BATCHES: Final = 4
#: The wait for the first message of a batch, and so the longest delay of `stop`.
_POLL_INTERVAL_S: Final = 0.25
#: The wait for another message of a batch, while the batch before it is being published.
_FILL_INTERVAL_S: Final = 0.005
#: After `stop`, the time without a byte after which open connections are no longer waited for.
_DRAIN_TIMEOUT_S: Final = 2.0
_DRAIN_INTERVAL_S: Final = 0.01
#: Before a batch that the broker had no room for is published again.
_RETRY_DELAY_S: Final = 0.5


@dataclass(slots=True)
class IngestStats:
    """The counters of an `Ingest`.

    Attributes:
        received: Messages received from the socket.
        received_bytes: Bytes of their bodies and keys.
        published: Messages that the broker has acknowledged.
        batches: Requests that the broker has acknowledged.
        refused: Requests that the broker refused, for instance because its disk was full, and that were repeated.
    """

    received: int = 0
    received_bytes: int = 0
    published: int = 0
    batches: int = 0
    refused: int = 0


class Ingest:
    """Copies messages from a socket to a topic until `stop` is called.

    At most two batches are in memory: one is being published, and one is being received. Until the broker acknowledges
    the first one, no third one is received, so that the peers of the socket get back-pressure. The first part of a
    two-part message is its key; the key of a DISH's message is its group.

    Args:
        socket: A PULL, SUB, GATHER or DISH without endpoints. `close` closes it.
        client: A client of the broker without a timeout (`timeout=None`). `close` closes it.
        topic: The name of the topic.
        bind: Endpoints to bind.
        connect: Endpoints to connect.
        in_flight_bytes: The approximate size of the messages that may be received and not acknowledged. A larger
            message is received alone.

    Attributes:
        stats: The counters.
        endpoints: The resolved endpoints of the socket by name, after `start`.
    """

    def __init__(
        self,
        socket: Socket,
        client: Client,
        topic: str,
        *,
        bind: Iterable[str] = (),
        connect: Iterable[str] = (),
        in_flight_bytes: int = DEFAULT_IN_FLIGHT_BYTES,
    ) -> None:
        self.stats = IngestStats()
        self.endpoints: dict[str, str] = {}
        self._socket = socket
        self._client = client
        self._topic = topic
        self._bind, self._connect = tuple(bind), tuple(connect)
        self._batch_bytes, self._batch_rows = in_flight_bytes // 2, MAX_RECORDS
        self._data = self._ends = memoryview(b"")  # of a batch; `start` allocates them
        self._stopping = threading.Event()
        self._drained = False
        self._idle_s = 0.0  # without a byte, since `stop`
        self._bytes_in = 0  # from the connected peers, since `stop`
        self._publishing_since: float | None = None
        self._log_limit = RateLimit()
        self._wait_log_limit = RateLimit()

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Waits until the broker confirms that the topic exists, then opens the endpoints.

        Raises:
            BrokerError: The topic does not exist, or the broker refuses this client.
            OmqError: An endpoint cannot be opened.
        """
        with self._reported():
            (info,) = await self._client.topics(self._topic)
        self._allocate(info.settings)
        opened = [*map(self._socket.bind, self._bind), *map(self._socket.connect, self._connect)]
        name = self._socket.socket_type.value.lower()
        for number, endpoint in enumerate(opened, 1):
            self.endpoints[name if number == 1 else f"{name}{number}"] = endpoint

    def _allocate(self, settings: Mapping[str, Any]) -> None:
        """Allocates the memory of a batch, small enough that a bounded topic has room for several batches."""
        max_messages, max_bytes = settings.get("max_messages"), settings.get("max_bytes")
        size = self._batch_bytes
        if max_messages is not None:
            self._batch_rows = min(self._batch_rows, max(max_messages // _MIN_BATCHES, 1))
        if max_bytes is not None:
            size = min(size, max(max_bytes // _MIN_BATCHES, 1))
            self._batch_rows = min(self._batch_rows, max(size // _RECORD_BYTES, 1))
        self._data = memoryview(bytearray(size))
        self._ends = memoryview(bytearray(_END_BYTES * (self._batch_rows + 1)))

    async def run(self) -> None:
        """Copies messages until `stop` was called and all received messages are acknowledged.

        Raises:
            BrokerError: The broker refuses a batch with an error that a repetition does not cure.
        """
        publishing: asyncio.Task[None] | None = None
        try:
            while not self._drained:
                batch = await in_thread(self._receive)
                if publishing is not None and (batch or publishing.done()):
                    await publishing
                    publishing = None
                if batch:
                    self._publishing_since = time.monotonic()
                    publishing = asyncio.create_task(self._publish(batch))
            if publishing is not None:
                await publishing
        finally:
            if publishing is not None:
                publishing.cancel()
            if self.in_flight:
                log.error("%d messages that were received are not acknowledged, and are lost", self.in_flight)

    def stop(self) -> None:
        """Makes `run` receive what the peers have sent so far, and return once that is acknowledged; in any thread."""
        self._stopping.set()

    async def close(self) -> None:
        """Closes the socket and the client. Idempotent."""
        self._socket.stop()
        await self._client.close()

    # ------------------------------------------------------------------ stats

    @property
    def in_flight(self) -> int:
        """The number of messages that were received and are not acknowledged."""
        return self.stats.received - self.stats.published

    @property
    def peers(self) -> int:
        """The number of connected peers of the socket."""
        return len(self._socket.peers)

    @property
    def waiting_s(self) -> float:
        """Returns for how long the current batch has waited for its acknowledgement; 0 without one."""
        since = self._publishing_since
        return 0.0 if since is None else time.monotonic() - since

    # ------------------------------------------------------------------ receiving, in a thread

    def _receive(self) -> list[Records]:
        """Receives a batch of messages; an empty one if no message arrives in time."""
        timeout = _POLL_INTERVAL_S
        alone = False
        if self._stopping.is_set():
            self._socket.drain()
            alone = not self._socket.peers  # no more messages can arrive
            timeout = 0 if alone else _DRAIN_INTERVAL_S
        try:
            batch = (
                self._receive_messages(timeout) if isinstance(self._socket, DISH) else self._receive_columns(timeout)
            )
        except ReceiveTimeout:
            if self._stopping.is_set():
                # Also a part of a large message is progress.
                before, self._bytes_in = self._bytes_in, sum(peer.bytes_in for peer in self._socket.peers)
                self._idle_s = self._idle_s + timeout if self._bytes_in == before else 0.0
                self._drained = alone or self._idle_s > _DRAIN_TIMEOUT_S
            return []
        self._idle_s = 0.0
        return batch

    def _receive_columns(self, timeout: float) -> list[Records]:
        """Receives one-part messages. If the first message has two parts or exceeds a batch, it receives those."""
        count = size = 0
        while count < self._batch_rows and size < len(self._data):
            free = self._ends[_END_BYTES * (count + 1) :]
            try:
                count += self._socket.recv_columns(self._data, free, size, timeout=timeout)
            except (MultipartError, MessageTooLarge, ReceiveTimeout) as reason:
                if count:
                    break
                if isinstance(reason, ReceiveTimeout):
                    raise
                return self._receive_messages(timeout)
            size = self._ends.cast("i")[count]
            if self._publishing_since is None:
                break
            timeout = _FILL_INTERVAL_S
        self._count(count, size)
        return list(encode_columns(Strings(self._ends, self._data, count), target=MAX_APPEND_BYTES // 2))

    def _receive_messages(self, timeout: float) -> list[Records]:
        """Receives messages one by one, with their keys."""
        records: list[bytes] = []
        size = 0
        while len(records) < self._batch_rows and size < len(self._data):
            try:
                body, key = self._recv_keyed(timeout)
            except ReceiveTimeout:
                if not records:
                    raise
                break
            records.append(encode_record(body, key or None))
            self._count(1, len(body) + len(key))
            size += len(body) + len(key)
            timeout = 0
        return [Records(b"".join(records), len(records))]

    def _recv_keyed(self, timeout: float) -> tuple[bytes, bytes]:
        """Receives a message; returns its body and its key, which may be empty."""
        if isinstance(self._socket, DISH):
            message = self._socket.recv_message(timeout=timeout)
            return message.body, (message.group or "").encode(errors="surrogateescape")
        *keys, body = self._socket.recv_multipart(timeout=timeout)
        return body, b"".join(keys)

    def _count(self, count: int, size: int) -> None:
        self.stats.received += count
        self.stats.received_bytes += size

    # ------------------------------------------------------------------ publishing

    async def _publish(self, batch: list[Records]) -> None:
        """Publishes a batch, and repeats requests while the broker has no room.

        Each request is answered before the next one is sent, so that a repetition keeps the order.
        """
        try:
            for records in batch:
                while True:
                    try:
                        with self._reported():
                            await self._client.publish_many(self._topic, [records])
                        break
                    except (StoreFull, BrokerFailed) as refusal:
                        self.stats.refused += 1
                        if self._log_limit.passes():
                            log.warning("the broker refuses messages, which will be published again: %s", refusal)
                        await asyncio.sleep(_RETRY_DELAY_S)
                self.stats.published += records.count
                self.stats.batches += 1
        finally:
            self._publishing_since = None

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Logs that the broker does not answer the request of this context."""
        timer = asyncio.get_running_loop().call_later(ACK_TIMEOUT_S, self._report_wait)
        try:
            yield
        finally:
            timer.cancel()

    def _report_wait(self) -> None:
        if self._wait_log_limit.passes():
            log.warning(
                "the broker at %s has not answered for %g s: it cannot be reached, or topic %r is full",
                self._client.endpoint,
                ACK_TIMEOUT_S,
                self._topic,
            )
