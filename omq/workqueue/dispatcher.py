"""Delivers work queues to consumers, in turn."""

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

#: Bytes of records that are delivered before others have their turn.
TURN_BYTES: Final = 1 << 20


C = TypeVar("C", bound=QueueConsumer)


class Dispatcher(Generic[C]):
    """Delivers the messages of queues, the oldest first, each to one of its consumers.

    Args:
        store: Where the queues are.
        queues: What is delivered. Their places are made here.
        portion: Messages that one consumer gets at most before the next one has its turn.
        wake: Has `pump` called soon.
        unreadable: Called with a queue that cannot be read now, and why.
    """

    def __init__(
        self,
        store: AsyncStore,
        queues: Sequence[WorkQueue],
        portion: int,
        wake: Callable[[], None],
        unreadable: Callable[[WorkQueue, StoreError], None],
    ) -> None:
        self.queues = queues
        for index, queue in enumerate(queues):
            queue.base = index << 64
        self.consumers: dict[C, None] = {}
        #: Those that have credit and room, the next one first.
        self.hungry: OrderedDict[QueueConsumer, None] = OrderedDict()
        self._store = store
        self._portion = portion
        self._wake = wake
        self._unreadable = unreadable

    @property
    def in_flight(self) -> int:
        """Messages that consumers have; may be read in any thread."""
        return sum(consumer.flight.count for consumer in tuple(self.consumers))

    def add(self, consumer: C) -> None:
        """Delivers to a consumer from now on."""
        self.consumers[consumer] = None
        if consumer.credit > 0:
            self.wants(consumer)

    def wants(self, consumer: QueueConsumer) -> None:
        """Takes note that a consumer has credit or room."""
        self.hungry[consumer] = None
        self._wake()

    def left(self, consumer: QueueConsumer) -> None:
        """Takes note that a consumer has ended."""
        self.consumers.pop(cast("C", consumer), None)
        self.hungry.pop(consumer, None)
        for queue in self.queues:
            queue.touch()
        self.wake()  # others may have been passed over for it

    def wake(self) -> None:
        """Takes note that there is something to deliver."""
        if self.hungry:
            self._wake()

    def pump(self, ready: Callable[[], Sequence[WorkQueue]], limit: int = TURN_BYTES) -> bool:
        """Delivers what is ready.

        Args:
            ready: Returns the queues that have something to be delivered, the one with the oldest message first.
            limit: Bytes of records, about.

        Returns:
            Whether there is more to do.
        """
        left = limit
        while left > 0 and self.hungry and (queues := ready()):
            queue = queues[0]
            try:
                with self._store.store.read(queue.id) as reader:
                    # Several queues have their messages in turn, by their age.
                    left, goes_on = self._pump(queue, reader, left, single=len(queues) > 1)
            except StoreError as error:
                log.error("topic %d cannot be read: %s", queue.id, error)
                self._unreadable(queue, error)
                return False
            if not goes_on:
                return False
        return bool(self.hungry and ready())

    def _pump(self, queue: WorkQueue, reader: Reader, left: int, *, single: bool) -> tuple[int, bool]:
        """Delivers from one queue, a single block or as much as fits; returns the bytes left, and whether to go on."""
        portion = min(-(-queue.ready // len(self.hungry)), self._portion)
        while left > 0 and queue.ready:
            consumer, most, on_trial = self._next_consumer()
            if consumer is None:
                return left, False
            credit = consumer.credit
            served, goes_on = queue.serve(reader, consumer, min(portion, most), 1 if single else left)
            if consumer.credit < credit:  # where there was no room for a message, it is still its turn
                self._had_turn(consumer, on_trial=on_trial)
            left -= served
            if single or not goes_on:
                return left, goes_on
        return left, True

    def _next_consumer(self) -> tuple[QueueConsumer | None, int, bool]:
        """Returns the consumer whose turn it is, how much it may get, and whether that is a trial."""
        while self.hungry and not (consumer := next(iter(self.hungry))).hangs:  # nearly always
            if consumer.credit > 0 and consumer.has_room():
                return consumer, consumer.credit, False
            del self.hungry[consumer]
        now = asyncio.get_running_loop().time()
        others: bool | None = None  # whether there is a consumer that does not hang
        for consumer in tuple(self.hungry):
            hangs = consumer.hangs
            if hangs and others is None:
                others = any(not one.hangs for one in self.consumers)
            if hangs and others and consumer.passed_over_until > now:
                continue  # it would only hold the messages back from those that do not
            if consumer.credit > 0 and consumer.has_room():
                on_trial = hangs and bool(others)
                return consumer, 1 if on_trial else consumer.credit, on_trial
            del self.hungry[consumer]
        return None, 0, False

    def _had_turn(self, consumer: QueueConsumer, *, on_trial: bool) -> None:
        """Has a consumer come after the others."""
        if consumer in self.hungry:  # it has not ended
            self.hungry.move_to_end(consumer)
            if on_trial:
                consumer.on_trial()
