"""The send socket: delivers messages to consumers, and takes their acknowledgements."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import omq.asyncio as omq
from omq.errors import ClosedError
from omq.event import Event, EventKind
from omq.message import PeerInfo
from omq.pzq.device.producer_server import HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S
from omq.pzq.device.queue import DeviceQueue
from omq.pzq.errors import Malformed
from omq.pzq.wire import DELIVERIES, PREFETCH, STORED, read_ack, shown
from omq.ranges import Range, ranges_of
from omq.serving.connection_events import MAX_LAST_BATCHES, ConnectionEvents, log_connection
from omq.serving.rate_limit import WARNING_INTERVAL_S, RateLimit
from omq.serving.router import TIME_SLICE_S, bind, unbind
from omq.store.async_store import AsyncStore
from omq.store.errors import StoreError
from omq.types import Security
from omq.workqueue import consumer as workqueue
from omq.workqueue.ack_deadlines import InFlight
from omq.workqueue.dispatcher import Dispatcher
from omq.workqueue.queue import WorkQueue

log = logging.getLogger("omq.pzq")

#: Messages of all consumers in flight.
MAX_IN_FLIGHT: Final = 1 << 17
#: Messages that a consumer gets, and acknowledgements that are received, in one turn.
MAX_BATCH_MESSAGES: Final = 512
#: Bytes of records that are delivered before acknowledgements are received, about.
_PUMP_BYTES: Final = 256 << 10
#: Bytes of an acknowledgement beyond which its connection is closed.
MAX_ACK_BYTES: Final = 1 << 20
#: Keys of expired deliveries that are kept before those of finished messages are dropped.
_MIN_LATE_KEYS: Final = 1024


#: The consumer of a message in flight, its position (the queue's index and the id), and the bytes of its body.
InFlightMessage: TypeAlias = "tuple[DeviceConsumer, int, int]"


class DeviceConsumer(workqueue.QueueConsumer):
    """A connection of a consumer.

    Attributes:
        identity: Its identity in the socket.
        address: Its remote address.
        wants_delivery_count: True if it gets the delivery count of each message.
        sent: At least the bytes of keys and bodies that were sent to it.
        stalled: True if it hangs and some of these bytes are still queued: it does not read.
        acked: Positions that it has acknowledged in this batch.
    """

    def __init__(self, server: ConsumerServer, peer: PeerInfo, address: str) -> None:
        wanted = peer.properties.get(PREFETCH.lower(), b"")
        prefetch = int(wanted) if wanted.isdigit() and len(wanted) < 10 else 0
        # A consumer that sends a prefetch works on its messages in order.
        super().__init__(
            server.dispatcher,
            server.timeout,
            prefetch or MAX_IN_FLIGHT,
            in_order=prefetch > 0,
            tick=server.reaper_frequency,
        )
        self._server = server
        self.identity = peer.identity
        self.address = address
        self.wants_delivery_count = peer.properties.get(DELIVERIES.lower()) == b"1"
        self.sent = 0
        self.stalled = False
        self.acked: list[int] = []

    def has_room(self) -> bool:
        return not self.stalled

    def fits(self, queue: WorkQueue, header: bytes, records: memoryview, count: int) -> int:
        return self._server.fits(queue, header, records, count)

    def send(self, queue: WorkQueue, header: bytes, records: memoryview, count: int, tries: int) -> None:
        self._server.send(self, queue, header, records, count, tries)

    def failed(self, error: Exception) -> None:
        self._server.release(self.in_flight)
        self.end()

    def _redeliver_overdue(self, ranges: list[Range[InFlight]]) -> None:
        self._server.expired(ranges)
        super()._redeliver_overdue(ranges)
        self._server.dispatcher.wake()  # others may take messages now, even if none of these is redelivered


class ConsumerServer:
    """Delivers queues to consumers, in turn. Lives in one event loop.

    Args:
        name: The name of its socket in the log.
        store: The store.
        queues: The queues that it delivers, the oldest message first.
        ack_timeout: Microseconds after which an unacknowledged message is redelivered.
        reaper_frequency: Microseconds between two checks of the ack deadlines.
        inflight_size: Bytes of bodies in flight; a larger body is delivered alone.

    Attributes:
        dispatcher: The dispatcher of its queues.
        timeout: `ack_timeout` in seconds.
        reaper_frequency: The interval of the checks in seconds.
        bytes: Bytes of bodies in flight.
        in_flight: The messages in flight, by key.
        consumers: The connected consumers, by identity.
        counts: Counters of deliveries and acknowledgements: `delivered`, `redelivered`, `acknowledged`, `returned`,
            `expired`, `refused`.
    """

    def __init__(
        self,
        name: str,
        store: AsyncStore,
        queues: Sequence[DeviceQueue],
        ack_timeout: int,
        reaper_frequency: int,
        inflight_size: int,
    ) -> None:
        self.bytes = 0
        self.in_flight: dict[bytes, InFlightMessage] = {}
        self.consumers: dict[bytes, DeviceConsumer] = {}
        self.counts: Counter[str] = Counter()
        self.timeout = ack_timeout / 1e6
        self.reaper_frequency = reaper_frequency / 1e6
        self._name = name
        self._queues = queues
        self._timeout_frame = b"%d" % ack_timeout
        self._limit = inflight_size
        self._keys: dict[int, bytes] = {}  # of what is in flight, by position
        #: Expired deliveries by key: the consumer and the position.
        self._late: dict[bytes, tuple[DeviceConsumer, int]] = {}
        self._max_late = _MIN_LATE_KEYS
        self._acking: list[DeviceConsumer] = []  # consumers with positions in `acked`
        self._decoded: list[tuple[int, bytes, list[bytes], int]] | None = None  # the block that `fits` has decoded
        self._outgoing: list[tuple[bytes, ...]] = []
        self._next_size = 0  # bytes of the next body, which did not fit
        self._sent_at = b""  # microseconds since 1970, for the deliveries of this turn
        self._woken = False
        self._stopping = False  # nothing more is delivered
        self._paused = False
        self._refusal_log = RateLimit(WARNING_INTERVAL_S)
        self.dispatcher: Dispatcher[DeviceConsumer] = Dispatcher(
            store, [queue.work for queue in queues], MAX_BATCH_MESSAGES, self.wake, self._unreadable
        )
        for queue in queues:
            queue.wake = self.dispatcher.wake

    # ------------------------------------------------------------------ lifecycle

    def start(self, endpoint: str, security: Security | None) -> str:
        """Binds the socket; returns the resolved endpoint. Raises as `omq.serving.router.bind`."""
        # Compatible with the DEALER of the original, but each message can be sent to a chosen consumer.
        self._socket = omq.ROUTER(
            router_rename=True,
            send_hwm=0,  # unread messages are in flight, which is bounded
            recv_hwm=4 * MAX_BATCH_MESSAGES,
            max_message_size=MAX_ACK_BYTES,
            max_parts=16,
            heartbeat_interval=HEARTBEAT_INTERVAL_S,
            heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
            security=security,
            linger=1.0,
        )
        self._events = ConnectionEvents(self._socket, self._on_event, log, self._idle)
        (bound,) = bind(self._socket, self._events, [endpoint])
        self._loop = asyncio.get_running_loop()
        self._serving = self._loop.create_task(self._serve(), name=f"omq pzq: {self._name}")
        self._events.start(f"omq pzq: connections of {self._name}")
        self._stall_timer = self._loop.call_later(self.reaper_frequency, self._check_stalled)
        return bound

    async def pause(self) -> None:
        """Stops deliveries, and passes all received acknowledgements to the store."""
        if not hasattr(self, "_serving") or self._paused:
            return
        self._stopping = self._paused = True
        self._stall_timer.cancel()
        unbind(self._socket)
        for _ in range(MAX_LAST_BATCHES):  # acknowledgements that have arrived count
            if not self._events.messages_wait():
                break
            await asyncio.sleep(0)
        await self._events.stop()
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        for consumer in self.consumers.values():
            consumer.end()
        self._save()

    async def close(self) -> None:
        """Closes the socket. Idempotent."""
        if not hasattr(self, "_serving"):
            return
        await self.pause()
        await self._socket.close()
        self._events.close()

    # ------------------------------------------------------------------ connections

    def _on_event(self, event: Event) -> None:
        log_connection(log, self._name, event)
        peer = event.peer
        if event.kind is EventKind.HANDSHAKE_SUCCEEDED and peer is not None:
            self._add_consumer(peer, event.remote_address)
        elif event.kind is EventKind.DISCONNECTED and peer is not None:
            if peer.identity in self.consumers:
                self._events.leave(peer.identity)  # its last acknowledgements are handled first
        elif event.kind is EventKind.MISSED:
            for one in self._events.recount(self.consumers):
                self._add_consumer(one, one.endpoint)

    def _idle(self) -> None:
        """Handles disconnects, and delivers, when events came without messages."""
        self._remove_gone()
        self.wake()

    def _add_consumer(self, peer: PeerInfo, address: str) -> None:
        consumer = self.consumers[peer.identity] = DeviceConsumer(self, peer, address)
        self.dispatcher.add(consumer)

    def _remove_gone(self) -> None:
        """Removes disconnected consumers whose last acknowledgements are handled, and requeues their messages."""
        for identity in self._events.take_gone():
            consumer = self.consumers.pop(identity)
            self.counts["returned"] += consumer.in_flight.count
            self.release(consumer.in_flight)
            consumer.end()

    def _check_stalled(self) -> None:
        """Finds hanging consumers that do not read, which get no messages until they read."""
        for peer in self._socket.peers if any(one.hangs or one.stalled for one in self.consumers.values()) else ():
            consumer = self.consumers.get(peer.identity)
            if consumer is None:
                continue
            was_stalled, consumer.stalled = consumer.stalled, consumer.hangs and peer.bytes_out < consumer.sent
            # `bytes_out` includes frame headers, which `sent` does not count: they would hide unsent bytes.
            consumer.sent = max(consumer.sent, peer.bytes_out)
            if was_stalled and not consumer.stalled:
                consumer.more(0)
        self._stall_timer = self._loop.call_later(self.reaper_frequency, self._check_stalled)

    # ------------------------------------------------------------------ receiving

    async def _serve(self) -> None:
        socket = self._socket
        slice_began = time.monotonic()
        while True:
            if time.monotonic() - slice_began > TIME_SLICE_S:
                await asyncio.sleep(0)
                slice_began = time.monotonic()
            try:
                batch: list[Any] = await socket.recv_many(MAX_BATCH_MESSAGES)
            except ClosedError:
                return
            self._events.handle()
            in_flight, keys, size = self.in_flight, self._keys, 0
            for message in batch:
                entry = in_flight.get(message[1]) if len(message) == 3 and message[2] == STORED else None
                if entry is None or entry[0].identity != message[0]:
                    self._receive(message)
                    continue
                # The fast path of nearly all acknowledgements; `_receive` handles the others.
                consumer, position, bytes_ = entry
                del in_flight[message[1]], keys[position]
                size += bytes_
                if not consumer.acked:
                    self._acking.append(consumer)
                consumer.acked.append(position)
            self.bytes -= size
            self._acknowledge()
            self._remove_gone()
            self._pump()

    def _acknowledge(self) -> None:
        """Finishes the messages that consumers have acknowledged in this batch."""
        acking, self._acking = self._acking, []
        for consumer in acking:
            acked, consumer.acked = consumer.acked, []
            self.counts["acknowledged"] += consumer.ack(ranges_of(acked))

    def _receive(self, message: list[bytes]) -> None:
        consumer = self.consumers.get(message[0])
        if consumer is None:
            return
        try:
            key, done = read_ack(message)
        except Malformed as error:
            self._refuse(consumer, str(error))
            return
        in_flight = self.in_flight.get(key)
        if in_flight is not None and in_flight[0] is consumer:
            self._acknowledge()  # keeps the order of its answers
            position = in_flight[1]
            self.release([Range(position, position, None)])
            if done:
                self.counts["acknowledged"] += consumer.ack([(position, position)])
            else:
                self.counts["returned"] += consumer.nack([(position, position)])
            return
        late = self._late.get(key)
        if late is None or late[0] is not consumer:
            what = "no message in flight" if in_flight is None else "a message that another consumer has"
            self._refuse(consumer, f"{shown(key)} is the key of {what}")
        elif done:
            del self._late[key]
            self.counts["acknowledged"] += consumer.ack([(late[1], late[1])])
        else:  # it waits for redelivery already
            consumer.nack([(late[1], late[1])])

    def _refuse(self, consumer: DeviceConsumer, why: str) -> None:
        """Logs an invalid acknowledgement: the protocol has no answer to it."""
        self.counts["refused"] += 1
        if self._refusal_log.passes():
            log.warning("%s: ignoring an invalid acknowledgement from %s: %s", self._name, consumer.address, why)

    def release(self, ranges: Iterable[Range[Any]]) -> list[tuple[bytes, InFlightMessage]]:
        """Removes messages from those in flight; returns them."""
        released = []
        for range_ in ranges:
            for position in range(range_.first, range_.last + 1):
                if (key := self._keys.pop(position, None)) is not None:
                    in_flight = self.in_flight.pop(key)
                    self.bytes -= in_flight[2]
                    released.append((key, in_flight))
        return released

    def expired(self, ranges: list[Range[InFlight]]) -> None:
        """Records deliveries whose ack deadline has passed."""
        expired = self.release(ranges)
        self.counts["expired"] += len(expired)
        log.info("%s: %d messages were not acknowledged in time", self._name, len(expired))
        if len(self._late) > self._max_late:
            queues = self.dispatcher.queues
            self._late = {
                key: late
                for key, late in self._late.items()
                if any(queues[late[1] >> 64].waiting_global_ids(late[1], late[1]))
            }
            self._max_late = max(_MIN_LATE_KEYS, 2 * len(self._late))
        self._late.update((key, in_flight[:2]) for key, in_flight in expired)

    # ------------------------------------------------------------------ sending

    def messages_arrived(self) -> None:
        """Wakes the deliveries after new messages. Other causes call `wake` directly."""
        if self.consumers:
            self.wake()

    def wake(self) -> None:
        """Schedules deliveries and the storing of acknowledgements."""
        if not self._woken and not self._stopping:
            self._woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Delivers messages within the limits, and stores acknowledgements."""
        self._woken = False
        if self._stopping:
            return
        self._sent_at = b"%d" % (time.time_ns() // 1000)
        # A body that did not fit is read again once it fits, not after each acknowledgement.
        if self.bytes + max(self._next_size, 1) <= self._limit or not self.in_flight:
            self._next_size = 0
            if self.dispatcher.pump(self._ready, _PUMP_BYTES):
                self.wake()
            out, self._outgoing = self._outgoing, []
            if out:
                try:
                    self._socket.send_many_nowait(out)
                except ClosedError:
                    self._stopping = True
                self.counts["delivered"] += len(out)
        self._save()

    def _ready(self) -> list[WorkQueue]:
        """Returns the queues with messages to deliver, the one with the oldest message first."""
        ready = [queue for queue in self._queues if queue.is_ready]
        if len(ready) > 1:
            ready.sort(key=DeviceQueue.oldest)
        return [queue.work for queue in ready]

    def _unreadable(self, work: WorkQueue, error: StoreError) -> None:
        self._queues[work.base >> 64].block()
        self.wake()

    def fits(self, work: WorkQueue, header: bytes, records: memoryview, count: int) -> int:
        """Returns the number of messages of a block that fit into the limits."""
        self._decoded = None
        count = min(count, MAX_IN_FLIGHT - len(self.in_flight))
        room = self._limit - self.bytes
        if len(records) <= room:  # bodies are smaller than their records
            return count
        self._decoded = list(self._queues[work.base >> 64].messages_of(header, records))
        alone = not self.in_flight
        for index, (_, _, _, size) in enumerate(self._decoded[:count]):
            if size > room and (index or not alone):
                self._next_size = size
                return index
            room -= size
        return count

    def send(
        self, consumer: DeviceConsumer, work: WorkQueue, header: bytes, records: memoryview, count: int, tries: int
    ) -> None:
        """Sends the first messages of a block."""
        base, in_flight, keys, late = work.base, self.in_flight, self._keys, self._late
        messages = self._decoded or self._queues[base >> 64].messages_of(header, records)
        self._decoded = None
        identity, sent, timeout = consumer.identity, self._sent_at, self._timeout_frame
        if consumer.wants_delivery_count:
            timeout_and_tries: tuple[bytes, ...] = (timeout, b"%d" % tries, b"")
        else:
            timeout_and_tries = (timeout, b"")
        out, bytes_ = self._outgoing, 0
        for id, key, parts, size in islice(messages, count):
            position = base + id
            in_flight[key] = (consumer, position, size)
            keys[position] = key
            bytes_ += size
            out.append((identity, key, sent, *timeout_and_tries, *parts))
            if late:
                late.pop(key, None)
        self.bytes += bytes_
        consumer.sent += bytes_ + count * len(key)
        if tries > 1:
            self.counts["redelivered"] += count

    def _save(self) -> None:
        for queue in self._queues:
            queue.save()
