"""Broadcast topics: every subscriber gets every message, and so does every consumer group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, Final, Literal

from omq._core.blocks import read_header
from omq.broker.core.activity import Activity
from omq.broker.core.permissions import Permissions
from omq.broker.core.sink import Sink
from omq.broker.core.stats import CursorStats, GroupStats, SubscriptionStats
from omq.broker.core.topic import Loss, Topic, TopicScheduler
from omq.broker.core.topic_queue import DeadLetters, TopicQueue
from omq.broker.errors import (
    BrokerError,
    BrokerFailed,
    Damaged,
    Overrun,
    PermissionDenied,
    TakenOver,
    TopicError,
    broker_error,
)
from omq.broker.protocol import check_name
from omq.broker.start_time import StartTime, describe_time, overrun_since
from omq.store.async_store import AsyncStore
from omq.store.clock import wall
from omq.store.errors import DamagedError, Gone, OutOfSpace, StoreClosed, StoreError, UnknownTopic
from omq.store.interface import (
    Acknowledge,
    DeleteCursor,
    DeleteGroup,
    SetCursor,
    SetGroup,
    TopicState,
    Trim,
    Write,
    keeps_unread,
)
from omq.workqueue.dispatcher import TURN_BYTES
from omq.workqueue.queue import MIN_BLOCK_BYTES

log = logging.getLogger("omq.broker")

_ReaderKind = Literal["subscription", "group"]

#: After the disk was full, until a trim is submitted again.
_TRIM_RETRY_DELAY_S: Final = 1.0
#: The shortest and the longest time between two checks for inactive readers. A timer stands still while the system
#: sleeps; their inactivity does not.
_MIN_CHECK_INTERVAL_S: Final = 0.1
_MAX_CHECK_INTERVAL_S: Final = 3600.0
#: Until a reader that could not be deleted, for instance because the disk was full, is checked again.
_EXPIRY_RETRY_DELAY_S: Final = 1.0
#: By which a client's clock may be ahead of the broker's.
_MAX_CLOCK_DIFFERENCE_US: Final = 10_000_000


class TopicSubscription:
    """A subscription to a broadcast topic: a position, without messages in memory.

    Attributes:
        topic: The topic.
        sink: Receives its messages.
        name: The name of a durable subscription; `None` for a transient one.
        position: The id of the last message that was sent to the sink.
        active: The subscription has not ended.
    """

    __slots__ = ("_from_earliest", "active", "name", "position", "sink", "topic")

    def __init__(self, topic: BroadcastTopic, sink: Sink, name: str | None, position: int, from_earliest: bool) -> None:
        self.topic = topic
        self.sink = sink
        self.name = name
        self.position = position
        self.active = True
        self._from_earliest = from_earliest  # and nothing was sent yet

    def resume(self) -> None:
        """Continues the delivery; the sink has room."""
        if self.active and self.position < self.topic.readable:
            self.topic.schedule(self)

    def move(self, position: int) -> None:
        """Moves the stored position of a durable subscription.

        Raises:
            TopicError: The subscription is not durable, or the position is above the newest id.
        """
        if self.name is None:
            raise TopicError("this subscription is not durable, so it has no cursor; subscribe with a name")
        self.topic.move(self.name, position)

    def end(self) -> None:
        """Ends the subscription without calling `closed` of the sink. Idempotent."""
        if self.active:
            self.active = False
            self.topic.remove(self)

    def _deliver(self, header: bytes, records: memoryview, last: int) -> None:
        self.position = last
        self._from_earliest = False
        self.sink.send_block(header, records, b"")

    def _skip_dropped(self, first: int) -> bool:
        """Skips to *first*, the oldest id; returns `False` if that would lose messages of the subscription.

        A subscription from the earliest message that has received nothing yet loses nothing.
        """
        if self._from_earliest:
            self.position = first - 1
        return self._from_earliest


class BroadcastTopic(Topic):
    """A topic whose subscribers and consumer groups all get every message.

    It stores the cursors of durable subscriptions and the acks of groups.

    Attributes:
        groups: The work queues of the consumer groups by name.
        readers_expired: The number of durable subscriptions and groups that were deleted as inactive.
    """

    delivery: Literal["broadcast", "round-robin"] = "broadcast"

    def __init__(
        self,
        state: TopicState,
        store: AsyncStore,
        scheduler: TopicScheduler,
        cursors: dict[str, int],
        dead_letters: DeadLetters,
        ack_floors: dict[str, int],
    ) -> None:
        super().__init__(state, store, scheduler)
        self._subscriptions: dict[TopicSubscription, None] = {}
        #: Those that may have messages to deliver and room for them, in the order of their turns.
        self._ready: dict[TopicSubscription, None] = {}
        self._cursors = cursors
        self._opened = Activity.now()
        #: When each was last opened, acknowledged or closed.
        self._active = dict.fromkeys(cursors, self._opened)
        self._holders: dict[str, TopicSubscription] = {}
        self._last_clients: dict[str, Hashable] = {}  # the last client that has opened each
        self._dirty: dict[str, int] = {}
        self._unconfirmed: set[str] = set()  # names whose first position is not durable yet
        self._dead_letters = dead_letters
        self.groups: dict[str, TopicQueue] = {}
        self._damaged_groups: dict[str, DamagedError] = {}
        self._changing: dict[str, asyncio.Future[None]] = {}  # groups that are created, moved or deleted
        self._suspended: dict[str, TopicQueue] = {}  # groups that are being moved or deleted
        self._moving: dict[str, int] = {}  # groups that are created or moved, and to which position
        self._ready_groups: dict[TopicQueue, None] = {}  # in the order of their turns
        self._dirty_groups: dict[str, None] = {}
        self._purged = 0  # the last id that was purged or requeued
        self._purging: list[int] = []  # the last ids of purges and requeues that are not answered
        #: The ack floors of the groups as they are stored; -1 for one whose row is damaged.
        self._ack_floors = ack_floors
        for group in ack_floors:
            self._add_group(group, state)
        #: The durable subscription of `retain_for`; it exists as long as the topic does.
        self._retained_for: str | None = self.settings.get("retain_for")
        if self._retained_for is not None:
            cursors.setdefault(self._retained_for, 0)
            self._active.setdefault(self._retained_for, self._opened)
        #: The cursors as they are stored. A lower or new one counts at once, and a deleted one until it is not stored.
        self._stored_cursors = dict(cursors)
        self._trimmed_to = 0  # the highest id that was submitted to be dropped
        self._trim_scheduled = False
        self._trim()  # the broker may have stopped between the ack and the trim
        self.readers_expired = 0
        self._expiring: set[asyncio.Task[None]] = set()
        self._checks = 0  # the number of series of checks for inactive readers; only the last one goes on
        self._check_inactive(0)

    # ------------------------------------------------------------------ altering

    def losses(self, settings: Mapping[str, Any]) -> list[Loss]:
        state = self.state()
        kept = state.messages(0)
        consequence = "messages that it keeps would be dropped"

        def beyond(max_messages: int) -> int:
            return kept - state.messages(state.last - max_messages)

        found = self._bound_losses(settings, kept, state.bytes, beyond, consequence)
        found += self._age_losses(settings, state.first, kept)
        changed = [key for key in ("retention", "retain_for") if settings.get(key) != self.settings.get(key)]
        if changed:
            up_to = self._read_up_to(settings, self._cursors)
            if lost := kept - state.messages(up_to):
                floor = "lowest cursor or ack floor" if "retention" in settings else "cursor"
                found.append(Loss(changed[0], f"{lost} of the {kept} {consequence}, up to the {floor} {up_to}"))
        return found

    async def alter(self, settings: dict[str, Any]) -> None:
        await super().alter(settings)
        for group in self.groups.values():
            group.queue.limit_tries(settings.get("max_deliveries"))
        self._checks += 1
        self._check_inactive(self._checks)
        self._schedule_trim()
        before, self._retained_for = self._retained_for, settings.get("retain_for")
        if before == self._retained_for:
            return
        if before is not None:
            self._keep_cursor(before)  # it may never have been stored, and remains as any other
        if self._retained_for is not None:
            if self._retained_for not in self._cursors:
                self._unconfirmed.add(self._retained_for)
                self._cursors[self._retained_for] = self.state().first - 1
            self._keep_cursor(self._retained_for)
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # After an error the topic saves the cursors again.
        self.flush(lambda error: None if saved.done() else saved.set_result(None))
        await saved

    def _keep_cursor(self, name: str) -> None:
        """Stores the cursor of a durable subscription, unless it is damaged; that of `retain_for` drops messages."""
        if self._cursors[name] >= 0:
            self.move(name, self._cursors[name])

    # ------------------------------------------------------------------ subscribing

    def subscribe(
        self,
        replay: str | int | StartTime,
        sink: Sink,
        name: str | None = None,
        reset: bool = False,
        take_over: bool = False,
        resume: bool = False,
        client: Hashable = None,
    ) -> TopicSubscription:
        """Opens a subscription; see `Broker.subscribe`."""
        if self.deleted:
            raise self.gone()
        if resume and name is not None and self._last_clients.get(name, client) != client:
            raise self._taken_over(name)
        holder = None if name is None else self._holders.get(name)
        if holder is not None and not take_over:
            raise TopicError(
                f"the durable subscription {name!r} of topic {self.name!r} is already open; "
                "take_over=True takes it over"
            )
        known = None if name is None else self._cursors.get(name)
        restarts = False
        if known == -1 and not reset:
            raise Damaged(
                f"the cursor of {name!r} in {self.name!r} is damaged; subscribe with replay (and reset) to start over"
            )
        if known is not None and known + 1 < (first := self.state().first):
            if not reset:
                raise _overrun(self.name, known + 1, first)
            known, restarts = None, True
        position, from_earliest = self._start_position(replay, restarts) if known is None else (known, False)
        if holder is not None:
            self._end(holder, self._taken_over(holder.name))
        subscription = TopicSubscription(self, sink, name, position, from_earliest)
        self.touch()
        self._subscriptions[subscription] = None
        if name is not None:
            self._holders[name] = subscription
            self._last_clients[name] = client
            self._active[name] = Activity.now()
            if known is None:
                # The subscription is durable from now on, even if its position is never moved.
                self._unconfirmed.add(name)
                self.move(name, position)
        subscription.resume()
        return subscription

    def _taken_over(self, name: str | None) -> TakenOver:
        return TakenOver(f"another client has taken over {name!r} of topic {self.name!r}")

    def _start_position(self, replay: str | int | StartTime, restarts: bool) -> tuple[int, bool]:
        """Returns the position where a subscription starts or restarts, and whether that is the earliest message."""
        if isinstance(replay, StartTime):
            return self._position_at(replay, restarts)
        if replay == "latest":
            return self.last, False
        first = max(self.state().first, self._trimmed_to + 1)
        if replay == "earliest":
            return first - 1, True
        if not isinstance(replay, int) or isinstance(replay, bool) or replay < 0:
            raise TopicError(f"replay={replay!r:.80}: must be 'latest', 'earliest', an id or a time")
        self._check_not_future(replay)
        if replay + 1 < first:
            raise _overrun(self.name, replay + 1, first)
        return replay, False

    def _position_at(self, start: StartTime, restarts: bool) -> tuple[int, bool]:
        """Returns what `_start_position` does, for a time.

        If messages since then may be dropped, a subscription that restarts begins at the earliest message, as it has
        lost messages anyway.
        """
        time, now = start.microseconds, wall()
        found = self.offset_at(time)
        if found.is_end and time > now + _MAX_CLOCK_DIFFERENCE_US:
            raise TopicError(
                f"replay={describe_time(time)}: must not be in the future; the broker's time is {describe_time(now)}"
            )
        if found.dropped and not restarts:
            raise overrun_since(self.name, start, found.next, found.timestamp)
        return max(found.next - 1, self._trimmed_to), found.dropped

    def is_durable(self, name: str) -> bool:
        """Returns whether the position of a durable subscription is stored durably."""
        return name in self._cursors and name not in self._unconfirmed

    def _check_not_future(self, position: int) -> None:
        """Raises `TopicError` for an id above the newest one.

        The newest one is that of the store: READ may return messages before this loop is notified of them. A follower
        may not have messages yet that a client has got elsewhere.
        """
        if not self._scheduler.leads:
            return
        if position > self.last and position > (newest := max(self.last, self.state().last)):
            raise TopicError(f"id {position} is above the newest id of topic {self.name!r}, {newest}")

    @property
    def readers(self) -> int:
        return len(self._subscriptions) + sum(len(group.consumers) for group in self.groups.values())

    def remove(self, subscription: TopicSubscription) -> None:
        """Removes a subscription that has ended."""
        self.touch()
        self._subscriptions.pop(subscription, None)
        self._ready.pop(subscription, None)
        name = subscription.name
        if name is not None and self._holders.get(name) is subscription:
            del self._holders[name]
            self._active[name] = Activity.now()

    def end(self, error: BrokerError | None) -> None:
        for subscription in tuple(self._subscriptions):
            self._end(subscription, error)
        for group in self.groups.values():
            group.end(error)

    def reopen(self) -> None:
        super().reopen()
        for group in self.groups.values():
            group.reopen()
        self._schedule_trim()

    async def close(self) -> None:
        await super().close()
        for group in tuple(self.groups.values()):
            await group.queue.close()

    def adopt_subscriptions(self, other: BroadcastTopic) -> None:
        """Takes over the subscriptions of the same topic in an earlier core that are not durable."""
        for subscription in [one for one in other._subscriptions if one.name is None]:
            del other._subscriptions[subscription]
            self._subscriptions[subscription] = None
            subscription.topic = self
            subscription.resume()

    def revoke_access(self, permissions: Permissions) -> None:
        for subscription in tuple(self._subscriptions):
            if not permissions.allows(subscription.sink.user, "subscribe", self.name):
                self._end(subscription, PermissionDenied(f"the permission to subscribe to {self.name!r} was revoked"))
        for group in self.groups.values():
            group.revoke_access(permissions)

    def _end(self, subscription: TopicSubscription, error: BrokerError | None) -> None:
        subscription.end()
        try:
            subscription.sink.closed(error)
        except Exception:
            log.exception("topic %r: the sink of a subscription failed", self.name)

    # ------------------------------------------------------------------ delivering

    def grown(self, last: int) -> None:
        if self._subscriptions and last > self.readable:
            self._ready.update(self._subscriptions)
        for group in self.groups.values():
            group.queue.grown(last)
            group.wake()
        super().grown(last)

    def schedule(self, subscription: TopicSubscription) -> None:
        """Schedules a turn for a subscription that has room and messages to deliver."""
        self._ready[subscription] = None
        self._scheduler.ready(self)

    def pump(self) -> bool:
        budget = TURN_BYTES
        while budget > 0 and self._ready:
            subscriptions = self._next_subscriptions()
            if subscriptions:
                budget -= self._serve(subscriptions, budget)
                for one in subscriptions:
                    if one in self._ready:  # after those that have not had their turn
                        del self._ready[one]
                        self._ready[one] = None
        if self._ready_groups:
            group_queue = next(iter(self._ready_groups))
            del self._ready_groups[group_queue]
            self._drop_missing([group_queue])
            if group_queue.pump():
                self._ready_groups[group_queue] = None  # after the others
        return bool(self._ready or self._ready_groups)

    def _next_subscriptions(self) -> list[TopicSubscription]:
        """Returns the ready subscriptions at the position of the first one: they share one read and one check."""
        subscriptions: list[TopicSubscription] = []
        for subscription in tuple(self._ready):
            if subscriptions and subscription.position != subscriptions[0].position:
                continue
            if subscription.position >= self.readable or subscription.sink.room() <= 0:
                del self._ready[subscription]  # ready again when the topic grows, or its sink has room
                continue
            subscriptions.append(subscription)
        return subscriptions

    def _serve(self, subscriptions: list[TopicSubscription], limit: int) -> int:
        """Delivers about *limit* bytes of blocks to subscriptions at one position; returns the number of bytes."""
        self.touch()
        served = 0
        try:
            with self._store.store.read(self.id) as reader:
                id = subscriptions[0].position + 1
                # Records that this loop was not notified of yet are delivered later.
                for header, records in reader.blocks(id, self.readable + 1):
                    first, count, _, size = read_header(header)
                    last = first + count - 1
                    if len(subscriptions) > 1 and not isinstance(records.obj, bytes):
                        # Sockets that are full share one copy instead of making one each.
                        records = memoryview(bytes(records))
                    served += max(size, MIN_BLOCK_BYTES, len(subscriptions) << 10)
                    subscriptions = [one for one in subscriptions if self._deliver_block(one, header, records, last)]
                    self.delivered += count * len(subscriptions)
                    self.delivered_bytes += size * len(subscriptions)
                    if served >= limit or not subscriptions:
                        return served
                # The ids that follow have no records: a crash skips ids.
                for one in subscriptions:
                    one.position = max(one.position, self.readable)
        except Gone as error:
            for one in subscriptions:
                if not one._skip_dropped(error.first):
                    self._end(one, _overrun(self.name, one.position + 1, error.first))
        except DamagedError as error:
            log.error(
                "topic %r: %s",
                self.name,
                error,
                extra={"event": "messages_damaged", "topic": self.name, "first": error.first, "last": error.last},
            )
            for one in subscriptions:
                self._end(one, Damaged(f"topic {self.name!r}: {error}", error.first, error.last))
        except StoreClosed:
            for one in subscriptions:
                self._ready.pop(one, None)  # the broker stops, or a follower loads a snapshot, and begins another core
        except StoreError as error:
            for one in subscriptions:
                self._end(one, broker_error(error))
        return max(served, MIN_BLOCK_BYTES)

    def _deliver_block(self, subscription: TopicSubscription, header: bytes, records: memoryview, last: int) -> bool:
        """Delivers one block; returns whether the subscription takes more."""
        if not subscription.active or subscription.sink.room() <= 0:
            self._ready.pop(subscription, None)
            return False
        try:
            subscription._deliver(header, records, last)
        except Exception:
            log.exception("topic %r: the sink of a subscription failed", self.name)
            self._end(subscription, BrokerFailed("the broker has failed to send"))
            return False
        return subscription.active

    # ------------------------------------------------------------------ durable subscriptions

    def move(self, name: str, position: int) -> None:
        """Moves the position of a durable subscription."""
        self._check_not_future(position)
        self.touch()
        if name == self._retained_for or "retention" in self.settings:
            position = max(position, self._cursors.get(name, position))  # earlier messages are dropped
        self._cursors[name] = self._dirty[name] = position
        self._stored_cursors[name] = min(self._stored_cursors.get(name, position), position)
        self._active[name] = Activity.now()
        self._schedule_save()

    def save(self) -> None:
        if self.deleted:
            return
        dirty, self._dirty = self._dirty, {}
        for name, position in dirty.items():
            self._submit_save(SetCursor(self.id, name, position))
        dirty_groups, self._dirty_groups = self._dirty_groups, {}
        for name in dirty_groups:
            if (group := self.groups.get(name)) is not None and (write := group.queue.unsaved()) is not None:
                self._submit_save(write)

    def _on_saved(self, write: Write) -> None:
        if write.error is None:
            if isinstance(write, Acknowledge):
                self.acknowledged(write.group, write.floor)
            elif isinstance(write, SetCursor):
                self._unconfirmed.discard(write.name)
                if write.name in self._cursors:
                    self._stored_cursors[write.name] = min(write.id, self._cursors[write.name])
                self._schedule_trim()
        super()._on_saved(write)

    def _restore_unsaved(self, write: Write) -> None:
        if isinstance(write, Acknowledge):
            group = self.groups.get(write.group, self._suspended.get(write.group))
            if group is not None and group.queue.generation == write.generation:
                group.queue.take_back(write)
                self._dirty_groups[write.group] = None
            return
        assert isinstance(write, SetCursor)
        if write.name in self._cursors:
            self._dirty.setdefault(write.name, self._cursors[write.name])

    # ------------------------------------------------------------------ messages that all readers have

    def _read_up_to(self, settings: Mapping[str, Any], cursors: Mapping[str, int]) -> int:
        """Returns the id up to which the readers for which the topic keeps its messages have acknowledged them.

        With `retention` these readers are all durable subscriptions and groups, otherwise the one of `retain_for`.

        Args:
            settings: All settings.
            cursors: The cursors of the durable subscriptions.

        Returns:
            The lowest cursor or ack floor; -1 if that is damaged, or without such a reader.
        """
        positions: list[int] = []
        name = settings.get("retain_for")
        if "retention" in settings:
            positions += cursors.values()
            positions += self._moving.values()
            positions += self._ack_floors.values()
        if name is not None:
            positions.append(cursors[name] if name in cursors else self.state().first - 1)  # it will start there
        return min(positions, default=-1)

    def acknowledged(self, group: str, floor: int) -> None:
        if floor > self._ack_floors.get(group, floor):
            self._ack_floors[group] = floor
            self._schedule_trim()

    def _schedule_trim(self) -> None:
        """Schedules `_trim`, once for all results of this turn of the loop."""
        if keeps_unread(self.settings) and not self._trim_scheduled:
            self._trim_scheduled = True
            self._scheduler.later(0, self._trim)

    def _trim(self) -> None:
        """Drops the messages that all readers for which the topic keeps them have acknowledged durably."""
        self._trim_scheduled = False
        if self.deleted or not keeps_unread(self.settings):
            return
        up_to = self._read_up_to(self.settings, self._stored_cursors)
        if up_to >= self.state().first:
            self._trimmed_to = max(self._trimmed_to, up_to)
            self._store.submit(Trim(self.id, up_to + 1), self._on_trimmed)

    def _on_trimmed(self, write: Trim) -> None:
        if isinstance(write.error, OutOfSpace):
            self._scheduler.later(_TRIM_RETRY_DELAY_S, self._trim)
            return
        self.shrunk()

    # ------------------------------------------------------------------ purging

    async def purge(self, up_to: int) -> int:
        self.check_not_retained()
        with self.purging(up_to):
            write = await self.do(Trim(self.id, up_to + 1))
            self.shrunk(up_to)
        return write.dropped

    @contextlib.contextmanager
    def purging(self, up_to: int) -> Iterator[None]:
        """Marks messages that the block may purge or requeue, so that groups do not count them as lost.

        The block calls `shrunk` with the last one that it has purged or requeued.

        Args:
            up_to: The id of the last one.
        """
        self.refresh()
        self._purging.append(up_to)
        try:
            yield
        finally:
            self._purging.remove(up_to)

    def check_not_retained(self) -> None:
        """Raises `TopicError` if the topic keeps its messages for readers (`retention` or `retain_for`)."""
        if "retention" in self.settings:
            raise TopicError(
                f"topic {self.name!r} has retention={self.settings['retention']!r}: its messages are dropped when all "
                "durable subscriptions and groups have acknowledged them, not before"
            )
        if self._retained_for is not None:
            raise TopicError(
                f"topic {self.name!r} has retain_for={self._retained_for!r}: its messages are dropped when this "
                "durable subscription acknowledges them, not before"
            )

    def shrunk(self, purged: int = 0) -> None:
        """Resumes publications that wait for room after the store has dropped messages.

        Args:
            purged: The id of the last message that was purged or requeued; 0 if none was.
        """
        self._purged = max(self._purged, purged)
        self.touch()
        if self.admission is not None:
            self.admission.resume()

    async def delete_durable(self, name: str) -> None:
        """Deletes a durable subscription.

        Raises:
            TopicError: It does not exist, is open, or is the one of `retain_for`.
        """
        if name == self._retained_for:
            raise TopicError(f"{self.name!r} keeps its messages for {name!r} (retain_for), which cannot be deleted")
        if name not in self._cursors:
            raise TopicError(f"topic {self.name!r} has no durable subscription {name!r}")
        if name in self._holders:
            raise TopicError(f"the durable subscription {name!r} of topic {self.name!r} is open; close it first")
        self._dirty.pop(name, None)
        position, active = self._cursors.pop(name), self._active.pop(name)
        self.touch()
        try:
            await self.do(DeleteCursor(self.id, name))
        except BrokerError:
            self._cursors.setdefault(name, position)
            self._active.setdefault(name, active)
            self.touch()
            if position >= 0:  # it may not be saved yet
                self._dirty.setdefault(name, position)
                self._schedule_save()
            raise
        if name not in self._cursors:
            self._stored_cursors.pop(name, None)
            self._last_clients.pop(name, None)
        self._schedule_trim()

    # ------------------------------------------------------------------ consumer groups

    def group(self, name: str) -> TopicQueue:
        """Returns the work queue of a group.

        Raises:
            TopicError: There is no such group, or it is being deleted or moved.
            Damaged: The acks of the group are damaged.
        """
        group = self.groups.get(name)
        if group is None or group.ended:
            if name in self._damaged_groups:
                raise Damaged(
                    f"the acks of group {name!r} of {self.name!r} are damaged: {self._damaged_groups[name]}; "
                    "seek the group, or delete it, to start over"
                )
            raise TopicError(f"topic {self.name!r} has no consumer group {name!r}")
        return group

    def has_group(self, name: str) -> bool:
        """Returns whether a group exists and is not being changed; its acks may be damaged."""
        return name not in self._changing and (name in self.groups or name in self._damaged_groups)

    async def make_group(self, name: str, replay: str | int | StartTime) -> None:
        """Creates a group if it does not exist.

        Args:
            name: Its name.
            replay: The start: `"latest"`, `"earliest"`, the id after which the group starts, or a time.

        Raises:
            TopicError: The name is not valid, or the id is above the newest one.
            Overrun: The messages after the id are no longer kept.
        """
        check_name(name, "a group's name")
        while (change := self._changing.get(name)) is not None:
            await change
        if name not in self.groups and name not in self._damaged_groups:
            await self._set_group(name, self._start_position(replay, restarts=False)[0])
            self._log_group(name, "created", "was created")

    async def seek_group(self, name: str, replay: str | int | StartTime) -> None:
        """Moves a group: all messages after a position become unacknowledged, and all others acknowledged.

        Args:
            name: Its name.
            replay: The position, as in `make_group`.

        Raises:
            TopicError: There is no such group, it has consumers, or the id is above the newest one.
            Overrun: The messages after the id are no longer kept.
        """
        await self._check_unused(name, "moved")
        position = self._start_position(replay, restarts=False)[0]
        await self._set_group(name, position)
        self._log_group(name, "moved", f"was moved to id {position}", position=position)

    async def delete_group(self, name: str) -> None:
        """Deletes a group.

        Raises:
            TopicError: There is no such group, or it has consumers.
        """
        await self._drop_group(name)
        self._log_group(name, "deleted", "was deleted")

    async def _drop_group(self, name: str) -> None:
        await self._check_unused(name, "deleted")
        async with self._change(name):
            await self.do(DeleteGroup(self.id, name))
            self._damaged_groups.pop(name, None)
            self._ack_floors.pop(name, None)
        self._schedule_trim()

    def _log_group(self, name: str, change: str, text: str, **fields: int) -> None:
        log.info(
            "topic %r: group %r %s",
            self.name,
            name,
            text,
            extra={"event": "group_changed", "topic": self.name, "group": name, "change": change, **fields},
        )

    async def _check_unused(self, name: str, change: str) -> None:
        while (busy := self._changing.get(name)) is not None:
            await busy
        if name in self._damaged_groups:
            return
        if consumers := len(self.group(name).consumers):
            raise TopicError(
                f"group {name!r} of topic {self.name!r} cannot be {change}: it is in use (consumers: {consumers}); "
                "close them first"
            )

    @contextlib.asynccontextmanager
    async def _change(self, name: str) -> AsyncIterator[None]:
        """Keeps consumers and other changes from a group, and ends its queue; restores it if the change fails."""
        change = self._changing[name] = asyncio.get_running_loop().create_future()
        group = self.groups.get(name)
        try:
            if group is not None:
                group.ended = True
                await group.queue.close()
                await self.flushed()
                # It saves nothing from here on: no earlier ack may be stored after the change.
                self._suspended[name] = self.groups.pop(name)
                self.touch()
            yield
        except BaseException:
            if group is not None:
                self.groups[name] = group
                group.reopen()
                group.changed()  # what was to be saved meanwhile
            raise
        finally:
            self._suspended.pop(name, None)
            del self._changing[name]
            change.set_result(None)
            self.touch()

    async def _set_group(self, name: str, position: int) -> None:
        self._moving[name] = position
        try:
            async with self._change(name):
                await self.do(SetGroup(self.id, name, position))
                if self.deleted:
                    raise self.gone()
                self._damaged_groups.pop(name, None)
                self._ack_floors[name] = position
                self._add_group(name, self.state())
        finally:
            del self._moving[name]
            self._schedule_trim()

    def _add_group(self, name: str, state: TopicState) -> None:
        """Opens a group that the store has."""
        group: TopicQueue

        def wake() -> None:
            self._ready_groups[group] = None
            self._scheduler.ready(self)

        def changed() -> None:
            self._dirty_groups[name] = None
            self._schedule_save()

        try:
            group = TopicQueue(
                self,
                self._store,
                state,
                self._dead_letters,
                wake=wake,
                changed=changed,
                later=self._scheduler.later,
                group=name,
            )
        except DamagedError as error:
            log.error(
                "topic %r: the acks of group %r are damaged: %s",
                self.name,
                name,
                error,
                extra={"event": "group_damaged", "topic": self.name, "group": name},
            )
            self._damaged_groups[name] = error
        else:
            group.queue.grown(self.readable)
            self.groups[name] = group
            group.skip(state.jumped)

    def refresh(self) -> None:
        """Drops from all groups the messages that the store has dropped, and counts the losses by retention."""
        self._drop_missing(self.groups.values())

    def _drop_missing(self, groups: Collection[TopicQueue]) -> None:
        """Drops from *groups* the messages that the store has dropped, also those that were in flight meanwhile."""
        if not groups or self.deleted:
            return
        first = self.state().first
        purged = max(self._purged, *self._purging, 0)
        for group in groups:
            group.queue.expire(min(first, purged + 1))
            group.expire(first, "retention", "were dropped by retention")

    # ------------------------------------------------------------------ inactive readers

    def _idle(self, kind: _ReaderKind, name: str) -> float:
        """Returns the seconds for which a reader was not in use; 0 while it is in use, or if it cannot be inactive."""
        if kind == "subscription":
            if name in self._holders or name == self._retained_for or name not in self._cursors:
                return 0.0
            return self._active[name].idle()
        if name in self._changing:
            return 0.0
        if name in self._damaged_groups:
            return self._opened.idle()
        group = self.groups.get(name)
        return 0.0 if group is None or group.consumers else group.active.idle()

    def _readers_by_name(self) -> Iterator[tuple[_ReaderKind, str]]:
        for name in self._cursors:
            yield "subscription", name
        for name in (*self.groups, *self._damaged_groups):
            yield "group", name

    def _check_inactive(self, checks: int) -> None:
        """Deletes the readers that are inactive, and schedules the next check.

        Args:
            checks: The number of this series of checks. It ends when the settings change.
        """
        threshold = self.settings.get("inactive_threshold")
        if threshold is None or checks != self._checks or not self._exists():
            return
        wait = threshold
        for kind, name in self._readers_by_name():
            left = threshold - self._idle(kind, name)
            if left > 0:
                wait = min(wait, left)
            else:
                wait = min(wait, _EXPIRY_RETRY_DELAY_S)
                task = asyncio.get_running_loop().create_task(self._expire_reader(kind, name, threshold))
                self._expiring.add(task)
                task.add_done_callback(self._expiring.discard)
        wait = min(max(wait, _MIN_CHECK_INTERVAL_S), _MAX_CHECK_INTERVAL_S)
        self._scheduler.later(wait, lambda: self._check_inactive(checks))

    def _exists(self) -> bool:
        """Returns whether the store has the topic; its deletion may fail."""
        try:
            return self._store.store.topic(self.id).id == self.id
        except UnknownTopic:
            return False

    async def _expire_reader(self, kind: _ReaderKind, name: str, threshold: float) -> None:
        """Deletes a durable subscription or a group, unless it was in use within *threshold* seconds."""
        idle = self._idle(kind, name)
        if idle < threshold or self.deleted:
            return
        unread = self._unread(kind, name)
        with contextlib.suppress(BrokerError):  # the next check tries again
            await (self._drop_group(name) if kind == "group" else self.delete_durable(name))
            self.touch()
            self.readers_expired += 1
            log.warning(
                "topic %r: %s %r was deleted, as it was not in use for %d s; it had %d unread messages",
                self.name,
                "group" if kind == "group" else "durable subscription",
                name,
                idle,
                unread,
                extra={"event": "reader_expired", "topic": self.name, kind: name, "idle": idle, "lag": unread},
            )

    def _unread(self, kind: _ReaderKind, name: str) -> int:
        """Returns the number of kept messages that a reader has not acknowledged; of a damaged group all."""
        if kind == "subscription":
            return self._lag_counter()(self._cursors[name])
        group = self.groups.get(name)
        return self.state().messages(0, self.last) if group is None else group.unfinished(self.last)

    # ------------------------------------------------------------------ statistics

    def group_stats(self) -> list[GroupStats]:
        self.refresh()
        return [
            {
                "name": name,
                "lag": group.unfinished(self.last),
                "in_flight": group.in_flight,
                "consumers": len(group.consumers),
                "active": group.active.time,
            }
            for name, group in self.groups.items()
        ]

    def durables(self) -> list[CursorStats]:
        lag = self._lag_counter()
        return [
            {
                "name": name,
                "position": position,
                "lag": lag(position),
                "held": name in self._holders,
                "active": self._active[name].time,
            }
            for name, position in self._cursors.items()
        ]

    def _lag_counter(self) -> Callable[[int], int]:
        """Returns a function that counts the messages after a position."""
        state = self.state()
        return lambda position: state.messages(position, self.last)

    def subscriptions(self) -> list[SubscriptionStats]:
        lag = self._lag_counter()
        subscribers: list[SubscriptionStats] = [
            {
                "kind": "subscriber",
                "listener": subscription.sink.listener,
                "name": subscription.name,
                "user": subscription.sink.user,
                "peer": subscription.sink.peer,
                "position": subscription.position,
                "lag": lag(subscription.position),
                "in_flight": 0,
            }
            for subscription in self._subscriptions
        ]
        return subscribers + [one for group in self.groups.values() for one in group.subscriptions()]


def _overrun(topic: str, wanted: int, first: int) -> Overrun:
    return Overrun(f"message {wanted} of topic {topic!r} is no longer kept; the oldest is {first}", first)
