"""Broadcast topics: every subscriber gets every message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal

from omq.broker.core.permissions import Permissions
from omq.broker.core.sink import Sink
from omq.broker.core.stats import CursorStats, SubscriptionStats
from omq.broker.core.topic import MIN_BLOCK_BYTES, TURN_BYTES, Topic, TopicScheduler
from omq.broker.errors import BrokerError, BrokerFailed, Damaged, Overrun, PermissionDenied, TopicError, broker_error
from omq.store.async_store import AsyncStore
from omq.store.errors import DamagedError, Gone, OutOfSpace, StoreError
from omq.store.interface import DeleteCursor, SetCursor, TopicState, Trim, Write

log = logging.getLogger("omq.broker")

#: Until messages that could not be dropped, as the disk was full, are dropped after all.
_TRIM_RETRY_DELAY_S: Final = 1.0


class TopicSubscription:
    """A reader of a broadcast topic: a position, and nothing else in memory.

    Attributes:
        topic: The topic.
        sink: Where its messages go.
        name: What the broker keeps its position under; `None` for none.
        position: The id of the last message that was given to the sink.
        active: It has not ended.
    """

    __slots__ = ("_from_earliest", "active", "name", "position", "sink", "topic")

    def __init__(self, topic: BroadcastTopic, sink: Sink, name: str | None, position: int, from_earliest: bool) -> None:
        self.topic = topic
        self.sink = sink
        self.name = name
        self.position = position
        self.active = True
        self._from_earliest = from_earliest  # and has got nothing yet

    def resume(self) -> None:
        """The sink has room."""
        if self.active and self.position < self.topic.readable:
            self.topic.schedule(self)

    def move(self, position: int) -> None:
        """Keeps a position under the subscription's name.

        Raises:
            TopicError: It has no name, or the position is from the future.
        """
        if self.name is None:
            raise TopicError("this subscription has no name to keep a position under")
        self.topic.move(self.name, position)

    def end(self) -> None:
        """Ends it; `ended` of the sink is not called. Idempotent."""
        if self.active:
            self.active = False
            self.topic.remove(self)

    def _deliver(self, header: bytes, records: memoryview, last: int) -> None:
        self.position = last
        self._from_earliest = False
        self.sink.send_block(header, records, b"")

    def _skip_dropped(self, first: int) -> bool:
        """Ids below *first* are no longer kept: whether that means nothing to it, which begins with the oldest."""
        if self._from_earliest:
            self.position = first - 1
        return self._from_earliest


class BroadcastTopic(Topic):
    """A topic whose messages every subscriber gets; it keeps positions under the names that they give."""

    delivery: Literal["broadcast", "round-robin"] = "broadcast"

    def __init__(
        self, state: TopicState, store: AsyncStore, scheduler: TopicScheduler, cursors: dict[str, int]
    ) -> None:
        super().__init__(state, store, scheduler)
        self._subscriptions: dict[TopicSubscription, None] = {}
        #: Those that may have something to read and room for it, first come first served.
        self._ready: dict[TopicSubscription, None] = {}
        self._cursors = cursors
        self._holders: dict[str, TopicSubscription] = {}
        self._dirty: dict[str, int] = {}
        self._unconfirmed: set[str] = set()  # names whose beginning is not durable yet
        #: The durable subscription that messages are kept for: it exists as long as the topic does.
        self._retained_for: str | None = self.settings.get("retain_for")
        if self._retained_for is not None:
            cursors.setdefault(self._retained_for, 0)
            self._trim(cursors[self._retained_for])  # the broker may have ended between the ack and this

    # ------------------------------------------------------------------ subscribing

    def subscribe(
        self, replay: str | int, sink: Sink, name: str | None = None, reset: bool = False
    ) -> TopicSubscription:
        """Begins to read; see `Broker.subscribe`."""
        if self.deleted:
            raise TopicError(f"topic {self.name!r} is deleted")
        if name is not None and name in self._holders:
            raise TopicError(f"another subscription to {self.name!r} as {name!r} is open already")
        known = None if name is None else self._cursors.get(name)
        if known == -1 and not reset:
            raise Damaged(f"the position of {name!r} in {self.name!r} is damaged; with reset it starts over")
        if known is not None and known + 1 < (first := self.state().first):
            if not reset:
                raise _overrun(self.name, known + 1, first)
            known = None
        position, from_earliest = self._start_position(replay) if known is None else (known, False)
        subscription = TopicSubscription(self, sink, name, position, from_earliest)
        self.touch()
        self._subscriptions[subscription] = None
        if name is not None:
            self._holders[name] = subscription
            if known is None:
                # A name is kept from now on, also where it is not moved and the broker dies.
                self._unconfirmed.add(name)
                self.move(name, position)
        subscription.resume()
        return subscription

    def _start_position(self, replay: str | int) -> tuple[int, bool]:
        """The position where a subscription begins, and whether that is wherever the messages begin."""
        if replay == "latest":
            return self.last, False
        first = self.state().first
        if replay == "earliest":
            return first - 1, True
        if not isinstance(replay, int) or isinstance(replay, bool) or replay < 0:
            raise TopicError(f"replay is 'latest', 'earliest' or an id, not {str(replay)[:80]!r}")
        self._check_not_future(replay)
        if replay + 1 < first:
            raise _overrun(self.name, replay + 1, first)
        return replay, False

    def is_durable(self, name: str) -> bool:
        """Returns whether a position is kept under a name durably."""
        return name in self._cursors and name not in self._unconfirmed

    def _check_not_future(self, position: int) -> None:
        """Refuses an id that was never given.

        What a commit has stored can be read a moment before this loop is notified, by READ for instance.
        """
        if position > self.last and position > (newest := max(self.last, self.state().last)):
            raise TopicError(f"the newest message of {self.name!r} is {newest}: {position} is from the future")

    @property
    def readers(self) -> int:
        return len(self._subscriptions)

    def remove(self, subscription: TopicSubscription) -> None:
        """A subscription has ended."""
        self.touch()
        self._subscriptions.pop(subscription, None)
        self._ready.pop(subscription, None)
        name = subscription.name
        if name is not None and self._holders.get(name) is subscription:
            del self._holders[name]

    def end(self, error: BrokerError | None) -> None:
        for subscription in tuple(self._subscriptions):
            self._end(subscription, error)

    def revoke_access(self, permissions: Permissions) -> None:
        for subscription in tuple(self._subscriptions):
            if not permissions.allows(subscription.sink.user, "subscribe", self.name):
                self._end(subscription, PermissionDenied(f"permission to subscribe {self.name!r} was taken away"))

    def _end(self, subscription: TopicSubscription, error: BrokerError | None) -> None:
        subscription.end()
        try:
            subscription.sink.closed(error)
        except Exception:
            log.exception("topic %r: a server has failed", self.name)

    # ------------------------------------------------------------------ handing out

    def grown(self, last: int) -> None:
        if self._subscriptions and last > self.readable:
            self._ready.update(self._subscriptions)
        super().grown(last)

    def schedule(self, subscription: TopicSubscription) -> None:
        """A subscription has room, and there is something for it."""
        self._ready[subscription] = None
        self._scheduler.ready(self)

    def pump(self) -> bool:
        budget = TURN_BYTES
        while budget > 0 and self._ready:
            group = self._next_group()
            if group:
                budget -= self._serve(group, budget)
                for one in group:
                    if one in self._ready:  # after those that have not had their turn
                        del self._ready[one]
                        self._ready[one] = None
        return bool(self._ready)

    def _next_group(self) -> list[TopicSubscription]:
        """The hungry ones at the place of the first one: they share one read and one check."""
        group: list[TopicSubscription] = []
        for subscription in tuple(self._ready):
            if group and subscription.position != group[0].position:
                continue
            if subscription.position >= self.readable or subscription.sink.room() <= 0:
                del self._ready[subscription]  # it is hungry again when the topic grows, or its sink has room
                continue
            group.append(subscription)
        return group

    def _serve(self, group: list[TopicSubscription], limit: int) -> int:
        """Gives a group some blocks; how many bytes that were."""
        self.touch()
        served = 0
        try:
            with self._store.store.read(self.id) as reader:
                id = group[0].position + 1
                # The store may be ahead of what this loop was notified of: that is delivered afterwards.
                for header, records in reader.blocks(id, self.readable + 1):
                    size = len(records)
                    count = int.from_bytes(header[4:8], "big")
                    last = int.from_bytes(header[8:16], "big") + count - 1
                    if len(group) > 1 and not isinstance(records.obj, bytes):
                        # One copy, which sockets that are full keep together, instead of one for each of them.
                        records = memoryview(bytes(records))
                    served += max(size, MIN_BLOCK_BYTES, len(group) << 10)
                    group = [one for one in group if self._deliver_block(one, header, records, last)]
                    self.delivered += count * len(group)
                    self.delivered_bytes += size * len(group)
                    if served >= limit or not group:
                        return served
                # What the store counts is not there: ids that were never given, after a crash.
                for one in group:
                    one.position = max(one.position, self.readable)
        except Gone as error:
            for one in group:
                if not one._skip_dropped(error.first):
                    self._end(one, _overrun(self.name, one.position + 1, error.first))
        except DamagedError as error:
            log.error("topic %r: %s", self.name, error)
            for one in group:
                self._end(one, Damaged(f"topic {self.name!r}: {error}", error.first, error.last))
        except StoreError as error:
            for one in group:
                self._end(one, broker_error(error))
        return max(served, MIN_BLOCK_BYTES)

    def _deliver_block(self, subscription: TopicSubscription, header: bytes, records: memoryview, last: int) -> bool:
        """Gives one block; whether the subscription goes on in its group."""
        if not subscription.active or subscription.sink.room() <= 0:
            self._ready.pop(subscription, None)
            return False
        try:
            subscription._deliver(header, records, last)
        except Exception:
            log.exception("topic %r: a server has failed", self.name)
            self._end(subscription, BrokerFailed("the broker has failed to send"))
            return False
        return subscription.active

    # ------------------------------------------------------------------ names

    def move(self, name: str, position: int) -> None:
        """Keeps a position under a name."""
        self._check_not_future(position)
        self.touch()
        if name == self._retained_for:
            position = max(position, self._cursors[name])  # what is before it is not kept any more
        self._cursors[name] = self._dirty[name] = position
        self._schedule_save()

    def save(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for name, position in dirty.items():
            self._submit_save(SetCursor(self.id, name, position))

    def _on_saved(self, write: Write) -> None:
        if write.error is None and isinstance(write, SetCursor):
            self._unconfirmed.discard(write.name)
            if write.name == self._retained_for:
                self._trim(write.id)
        super()._on_saved(write)

    def _restore_unsaved(self, write: Write) -> None:
        assert isinstance(write, SetCursor)
        if write.name in self._cursors:
            self._dirty.setdefault(write.name, self._cursors[write.name])

    def _trim(self, position: int) -> None:
        """Has the store drop what the subscription of `retain_for` has acknowledged, once that is durable."""
        if position >= self.state().first and not self.deleted:
            self._store.submit(Trim(self.id, position + 1), self._trimmed)

    def _trimmed(self, write: Trim) -> None:
        if isinstance(write.error, OutOfSpace):
            self._scheduler.later(_TRIM_RETRY_DELAY_S, lambda: self._trim(write.first - 1))
            return
        self.touch()
        if self.admission is not None:
            self.admission.resume()

    async def delete_durable(self, name: str) -> None:
        """Forgets a named position.

        Raises:
            TopicError: It does not exist, or is in use, or messages are kept for it (`retain_for`).
        """
        if name == self._retained_for:
            raise TopicError(f"{self.name!r} keeps its messages for {name!r} (retain_for): the name lasts as it does")
        if name not in self._cursors:
            raise TopicError(f"topic {self.name!r} has no durable subscription {name!r}")
        if name in self._holders:
            raise TopicError(f"a subscription to {self.name!r} as {name!r} is open")
        self._dirty.pop(name, None)
        position = self._cursors.pop(name)
        self.touch()
        try:
            await self._store.do(DeleteCursor(self.id, name))
        except BrokerError:
            self._cursors.setdefault(name, position)
            self.touch()
            raise

    # ------------------------------------------------------------------ statistics

    def durables(self) -> list[CursorStats]:
        lag = self._lag_counter()
        return [
            {"name": name, "position": position, "lag": lag(position), "held": name in self._holders}
            for name, position in sorted(self._cursors.items())
        ]

    def _lag_counter(self) -> Callable[[int], int]:
        """Returns a position with the number of messages that follow."""
        state = self.state()
        return lambda position: state.messages(position, self.last)

    def subscriptions(self) -> list[SubscriptionStats]:
        lag = self._lag_counter()
        return [
            {
                "kind": "subscriber",
                "door": one.sink.listener,
                "name": one.name,
                "user": one.sink.user,
                "peer": one.sink.peer,
                "position": one.position,
                "lag": lag(one.position),
                "in_flight": 0,
            }
            for one in self._subscriptions
        ]


def _overrun(topic: str, wanted: int, first: int) -> Overrun:
    return Overrun(f"message {wanted} of {topic!r} is no longer kept: the oldest one is {first}", first)
