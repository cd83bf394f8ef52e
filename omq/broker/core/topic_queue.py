"""The work queue of a round-robin topic, or of a consumer group of a broadcast topic, with its consumers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, KeysView, Sequence
from typing import Any, Final, Protocol

from omq.broker.core.activity import Activity
from omq.broker.core.permissions import Permissions
from omq.broker.core.sink import Sink
from omq.broker.core.stats import SubscriptionStats
from omq.broker.core.topic import Topic
from omq.broker.core.topic_consumer import TopicConsumer
from omq.broker.errors import BrokerError, Busy, PermissionDenied, broker_error
from omq.broker.settings import default_dead_letter, retry_delay_of
from omq.serving.rate_limit import RateLimit
from omq.store.async_store import AsyncStore
from omq.store.errors import StoreError
from omq.store.interface import MoveToDeadLetter, TopicState, Write
from omq.workqueue.dispatcher import Dispatcher
from omq.workqueue.queue import DeadLetter, WorkQueue

log = logging.getLogger("omq.broker")

#: The maximum number of messages that one consumer gets before the next one has its turn.
DELIVERY_BATCH: Final = 4096
#: The maximum number of ranges that clients may acknowledge above the highest id that is recorded as delivered.
_MAX_AHEAD_RANGES: Final = 1 << 17


class DeadLetters(Protocol):
    """Finds the dead-letter topics; the broker does."""

    async def dead_letter(self, topic: Topic) -> int:
        """Returns the id of the topic's dead-letter topic, and creates that if it does not exist."""

    def count_published(self, id: int, count: int, size: int) -> None:
        """Counts messages that were moved to a dead-letter topic."""


class TopicQueue:
    """A work queue and its consumers. Implements `QueueOwner`.

    Args:
        topic: The topic.
        store: The store of the topic.
        state: The committed state of the topic.
        dead_letters: Finds the dead-letter topic.
        wake: Schedules a call of `pump`.
        changed: Called when there is something to save.
        later: Makes a call later, unless the broker has stopped by then.
        group: The consumer group of a broadcast topic; empty: the topic is round-robin.

    Attributes:
        group: As the argument.
        queue: The messages.
        ended: The group is being moved or deleted, or was.
        label: The topic and the group with their names, as text of log lines.
        log_fields: The same as fields of log lines.
        active: When a consumer last joined, got or acknowledged a message, or left. Only of a group.

    Raises:
        DamagedError: The acks are damaged.
    """

    def __init__(
        self,
        topic: Topic,
        store: AsyncStore,
        state: TopicState,
        dead_letters: DeadLetters,
        *,
        wake: Callable[[], None],
        changed: Callable[[], None],
        later: Callable[[float, Callable[[], None]], None],
        group: str = "",
    ) -> None:
        self.label = f"topic {topic.name!r}, group {group!r}" if group else f"topic {topic.name!r}"
        self.group = group
        self.log_fields = {"topic": topic.name, "group": group} if group else {"topic": topic.name}
        self.ended = False
        self.active = Activity.now()
        self.changed = changed
        self.later = later
        self._topic = topic
        self._store = store
        self._dead_letters = dead_letters
        self._log_limit = RateLimit()  # for lines about dropped messages
        self._dead_letter_log = RateLimit()
        self.queue = WorkQueue(self, store, state, max_tries=topic.settings.get("max_deliveries"), group=group)
        self._dispatcher: Dispatcher[TopicConsumer] = Dispatcher(
            store, [self.queue], DELIVERY_BATCH, wake, self._unreadable
        )

    # ------------------------------------------------------------------ consuming

    @property
    def consumers(self) -> KeysView[TopicConsumer]:
        """The consumers; a view, which changes when one joins or ends."""
        return self._dispatcher.consumers.keys()

    @property
    def in_flight(self) -> int:
        """The number of messages in flight; in any thread."""
        return self._dispatcher.in_flight

    def consume(self, sink: Sink, ack_timeout: float, credit: int) -> TopicConsumer:
        """Adds a consumer; see `Broker.consume`."""
        if self.deleted:
            raise self._topic.gone()
        consumer = TopicConsumer(self._dispatcher, sink, ack_timeout, credit, self._record_activity)
        self._record_activity()
        self._dispatcher.add(consumer)
        return consumer

    def _record_activity(self) -> None:
        self.touch()
        self.active = Activity.now()

    def end(self, error: BrokerError | None) -> None:
        """Ends all consumers."""
        self.touch()
        for consumer in tuple(self.consumers):
            consumer.terminate(error)

    def revoke_access(self, permissions: Permissions) -> None:
        """Ends the consumers that *permissions* do not allow."""
        for consumer in tuple(self.consumers):
            if not permissions.allows(consumer.sink.user, "consume", self._topic.name):
                consumer.terminate(PermissionDenied(f"the permission to consume {self._topic.name!r} was revoked"))

    def ack_late(self, first: int, last: int) -> None:
        """Acknowledges messages of an earlier session, except those that another consumer has now.

        Raises:
            Busy: Too many ranges above the highest delivered id are acknowledged already.
        """
        queue = self.queue
        queue.finish_late(first, last)
        last = min(last, queue.readable)  # no client can have more
        if last > queue.last_delivered:
            # A broker that was killed delivered them and did not store that.
            if len(queue.ahead) >= _MAX_AHEAD_RANGES:
                raise Busy(f"{len(queue.ahead)} ranges of {self.label} are acknowledged above the delivered ids")
            queue.finish_ahead(first, last)

    # ------------------------------------------------------------------ QueueOwner

    @property
    def deleted(self) -> bool:
        """Returns whether the topic or the group was deleted or is being deleted."""
        return self.ended or self._topic.deleted

    def touch(self) -> None:
        self._topic.touch()

    def wake(self) -> None:
        self._dispatcher.wake()

    def delivering(self, count: int, size: int, tries: int) -> None:
        self._topic.delivered += count
        self._topic.delivered_bytes += size
        if tries > 1:
            self._topic.redelivered += count
        if self.group:
            self._record_activity()
        self.changed()

    def finished(self, first: int, last: int) -> None:
        if self.group:
            self._record_activity()
        elif self._topic.admission is not None:
            self._topic.admission.resume()

    def damaged(self, first: int, last: int) -> None:
        pass

    def retry_delay(self, tries: int) -> float:
        return retry_delay_of(self._topic.settings, tries)

    async def dead_letter_topic(self) -> int:
        return await self._dead_letters.dead_letter(self._topic)

    def move_to_dead_letters(self, id: int, letter: DeadLetter, target: int, moved: Callable[[Write], None]) -> None:
        write = MoveToDeadLetter(
            self._topic.id,
            id,
            target,
            group=self.group,
            generation=self.queue.generation,
            deliveries=letter.tries,
            reason=letter.reason,
        )
        self._store.submit(write, moved)

    def moved_to_dead_letters(self, target: int, write: Any) -> None:
        self._topic.dead_lettered += 1
        if self.group:
            self._topic.acknowledged(self.group, write.floor)
        # `RoundRobinTopic._drop_oldest` logs those that overflow.
        if write.reason == "max-deliveries" and self._dead_letter_log.passes():
            more = self._dead_letter_log.suppressed
            log.warning(
                "%s: message %d has become a dead letter after %d deliveries and is now in %r%s",
                self.label,
                write.id,
                write.deliveries,
                self._topic.dead_letter or default_dead_letter(self._topic.name),
                f" ({more} more since the last line)" if more else "",
                extra={"event": "dead_lettered", **self.log_fields, "id": write.id, "deliveries": write.deliveries},
            )
        if write.size:
            self._dead_letters.count_published(target, 1, write.size)

    # ------------------------------------------------------------------ delivering

    @property
    def backlog(self) -> int:
        """The number of messages that wait to be delivered."""
        return self.queue.waiting

    def unfinished(self, last: int) -> int:
        """Returns the number of messages that are not acknowledged nor being moved to the dead letters; in any thread.

        Args:
            last: The newest id of the topic.
        """
        return self.queue.unfinished(last) + self._dispatcher.in_flight

    def expire(self, first: int, reason: str, text: str) -> None:
        """Drops the messages below the id *first*, which retention has dropped from the topic.

        Args:
            first: The oldest id that is kept.
            reason: The setting that has dropped them, or `retention`; a field of the log line.
            text: The end of the log line, after the number of messages.
        """
        if expired := self.queue.expire(first):
            self.touch()
            self._topic.expired += expired
            self.log_dropped(reason, expired, f"{expired} unfinished messages {text}")

    def skip(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Finishes the ids of ranges that wait and have no messages: a crash has skipped them."""
        for first, last in ranges:
            for begin, end in list(self.queue.waiting_ids(first, last)):
                self.queue.finish_late(begin, end)
                self.queue.finish_ahead(begin, end)

    def reopen(self) -> None:
        """Continues, as the topic could not be deleted, or the group could not be moved or deleted."""
        self.ended = False
        self.queue.limit_tries(self._topic.settings.get("max_deliveries"))  # it may have been altered meanwhile
        self.queue.grown(self._topic.readable)

    def log_dropped(self, reason: str, count: int, text: str) -> None:
        """Logs that messages were dropped, at a limited rate."""
        if self._log_limit.passes():
            log.warning(
                "%s: %s",
                self.label,
                text,
                extra={"event": "messages_dropped", **self.log_fields, "reason": reason, "count": count},
            )

    def pump(self) -> bool:
        """Delivers messages; returns whether more can be delivered."""
        if not self._dispatcher.available or not self.queue.ready:
            return False
        self.touch()
        return self._dispatcher.pump(self._ready)

    def _ready(self) -> Sequence[WorkQueue]:
        return self._dispatcher.queues if self.queue.ready else ()

    def _unreadable(self, queue: WorkQueue, error: StoreError) -> None:
        self.end(broker_error(error))

    # ------------------------------------------------------------------ statistics

    def subscriptions(self) -> list[SubscriptionStats]:
        """Returns the statistics of the consumers."""
        return [
            {
                "kind": "consumer",
                "listener": consumer.sink.listener,
                "name": self.group or None,
                "user": consumer.sink.user,
                "peer": consumer.sink.peer,
                "position": consumer.last,
                "lag": self.backlog,
                "in_flight": consumer.in_flight.count,
            }
            for consumer in self.consumers
        ]
