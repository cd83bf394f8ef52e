"""Delivers the messages of work queues to consumers in turn."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar, cast

from omq.store.async_store import AsyncStore
from omq.store.errors import StoreError
from omq.store.interface import Reader
from omq.workqueue.consumer import QueueConsumer
from omq.workqueue.queue import WorkQueue

log = logging.getLogger("omq.store")

#: Bytes of records that one turn of the loop delivers.
TURN_BYTES: Final = 1 << 20


C = TypeVar("C", bound=QueueConsumer)


class Dispatcher(Generic[C]):
    """Delivers the messages of queues, the oldest first, each to one of its consumers.

    Args:
        store: The store of the queues.
        queues: The queues. This sets their `base`.
        max_batch: The highest number of messages that a consumer gets before it is the next one's turn.
        wake: Schedules a call of `pump`.
        unreadable: Called with a queue that cannot be read now, and the error.

    Attributes:
        queues: The queues.
        consumers: The consumers, in the order of `add`.
        available: The consumers that have credit and room, the next one first.
    """

    def __init__(
        self,
        store: AsyncStore,
        queues: Sequence[WorkQueue],
        max_batch: int,
        wake: Callable[[], None],
        unreadable: Callable[[WorkQueue, StoreError], None],
    ) -> None:
        self.queues = queues
        for index, queue in enumerate(queues):
            queue.base = index << 64
        self.consumers: dict[C, None] = {}
        self.available: OrderedDict[QueueConsumer, None] = OrderedDict()
        self._store = store
        self._max_batch = max_batch
        self._wake = wake
        self._unreadable = unreadable

    @property
    def in_flight(self) -> int:
        """The number of messages in flight. Any thread may read it."""
        return sum(consumer.in_flight.count for consumer in tuple(self.consumers))

    def add(self, consumer: C) -> None:
        """Delivers to a consumer from now on."""
        self.consumers[consumer] = None
        if consumer.credit > 0:
            self.consumer_ready(consumer)

    def consumer_ready(self, consumer: QueueConsumer) -> None:
        """Makes a consumer available: it has credit or room."""
        self.available[consumer] = None
        self._wake()

    def consumer_ended(self, consumer: QueueConsumer) -> None:
        """Removes a consumer that has ended."""
        self.consumers.pop(cast("C", consumer), None)
        self.available.pop(consumer, None)
        for queue in self.queues:
            queue.touch()
        self.wake()  # `pump` may have skipped others for it

    def wake(self) -> None:
        """Schedules a delivery, if a consumer is available."""
        if self.available:
            self._wake()

    def pump(self, ready: Callable[[], Sequence[WorkQueue]], limit: int = TURN_BYTES) -> bool:
        """Delivers ready messages.

        Args:
            ready: Returns the queues that have ready messages, the one with the oldest message first.
            limit: The approximate limit of the bytes of records.

        Returns:
            Whether `pump` has to be called again.
        """
        left = limit
        while left > 0 and self.available and (queues := ready()):
            queue = queues[0]
            try:
                with self._store.store.read(queue.id) as reader:
                    # Several queues take turns after each block, by the age of their oldest message.
                    left, more = self._pump(queue, reader, left, single=len(queues) > 1)
            except StoreError as error:
                log.error("topic %d cannot be read: %s", queue.id, error)
                self._unreadable(queue, error)
                return False
            if not more:
                return False
        return bool(self.available and ready())

    def _pump(self, queue: WorkQueue, reader: Reader, left: int, *, single: bool) -> tuple[int, bool]:
        """Delivers a single block of a queue, or as many as `left` bytes allow.

        Returns:
            The bytes left, and whether to continue.
        """
        max_batch = min(-(-queue.ready // len(self.available)), self._max_batch)
        while left > 0 and queue.ready:
            consumer, allowed, on_trial = self._next_consumer()
            if consumer is None:
                return left, False
            credit = consumer.credit
            delivered, more = queue.serve(reader, consumer, min(max_batch, allowed), 1 if single else left)
            if consumer.credit < credit:  # a consumer that had no room for a message keeps its turn
                self._had_turn(consumer, on_trial=on_trial)
            left -= delivered
            if single or not more:
                return left, more
        return left, True

    def _next_consumer(self) -> tuple[QueueConsumer | None, int, bool]:
        """Returns the consumer whose turn it is, the messages that it may get, and whether that is a trial."""
        while self.available and not (consumer := next(iter(self.available))).hangs:  # nearly always
            if consumer.credit > 0 and consumer.has_room():
                return consumer, consumer.credit, False
            del self.available[consumer]
        now = asyncio.get_running_loop().time()
        others: bool | None = None  # whether there is a consumer that does not hang
        for consumer in tuple(self.available):
            hangs = consumer.hangs
            if hangs and others is None:
                others = any(not one.hangs for one in self.consumers)
            if hangs and others and consumer.backoff_until > now:
                continue  # others can process the messages meanwhile
            if consumer.credit > 0 and consumer.has_room():
                on_trial = hangs and bool(others)
                return consumer, 1 if on_trial else consumer.credit, on_trial
            del self.available[consumer]
        return None, 0, False

    def _had_turn(self, consumer: QueueConsumer, *, on_trial: bool) -> None:
        """Moves a consumer to the end of the order."""
        if consumer in self.available:  # it has not ended
            self.available.move_to_end(consumer)
            if on_trial:
                consumer.start_trial()
