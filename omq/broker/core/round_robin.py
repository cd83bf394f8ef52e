"""Round-robin topics: each message goes to one consumer, and to another one if it is not acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from omq.broker.core.permissions import Permissions
from omq.broker.core.sink import Sink
from omq.broker.core.stats import SubscriptionStats
from omq.broker.core.topic import Loss, Topic, TopicAdmission, TopicScheduler
from omq.broker.core.topic_consumer import TopicConsumer
from omq.broker.core.topic_queue import DeadLetters, TopicQueue
from omq.broker.errors import BrokerError
from omq.broker.settings import overflow_of
from omq.store.async_store import AsyncStore
from omq.store.interface import Acknowledge, TopicState, Write


class RoundRobinTopic(Topic):
    """A topic whose messages go to one consumer each, which acknowledges them.

    Attributes:
        work: Its messages and consumers.
    """

    delivery: Literal["broadcast", "round-robin"] = "round-robin"

    def __init__(
        self, state: TopicState, store: AsyncStore, scheduler: TopicScheduler, dead_letters: DeadLetters
    ) -> None:
        super().__init__(state, store, scheduler)
        self._drops_oldest = overflow_of(self.delivery, self.settings) == "drop-oldest"
        self._requeue_admission = TopicAdmission(self, scheduler)  # while the topic drops its oldest messages
        self.dropped = 0
        self.work = TopicQueue(
            self,
            store,
            state,
            dead_letters,
            wake=lambda: scheduler.ready(self),
            changed=self._schedule_save,
            later=scheduler.later,
        )

    # ------------------------------------------------------------------ altering

    def losses(self, settings: Mapping[str, Any]) -> list[Loss]:
        unfinished, size = self.used()

        def beyond(max_messages: int) -> int:
            return min(max(unfinished - max_messages, 0), self.work.queue.waiting)

        consequence = "unacknowledged messages would become dead letters"
        found = self._bound_losses(settings, unfinished, size, beyond, consequence)
        return found + self._age_losses(settings, self._store.store.ack_set(self.id).floor + 1, unfinished)

    async def alter(self, settings: dict[str, Any]) -> None:
        self.refresh()  # by the `max_age` so far
        await super().alter(settings)
        self._drops_oldest = overflow_of(self.delivery, settings) == "drop-oldest"
        self.work.queue.limit_tries(settings.get("max_deliveries"))
        if self._drops_oldest:
            self._drop_oldest()

    # ------------------------------------------------------------------ consuming

    def consume(self, sink: Sink, ack_timeout: float, credit: int) -> TopicConsumer:
        """Adds a consumer; see `Broker.consume`."""
        return self.work.consume(sink, ack_timeout, credit)

    @property
    def readers(self) -> int:
        return len(self.work.consumers)

    def end(self, error: BrokerError | None) -> None:
        self.work.end(error)

    def reopen(self) -> None:
        super().reopen()
        self.work.reopen()

    async def close(self) -> None:
        await super().close()
        await self.work.queue.close()

    def revoke_access(self, permissions: Permissions) -> None:
        self.work.revoke_access(permissions)

    # ------------------------------------------------------------------ delivering

    @property
    def backlog(self) -> int:  # type: ignore[override]
        """The number of messages that wait to be delivered."""
        return self.work.backlog

    @property
    def in_flight(self) -> int:  # type: ignore[override]
        """The number of messages that consumers have and have not acknowledged."""
        return self.work.in_flight

    @property
    def unfinished(self) -> int:
        """The number of messages that are neither acknowledged nor being moved to the dead letters; in any thread."""
        return self.work.unfinished(self.last)

    def used(self) -> tuple[int, int]:
        """Returns the number of unacknowledged messages and about how many bytes they have; in any thread."""
        unfinished, state = self.unfinished, self.state()
        kept = state.messages(0, self.last)
        return unfinished, state.bytes * min(unfinished, kept) // kept if kept else 0

    def grown(self, last: int) -> None:
        self.work.queue.grown(last)
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
        if excess and (dropped := self.work.queue.drop_oldest(excess)):
            self.dropped += dropped
            self.work.log_dropped("full", dropped, f"it is full: {dropped} unfinished messages go to the dead letters")

    def requeue_admission(self) -> TopicAdmission | None:
        if not self._drops_oldest:
            return self.admission
        # Requeued messages need room, as otherwise others would become dead letters in their place.
        self._requeue_admission.set_bounds(
            "reject", self.settings.get("max_messages"), self.settings.get("max_bytes"), self.limited_owner
        )
        return self._requeue_admission

    def stored_bytes(self) -> int:
        return super().stored_bytes() + self._requeue_admission.submitted_bytes

    async def purge(self, up_to: int) -> int:
        """Drops the waiting messages up to an id; those in flight stay with their consumers."""
        # After this write the queue can have all messages that were published before it.
        await self.do(Acknowledge(self.id, []))
        self.grown(self.state().last)
        self.refresh()
        purged = self.work.queue.purge(up_to)
        await self.flushed()
        return purged

    def refresh(self) -> None:
        """Drops from the queue the messages that `max_age` has dropped from the store."""
        if "max_age" in self.settings:
            self.work.expire(self.state().first, "max_age", f"are older than max_age={self.settings['max_age']}")

    def pump(self) -> bool:
        self.refresh()
        return self.work.pump()

    # ------------------------------------------------------------------ saving acknowledgements

    def save(self) -> None:
        if not self.deleted and (write := self.work.queue.unsaved()) is not None:
            self._submit_save(write)

    def _restore_unsaved(self, write: Write) -> None:
        assert isinstance(write, Acknowledge)
        self.work.queue.take_back(write)

    # ------------------------------------------------------------------ statistics

    def subscriptions(self) -> list[SubscriptionStats]:
        return self.work.subscriptions()


class FollowedQueue(Topic):
    """A round-robin topic in the core of a follower of a cluster, which has no consumers: only the leader does."""

    delivery: Literal["broadcast", "round-robin"] = "round-robin"

    @property
    def readers(self) -> int:
        return 0

    @property
    def backlog(self) -> int:  # type: ignore[override]
        """The number of messages that are not acknowledged, as far as this broker has applied the journal."""
        acks, state = self._store.store.ack_set(self.id), self.state()
        acked = sum(last - first + 1 for first, last in acks.above(acks.floor))
        return max(state.messages(acks.floor) - acked, 0)

    def refresh(self) -> None:
        if self.state().messages(0):
            self.touch()  # an acknowledgement does not change the state

    def pump(self) -> bool:
        return False

    def end(self, error: BrokerError | None) -> None:
        pass

    def save(self) -> None:
        pass

    def revoke_access(self, permissions: Permissions) -> None:
        pass

    def subscriptions(self) -> list[SubscriptionStats]:
        return []
