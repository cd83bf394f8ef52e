"""Round-robin topics: each message goes to one consumer, and to another one if it is not acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

from omq.broker.core.permissions import Permissions
from omq.broker.core.sink import Sink
from omq.broker.core.stats import SubscriptionStats
from omq.broker.core.topic import Topic, TopicScheduler
from omq.broker.core.topic_consumer import TopicConsumer
from omq.broker.errors import BrokerError, Busy, PermissionDenied, TopicError, broker_error
from omq.broker.settings import dead_letter_of, overflow_of, retry_delay_of
from omq.serving.rate_limit import RateLimit
from omq.store.async_store import AsyncStore
from omq.store.errors import StoreError
from omq.store.interface import Acknowledge, MoveToDeadLetter, TopicState, Write
from omq.workqueue.dispatcher import Dispatcher
from omq.workqueue.queue import WorkQueue

log = logging.getLogger("omq.broker")

#: The most messages that one consumer gets before the next one has its turn.
DELIVERY_BATCH: Final = 4096
#: The most ranges that clients may acknowledge above the highest id that is recorded as delivered.
_MAX_AHEAD_RANGES: Final = 1 << 17


class DeadLetters(Protocol):
    """Finds the dead-letter topics; the broker does."""

    async def dead_letter(self, topic: RoundRobinTopic) -> int:
        """Returns the id of the topic's dead-letter topic, and creates that if it does not exist."""

    def count_published(self, id: int, count: int, size: int) -> None:
        """Counts messages that were moved to a dead-letter topic."""


class RoundRobinTopic(Topic):
    """A topic whose messages go to one consumer each, which acknowledges them.

    Attributes:
        dead_letter: The name of its dead-letter topic; `None` for none.
        queue: The work queue of its messages.
    """

    delivery: Literal["broadcast", "round-robin"] = "round-robin"

    def __init__(
        self, state: TopicState, store: AsyncStore, scheduler: TopicScheduler, dead_letters: DeadLetters
    ) -> None:
        super().__init__(state, store, scheduler)
        self._dead_letters = dead_letters
        self.dead_letter = dead_letter_of(self.name, self.delivery, self.settings)
        self._drops_oldest = overflow_of(self.delivery, self.settings) == "drop-oldest"
        self.dropped = self.expired = 0
        self._log_limit = RateLimit()  # for lines about dropped messages
        self.queue = WorkQueue(self, store, state, max_tries=self.settings.get("max_deliveries"))
        self._dispatcher: Dispatcher[TopicConsumer] = Dispatcher(
            store, [self.queue], DELIVERY_BATCH, lambda: scheduler.ready(self), self._unreadable
        )

    # ------------------------------------------------------------------ consuming

    def consume(self, sink: Sink, ack_timeout: float, credit: int) -> TopicConsumer:
        """Adds a consumer; see `Broker.consume`."""
        if self.deleted:
            raise TopicError(f"topic {self.name!r} was deleted")
        consumer = TopicConsumer(self._dispatcher, sink, ack_timeout, credit)
        self.touch()
        self._dispatcher.add(consumer)
        return consumer

    @property
    def readers(self) -> int:
        return len(self._dispatcher.consumers)

    def end(self, error: BrokerError | None) -> None:
        self.touch()
        for consumer in tuple(self._dispatcher.consumers):
            consumer.terminate(error)

    async def close(self) -> None:
        await super().close()
        await self.queue.close()

    def revoke_access(self, permissions: Permissions) -> None:
        for consumer in tuple(self._dispatcher.consumers):
            if not permissions.allows(consumer.sink.user, "consume", self.name):
                consumer.terminate(PermissionDenied(f"the permission to consume {self.name!r} was revoked"))

    def ack_late(self, first: int, last: int) -> None:
        """Acknowledges messages of an earlier session, except those that another consumer has now.

        Raises:
            Busy: Too many ranges above the highest delivered id are acknowledged already.
        """
        self.queue.finish_late(first, last)
        last = min(last, self.queue.readable)  # no client can have more
        if last > self.queue.last_delivered:
            # A broker that was killed delivered them and did not store that.
            if len(self.queue.ahead) >= _MAX_AHEAD_RANGES:
                raise Busy(f"{len(self.queue.ahead)} ranges of {self.name!r} are acknowledged above the delivered ids")
            self.queue.finish_ahead(first, last)

    # ------------------------------------------------------------------ QueueOwner

    def changed(self) -> None:
        self._schedule_save()

    def wake(self) -> None:
        self._dispatcher.wake()

    def delivering(self, count: int, size: int, tries: int) -> None:
        self.delivered += count
        self.delivered_bytes += size
        if tries > 1:
            self.redelivered += count
        self._schedule_save()

    def finished(self, first: int, last: int) -> None:
        if self.admission is not None:
            self.admission.resume()

    def damaged(self, first: int, last: int) -> None:
        pass

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._scheduler.later(seconds, call)

    def retry_delay(self, tries: int) -> float:
        return retry_delay_of(self.settings, tries)

    async def dead_letter_topic(self) -> int:
        return await self._dead_letters.dead_letter(self)

    def move_to_dead_letters(self, id: int, target: int, moved: Callable[[Write], None]) -> None:
        self._store.submit(MoveToDeadLetter(self.id, id, target), moved)

    def moved_to_dead_letters(self, target: int, write: Any) -> None:
        self.dead_lettered += 1
        if write.size:
            self._dead_letters.count_published(target, 1, write.size)

    # ------------------------------------------------------------------ delivering

    @property
    def backlog(self) -> int:  # type: ignore[override]
        """The number of messages that wait to be delivered."""
        return self.queue.waiting

    @property
    def in_flight(self) -> int:  # type: ignore[override]
        """The number of messages that consumers have and have not acknowledged."""
        return self._dispatcher.in_flight

    @property
    def unfinished(self) -> int:
        """The number of messages that are neither acknowledged nor being moved to the dead letters; in any thread."""
        return self.queue.unfinished(self.last) + self._dispatcher.in_flight

    def used(self) -> tuple[int, int]:
        """Returns the number of unacknowledged messages and about how many bytes they have; in any thread."""
        unfinished, state = self.unfinished, self.state()
        kept = state.messages(0, self.last)
        return unfinished, state.bytes * min(unfinished, kept) // kept if kept else 0

    def grown(self, last: int) -> None:
        self.queue.grown(last)
        super().grown(last)
        if self._drops_oldest:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Moves the oldest messages that no consumer has to the dead letters, until the topic is within its bounds."""
        messages, size = self.used()
        max_messages, max_bytes = self.settings.get("max_messages"), self.settings.get("max_bytes")
        excess = max(messages - max_messages, 0) if max_messages is not None else 0
        if max_bytes is not None and size > max_bytes and messages > 1:
            excess = max(excess, messages - max(messages * max_bytes // size, 1))
        if excess and (dropped := self.queue.drop_oldest(excess)):
            self.dropped += dropped
            self._log_dropped("full", dropped, f"it is full: {dropped} unfinished messages go to the dead letters")

    def refresh(self) -> None:
        """Drops the messages from the queue that `max_age` has dropped from the store."""
        if "max_age" in self.settings and (expired := self.queue.expire(self.state().first)):
            self.touch()
            self.expired += expired
            text = f"{expired} unfinished messages are older than max_age={self.settings.get('max_age')}"
            self._log_dropped("max_age", expired, text)

    def _log_dropped(self, reason: str, count: int, text: str) -> None:
        if self._log_limit.passes():
            log.warning(
                "topic %r: %s",
                self.name,
                text,
                extra={"event": "messages_dropped", "topic": self.name, "reason": reason, "count": count},
            )

    def pump(self) -> bool:
        self.refresh()
        if not self._dispatcher.available or not self.queue.ready:
            return False
        self.touch()
        return self._dispatcher.pump(self._ready)

    def _ready(self) -> Sequence[WorkQueue]:
        return self._dispatcher.queues if self.queue.ready else ()

    def _unreadable(self, queue: WorkQueue, error: StoreError) -> None:
        self.end(broker_error(error))

    # ------------------------------------------------------------------ saving acknowledgements

    def save(self) -> None:
        if (write := self.queue.unsaved()) is not None:
            self._submit_save(write)

    def _restore_unsaved(self, write: Write) -> None:
        assert isinstance(write, Acknowledge)
        self.queue.take_back(write)

    # ------------------------------------------------------------------ statistics

    def subscriptions(self) -> list[SubscriptionStats]:
        return [
            {
                "kind": "consumer",
                "listener": consumer.sink.listener,
                "name": None,
                "user": consumer.sink.user,
                "peer": consumer.sink.peer,
                "position": consumer.last,
                "lag": self.backlog,
                "in_flight": consumer.in_flight.count,
            }
            for consumer in self._dispatcher.consumers
        ]
