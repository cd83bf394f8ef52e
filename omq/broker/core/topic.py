"""The base class of broadcast and round-robin topics, and the admission of publications to bounded topics.

A bounded topic admits a publication if it has room. Otherwise the setting `overflow` decides what happens to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeGuard, TypeVar

from omq._core import blocks
from omq.broker.core.permissions import Permissions
from omq.broker.core.stats import CursorStats, GroupStats, SubscriptionStats, TopicStats
from omq.broker.core.user_limits import UserLimits, UserUsage
from omq.broker.errors import (
    BrokerError,
    BrokerFailed,
    Busy,
    DuplicateSequence,
    StoreFull,
    TopicError,
    WrongState,
    broker_error,
)
from omq.broker.protocol import pack_json
from omq.broker.settings import dead_letter_of, overflow_of
from omq.serving.rate_limit import RateLimit
from omq.store.async_store import AsyncStore
from omq.store.clock import wall
from omq.store.errors import StoreError, TopicFull, UnknownTopic
from omq.store.interface import MAX_MEMORY_BYTES, Append, Delivery, TopicState, Write
from omq.unpatched import threading

log = logging.getLogger("omq.broker")

#: Bytes of all connections that may wait for the store.
MAX_WAITING_BYTES: Final = 256 << 20
#: Bytes of one topic's publications that may wait for room; after that the broker answers `busy`.
_MAX_HELD_BYTES: Final = 16 << 20
#: Bytes of all topics' publications that may wait for room.
MAX_TOTAL_HELD_BYTES: Final = 256 << 20
#: The approximate size of the objects of a waiting publication, without its messages.
HELD_OVERHEAD_BYTES: Final = 3 << 10
#: Between two checks whether a full topic has room again, as room may appear without an event.
_POLL_INTERVAL_S: Final = 0.25
#: After the disk was full, until a write that failed is submitted again.
_SAVE_RETRY_DELAY_S: Final = 1.0

#: Called with the id of the first record; or with 0 and the error if nothing was stored.
OnAppended = Callable[[int, BrokerError | None], None]


class TopicScheduler(Protocol):
    """Gives topics their turns to deliver; the broker implements it.

    Attributes:
        held: The size of the publications that wait for room in all topics.
        user_limits: The limits and the usage of all users.
        ended: The broker has stopped or is stopping.
        leads: False in a follower of a cluster.
    """

    held: HeldBytes
    user_limits: UserLimits
    ended: bool
    leads: bool

    def ready(self, topic: Topic) -> None:
        """Schedules a turn for a topic that has something to deliver."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Makes a call later, unless the broker has stopped by then."""


def check_waiting(scheduler: TopicScheduler, store: AsyncStore, size: int) -> None:
    """Checks that the store can take *size* more bytes.

    Raises:
        Busy: Too many bytes wait for the store.
        BrokerFailed: The broker is stopping.
    """
    if scheduler.ended:
        raise BrokerFailed("the broker is stopping")
    if store.waiting and store.waiting + size > MAX_WAITING_BYTES:
        raise Busy(
            f"{store.waiting} bytes of all clients wait for the store (limit: {MAX_WAITING_BYTES}); send it again later"
        )


class TimeOffset(NamedTuple):
    """The result of a search for a time.

    Attributes:
        next: The id of the first message at or after the time; `last + 1` if all are earlier.
        timestamp: The timestamp of this message, in microseconds since 1970; 0 if it does not exist.
        dropped: Messages at or after the time may have been dropped.
        is_end: All messages are earlier.
    """

    next: int
    timestamp: int
    dropped: bool
    is_end: bool


class Loss(NamedTuple):
    """Messages that other settings of a topic would drop at once.

    Attributes:
        key: The name of the setting that would drop them.
        text: The number of the messages, as the end of an error text.
    """

    key: str
    text: str


_Bound = TypeVar("_Bound", int, float)
_Write = TypeVar("_Write", bound=Write)


def _is_lower(bound: _Bound | None, before: _Bound | None) -> TypeGuard[_Bound]:
    """Returns whether a bound is lower than before; `None`: without one."""
    return bound is not None and (before is None or bound < before)


@dataclass(slots=True)
class _FlushWaiter:
    """A flush that waits for writes.

    Attributes:
        last: The number of the last of these writes.
        done: Called with the error once all of them are answered.
        error: The first error of any of them.
    """

    last: int
    done: Callable[[BrokerError | None], None]
    error: BrokerError | None = None


class Topic:
    """One topic: its settings, its counters, and the progress of its readers that is to be stored.

    Args:
        state: Its state in the store.
        store: The store.
        scheduler: Gives the topic its turns.

    Attributes:
        id: Its id, never used again for another topic.
        name: Its name.
        delivery: `broadcast` or `round-robin`.
        persistence: `transient`, `strong`, `weak` or `async`.
        settings: The settings without defaults.
        owner: The user who has created it; empty for none.
        usage: The usage of its owner; `None` without one.
        last: The newest id.
        readable: The newest id that can be read; it may be lower than `last`.
        deleted: The topic was deleted or is being deleted, or another core has taken the place of its core.
        retired: The error of calls, once another core has taken the place of the topic's core.
        dead_letter: The name of its dead-letter topic; `None` for none.
        admission: Admits publications to a bounded topic; `None` admits everything.
        rejected: Messages that were rejected since the broker started.
    """

    delivery: Literal["broadcast", "round-robin"]

    def __init__(self, state: TopicState, store: AsyncStore, scheduler: TopicScheduler) -> None:
        self.id = state.id
        self.name = state.name
        self.persistence = state.persistence
        self.settings = dict(state.settings)
        self.owner = state.owner
        self.usage: UserUsage | None = scheduler.user_limits.of(self.owner) if self.owner else None
        self.dead_letter = dead_letter_of(self.name, self.delivery, self.settings)
        self.last = self.readable = state.last
        self.deleted = False
        self.retired: BrokerError | None = None
        self.published = self.published_bytes = 0
        self.delivered = self.delivered_bytes = 0
        self._store = store
        self._scheduler = scheduler
        self.rejected = 0
        self.admission: TopicAdmission | None = None
        self._set_bounds()
        self._saving: Write | None = None  # the last write of `_submit_save` that is not answered
        self._save_error: BrokerError | None = None  # of the last write
        self._retrying = False
        self._saves = 0  # the number of writes of `_submit_save`
        self._unanswered: dict[Write, int] = {}  # those that are not answered, and their number
        self._flush_waiters: deque[_FlushWaiter] = deque()
        # Cached statistics; `None` after a change.
        self._stats: TopicStats | None = None
        self._info: bytes | None = None
        self._cached_state: TopicState | None = None  # in the store, when the statistics were cached

    def __repr__(self) -> str:
        return f"<{self.delivery} topic {self.name!r}, {self.persistence}, {self.last} messages>"

    # ------------------------------------------------------------------ publishing

    def _set_bounds(self) -> None:
        """Sets the admission by the settings and the owner's limits.

        A topic without bounds, or that drops its oldest messages, has none, unless its owner has a limit.
        """
        overflow = overflow_of(self.delivery, self.settings)
        max_messages, max_bytes = self._bounds(self.settings)
        if overflow == "drop-oldest":
            max_messages = max_bytes = None
        admission = self.admission
        owner = self.limited_owner
        if max_messages is None and max_bytes is None and owner is None:
            self.admission = None
        elif admission is None:
            admission = self.admission = TopicAdmission(self, self._scheduler)
        if admission is not None:  # also one that is removed: its waiting publications continue
            admission.set_bounds(overflow, max_messages, max_bytes, owner)

    @property
    def limited_owner(self) -> UserUsage | None:
        """The usage of its owner, if that has a limit of bytes."""
        return self.usage if self.usage is not None and self.usage.limit.bytes is not None else None

    def owner_limits_changed(self) -> None:
        """Applies changed limits of the owner."""
        self._set_bounds()

    def stored_bytes(self) -> int:
        """Returns the approximate bytes that the topic keeps or is about to; in any thread."""
        admission = self.admission
        return self.state().bytes + (0 if admission is None else admission.submitted_bytes)

    def _bounds(self, settings: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Returns `max_messages` and `max_bytes`, with the default of topics in memory; `None` for no bound."""
        max_bytes = settings.get("max_bytes")
        has_default = self.delivery == "broadcast" or overflow_of(self.delivery, settings) != "drop-oldest"
        if max_bytes is None and has_default and self._store.in_memory(self.persistence):
            max_bytes = MAX_MEMORY_BYTES
        return settings.get("max_messages"), max_bytes

    # ------------------------------------------------------------------ altering

    def losses(self, settings: Mapping[str, Any]) -> list[Loss]:
        """Returns what other settings would drop at once, which the present ones keep.

        Args:
            settings: All settings, checked.
        """
        raise NotImplementedError

    def _bound_losses(
        self, settings: Mapping[str, Any], kept: int, size: int, beyond: Callable[[int], int], consequence: str
    ) -> list[Loss]:
        """Returns what `max_messages` and `max_bytes` would drop.

        Args:
            settings: All settings.
            kept: The number of messages that count for the bounds.
            size: Their approximate bytes.
            beyond: Returns the number of messages that a value of `max_messages` drops.
            consequence: The end of the error text: the messages, and the consequence for them.
        """
        if overflow_of(self.delivery, settings) != "drop-oldest":
            return []
        dropping = overflow_of(self.delivery, self.settings) == "drop-oldest"
        before = self._bounds(self.settings) if dropping else (None, None)
        max_messages, max_bytes = self._bounds(settings)

        def key_of(bound: str) -> str:
            """Returns the setting to blame: the bound, or the one by which the topic drops its oldest messages."""
            keys = (bound, "overflow", "retention", "retain_for")
            return next((key for key in keys if settings.get(key) != self.settings.get(key)), bound)

        found: list[Loss] = []
        if _is_lower(max_messages, before[0]) and (lost := beyond(max_messages)):
            found.append(Loss(key_of("max_messages"), f"{lost} of the {kept} {consequence}"))
        if _is_lower(max_bytes, before[1]) and size > max_bytes and kept > 1:
            found.append(Loss(key_of("max_bytes"), f"{size - max_bytes} of the {size} bytes of {kept} {consequence}"))
        return found

    def _age_losses(self, settings: Mapping[str, Any], oldest: int, kept: int) -> list[Loss]:
        """Returns what `max_age` would drop.

        Args:
            settings: All settings.
            oldest: The id of the oldest message.
            kept: The number of messages.
        """
        max_age = settings.get("max_age")
        if not kept or not _is_lower(max_age, self.settings.get("max_age")):
            return []
        age = self._store.store.age(self.id, oldest)
        if age <= max_age:
            return []
        return [Loss("max_age", f"the oldest of the {kept} messages that it keeps is {age:.3f} s old")]

    async def alter(self, settings: dict[str, Any]) -> None:
        """Applies other settings, which are stored already; returns once everything that they add is durable, too.

        Args:
            settings: All settings, checked.
        """
        self.set_settings(settings)

    def set_settings(self, settings: dict[str, Any]) -> None:
        """Sets all settings, and the bounds that follow from them."""
        self.touch()
        self.settings = settings
        self.dead_letter = dead_letter_of(self.name, self.delivery, settings)
        self._set_bounds()

    # ------------------------------------------------------------------ appending

    def append(
        self,
        records: bytes | memoryview,
        count: int,
        done: OnAppended,
        producer: bytes = b"",
        sequence: int = 0,
        first_outstanding: int = 0,
        alive: Callable[[], bool] = lambda: True,
        *,
        same_records: bool = False,
    ) -> None:
        """Stores records that were checked (`omq._core.blocks.check`), once the topic has room for them.

        Args:
            records: The records; they must not change until *done* is called.
            count: The number of records.
            done: Called in the loop once the topic's persistence holds: with the first record's id, or 0 and the error.
            producer: The id of the producer; with `sequence` it makes the append idempotent.
            sequence: The producer's number of this append; 0 without one.
            first_outstanding: The lowest sequence that the producer may repeat; 0 if it is not known.
            alive: Returns whether a client still waits for the answer. If not, a publication that waits for room is
                dropped.
            same_records: A repetition of a single record must have the content of the first append; otherwise it is
                refused.
        """
        try:
            if self.deleted:
                raise self.gone()
            check_waiting(self._scheduler, self._store, len(records))
        except BrokerError as error:
            done(0, error)
            return
        publication = RecordsPublication(
            self, records, count, done, producer, sequence, first_outstanding, alive, same_records
        )
        if self.admission is None:
            publication.submit()
        else:
            self.admission.admit(publication)

    def published_as(self, key: Hashable | None) -> None:
        """Continues the publications that repeat one that was stored; see `Publication.key`."""
        if self.admission is not None and key is not None:
            self.admission.submit_repetitions(key)

    def complete_append(self, write: Append, done: OnAppended) -> None:
        """Counts the records that the store has appended, and calls *done*."""
        if write.error is not None:
            done(0, broker_error(write.error))
            return
        if not write.first:
            text = f"sequence {write.sequence} is below the first outstanding one of its producer: nothing was stored"
            done(0, DuplicateSequence(text))
            return
        if not write.duplicate:
            self.count_published(write.count, len(write.records))
            last = write.first + write.count - 1
            if last > self.last:
                self.last = last
        done(write.first, None)

    def has_record(self, id: int, record: bytes | memoryview) -> bool:
        """Returns whether a message has this content, in any order of its headers, or is no longer kept."""
        try:
            with self._store.store.read(self.id) as reader:
                return all(
                    found == record or _content(found) == _content(record) for _, found in reader.blocks(id, id + 1)
                )
        except (StoreError, ValueError):  # `ValueError`: it is damaged
            return True

    def requeue_admission(self) -> TopicAdmission | None:
        """Returns the admission of requeued messages, which do not wait for room; `None` admits everything."""
        return self.admission

    async def purge(self, up_to: int) -> int:
        """Drops the messages up to an id; returns their number. See `Broker.purge`."""
        raise NotImplementedError

    def last_to_drop(self, up_to: int | None) -> int:
        """Returns the last id to drop: *up_to*, or the newest id for `None`.

        Raises:
            TopicError: The topic was deleted, or the id is above the newest one.
        """
        if self.deleted:
            raise self.gone()
        newest = max(self.last, self.state().last)
        if up_to is not None and up_to > newest:
            raise TopicError(f"up_to={up_to}: must be at most {newest}, the newest id of topic {self.name!r}")
        return newest if up_to is None else up_to

    def used(self) -> tuple[int, int]:
        """Returns the number and the approximate bytes of the messages that count for its bounds; in any thread."""
        state = self.state()
        return state.messages(0, self.last), state.bytes

    def refresh(self) -> None:
        """Updates the work queues after the store has dropped messages."""

    def acknowledged(self, group: str, floor: int) -> None:
        """Records the durable ack floor of a consumer group."""

    def count_published(self, count: int, size: int) -> None:
        """Counts messages that were appended, committed or moved to the topic."""
        self.touch()
        self.published += count
        self.published_bytes += size

    def count_moved(self, count: int, size: int) -> None:
        """Counts messages that were committed or moved to the topic, of which `grown` is not notified yet."""
        self.count_published(count, size)
        self.last = max(self.last, self.state().last)

    def grown(self, last: int) -> None:
        """Makes messages up to *last* readable, and schedules their delivery."""
        self.touch()
        if last > self.last:
            self.last = last
        if last > self.readable:
            self.readable = last
            self._scheduler.ready(self)

    def pump(self) -> bool:
        """Delivers messages of about `dispatcher.TURN_BYTES`; returns whether more can be delivered."""
        raise NotImplementedError

    def end(self, error: BrokerError | None) -> None:
        """Ends all readers."""
        raise NotImplementedError

    def gone(self) -> BrokerError:
        """Returns the error of a call while `deleted` is true."""
        return self.retired or TopicError(f"topic {self.name!r} was deleted")

    def reopen(self) -> None:
        """Continues after a deletion that has failed."""
        self.deleted = False
        self._schedule_save()

    def revoke_access(self, permissions: Permissions) -> None:
        """Ends the readers that *permissions* do not allow."""
        raise NotImplementedError

    async def close(self) -> None:
        """Ends all readers and saves their progress, when the broker stops."""
        self.end(None)
        if self.admission is not None:
            self.admission.end(None)
        self.save()

    # ------------------------------------------------------------------ saving the readers' progress

    def save(self) -> None:
        """Submits all unsaved acknowledgements and positions by `_submit_save`."""
        raise NotImplementedError

    def _schedule_save(self) -> None:
        """Saves changes, unless a save is in progress: the changes meanwhile are saved together after it."""
        if self._saving is None and not self._retrying:
            self.save()

    def _submit_save(self, write: Write) -> None:
        self._saving = write
        self._saves += 1
        self._unanswered[write] = self._saves
        self._store.submit(write, self._on_saved)

    def _on_saved(self, write: Write) -> None:
        error = None if write.error is None else broker_error(write.error)
        self._save_error = error
        # Several writes may be in progress: a flush waits for all, and reports the first error of any. The store
        # answers those of a deleted topic in any order.
        number = self._unanswered.pop(write)
        if error is not None:
            self._restore_unsaved(write)
            for waiter in self._flush_waiters:
                if number <= waiter.last:
                    waiter.error = waiter.error or error
        oldest = next(iter(self._unanswered.values()), self._saves + 1)
        while self._flush_waiters and self._flush_waiters[0].last < oldest:
            waiter = self._flush_waiters.popleft()
            waiter.done(waiter.error)
        if self._saving is not write:
            return
        self._saving = None
        if error is None:
            self.save()
        elif error.code == "full" and not self.deleted:
            self._retrying = True
            self._scheduler.later(_SAVE_RETRY_DELAY_S, self._retry)

    async def do(self, write: _Write) -> _Write:
        """Submits a write and waits for it.

        Raises:
            BrokerError: It failed, or the topic was deleted.
        """
        if self.deleted:
            raise self.gone()
        return await self._store.do(write)

    def _retry(self) -> None:
        self._retrying = False
        self._schedule_save()

    def _restore_unsaved(self, write: Write) -> None:
        """Adds the content of a failed write to the next save."""
        raise NotImplementedError

    def flush(self, done: Callable[[BrokerError | None], None]) -> None:
        """Calls *done* once all acknowledgements and positions so far are durable, or with the error."""
        self.save()
        if self._unanswered:
            self._flush_waiters.append(_FlushWaiter(self._saves, done))
        else:
            done(self._save_error)

    async def flushed(self) -> None:
        """Waits until all acknowledgements and positions so far are durable; raises the error if they cannot be."""
        flushed: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        self.flush(lambda error: None if flushed.done() else flushed.set_result(error))
        if (error := await flushed) is not None:
            raise error

    # ------------------------------------------------------------------ statistics

    def state(self) -> TopicState:
        """Returns the state of the topic in the store; an empty one if the store has just deleted it."""
        try:
            return self._store.store.topic(self.id)
        except UnknownTopic:
            kind: Delivery = "broadcast" if self.delivery == "broadcast" else "round_robin"
            settings = self.settings
            return TopicState(self.id, self.name, kind, self.persistence, settings, self.last + 1, self.last, 0)

    def offset_at(self, timestamp: int) -> TimeOffset:
        """Returns the id of the first message at or after a time; see `Reader.first_at`.

        Args:
            timestamp: The time, in microseconds since 1970.

        Raises:
            BrokerError: The topic cannot be read.
        """
        try:
            with self._store.store.read(self.id) as reader:
                id, found = reader.first_at(timestamp)
                # Messages were dropped before the oldest one; all of them are earlier than now.
                dropped = 1 < reader.first == id and timestamp < wall()
                return TimeOffset(id, found, dropped, id > reader.last)
        except StoreError as error:
            raise broker_error(error) from None

    @property
    def readers(self) -> int:
        """The number of open subscriptions or consumers."""
        raise NotImplementedError

    def info(self) -> bytes:
        """Returns the JSON of the topic in the answer `TOPICS`."""
        state = self._refresh_state()
        if self._info is None:
            self._info = pack_json(
                {
                    "name": self.name,
                    "id": self.id,
                    "delivery": self.delivery,
                    "persistence": self.persistence,
                    "settings": self.settings,
                    "first": state.first,
                    "last": max(state.last, self.last),
                    "bytes": state.bytes,
                    "subscribers": self.readers,
                }
            )
        return self._info

    def durables(self) -> list[CursorStats]:
        """Returns the statistics of the durable subscriptions."""
        return []

    def group_stats(self) -> list[GroupStats]:
        """Returns the statistics of the consumer groups."""
        return []

    def subscriptions(self) -> list[SubscriptionStats]:
        """Returns the statistics of the open subscriptions or consumers."""
        raise NotImplementedError

    def touch(self) -> None:
        """Drops the cached statistics. Each method that changes a statistic calls it."""
        self._stats = self._info = None

    def _refresh_state(self) -> TopicState:
        """Returns the state in the store; drops the cached statistics if it has changed.

        The store drops messages by itself, without a call of `touch`.
        """
        state = self.state()
        if state != self._cached_state:
            self.touch()
            self._cached_state = state
        return state

    def stats(self) -> TopicStats:
        """Returns the statistics: the same object until they change. The caller must not modify it."""
        self.refresh()
        state = self._refresh_state()
        if self._stats is None:
            self._stats = self._collect_stats(state)
        return self._stats

    def _collect_stats(self, state: TopicState) -> TopicStats:
        return {
            "name": self.name,
            "id": self.id,
            "delivery": self.delivery,
            "persistence": self.persistence,
            "settings": self.settings,
            "owner": self.owner or None,
            "first": state.first,
            "last": max(state.last, self.last),
            "bytes": state.bytes,
            "messages": state.messages(0, self.last),
            "backlog": self.backlog,
            "in_flight": self.in_flight,
            "published": self.published,
            "published_bytes": self.published_bytes,
            "delivered": self.delivered,
            "delivered_bytes": self.delivered_bytes,
            "redelivered": self.redelivered,
            "dead_lettered": self.dead_lettered,
            "rejected": self.rejected,
            "blocked": 0 if self.admission is None else self.admission.blocked,
            "dropped": self.dropped,
            "expired": self.expired,
            "readers_expired": self.readers_expired,
            "subscriptions": self.subscriptions(),
            "names": self.durables(),
            "groups": self.group_stats(),
        }

    backlog = 0
    in_flight = 0
    redelivered = 0
    dead_lettered = 0
    dropped = 0
    expired = 0
    readers_expired = 0


def _content(record: bytes | memoryview) -> tuple[bytes, bytes | None, dict[str, bytes]]:
    """Returns body, key and headers of a record."""
    messages: list[blocks.Message] = blocks.decode(blocks.header(1, 1, 0, len(record)), record, "")
    (message,) = messages
    return message.body, message.key, message.headers


class Publication:
    """Messages that are published together, and may have to wait for room.

    Args:
        count: The number of messages.
        size: The bytes of the messages.
        memory: The bytes that the publication keeps in memory while it waits, without its objects.
        alive: Returns whether a client still waits for the answer. If not, a waiting publication is refused.
        key: Equal for publications of which the store accepts only the first one; `None` for none.
    """

    __slots__ = ("alive", "count", "held_bytes", "key", "size")

    probing = False

    def __init__(
        self, count: int, size: int, memory: int, alive: Callable[[], bool], key: Hashable | None = None
    ) -> None:
        self.key = key
        self.held_bytes = HELD_OVERHEAD_BYTES + memory
        self.count = count
        self.size = size
        self.alive = alive

    def submit(self, admission: TopicAdmission | None = None) -> None:
        """Submits the messages to the store.

        Args:
            admission: It has reserved room for the messages, until `TopicAdmission.release`.
        """
        raise NotImplementedError

    def refuse(self, error: BrokerError) -> None:
        """Answers the publication with an error."""
        raise NotImplementedError


class RecordsPublication(Publication):
    """Records to append to a topic; see `Topic.append`.

    Attributes:
        admission: The admission that it has entered; `None` if the topic had none. Another may be in force since.
        probing: The store was asked whether the records are a repetition, and has not answered.
    """

    __slots__ = (
        "_answered",
        "_done",
        "_first_outstanding",
        "_producer",
        "_records",
        "_same_records",
        "_sequence",
        "_submitted",
        "_topic",
        "admission",
        "probing",
    )

    def __init__(
        self,
        topic: Topic,
        records: bytes | memoryview,
        count: int,
        done: OnAppended,
        producer: bytes,
        sequence: int,
        first_outstanding: int,
        alive: Callable[[], bool],
        same_records: bool,
    ) -> None:
        key = (producer, sequence) if producer and sequence else None
        super().__init__(count, len(records), len(records), alive, key)
        self._same_records = same_records
        self._topic = topic
        self._records = records
        self._done = done
        self._producer = producer
        self._sequence = sequence
        self._first_outstanding = first_outstanding
        self._answered = False  # both a probe and the submitted write may have the answer
        self.admission: TopicAdmission | None = None
        self.probing = False
        self._submitted = False

    @property
    def decided(self) -> bool:
        """Returns whether the records were submitted to the store, or refused."""
        return self._submitted or self._answered

    def submit(self, admission: TopicAdmission | None = None) -> None:
        self._submitted = True
        self._append(self._stored)

    def probe(self) -> None:
        """Asks the store for the answer in case the records are a repetition; it stores nothing."""
        self.probing = True
        self._append(self._probed, repeats_only=True)

    def _append(self, back: Callable[[Append], None], *, repeats_only: bool = False) -> None:
        topic = self._topic
        topic._store.waiting += self.size
        write = Append(
            topic.id,
            self._records,
            self.count,
            self._producer,
            self._sequence,
            self._first_outstanding,
            repeats_only=repeats_only,
        )
        topic._store.submit(write, back)

    def _stored(self, write: Append) -> None:
        topic = self._topic
        topic._store.waiting -= self.size
        self._answer(write)
        if self.admission is not None:
            self.admission.release(self.count, self.size)
        topic.published_as(self.key)

    def _probed(self, write: Append) -> None:
        self._topic._store.waiting -= self.size
        self.probing = False
        repeats = not isinstance(write.error, TopicFull)
        if not repeats:
            write.error = None  # breaks the reference cycle of the write and the error's traceback
        assert self.admission is not None
        self.admission.probed(self, repeats)
        if repeats:
            self._answer(write)

    def _answer(self, write: Append) -> None:
        if self._answered:
            return
        self._answered = True
        repeats = self._same_records and write.duplicate and write.error is None
        if repeats and not self._topic.has_record(write.first, self._records):
            self._done(
                0, TopicError(f"message {write.first} of {self._topic.name!r} has this message id, and other content")
            )
        else:
            self._topic.complete_append(write, self._done)

    def refuse(self, error: BrokerError) -> None:
        if not self._answered:
            self._answered = True
            self._done(0, error)


class HeldBytes:
    """The memory of the publications that wait for room in all full topics of a broker.

    Attributes:
        used: The bytes in use.
    """

    def __init__(self) -> None:
        self.used = 0
        self._log_limit = RateLimit()

    def has_room(self, size: int) -> bool:
        """Returns whether a publication of *size* bytes may wait; logs if it may not."""
        if not self.used or self.used + size <= MAX_TOTAL_HELD_BYTES:
            return True
        if self._log_limit.passes():
            log.warning(
                "%d bytes wait for room in all full topics: their publishers are answered busy",
                self.used,
                extra={"event": "publishers_refused", "waiting_bytes": self.used},
            )
        return False


class TopicAdmission:
    """Admits publications to a topic while it has room. Lives in the broker's loop.

    Args:
        topic: The topic.
        scheduler: Makes calls later, and counts the publications that wait in all topics.
    """

    def __init__(self, topic: Topic, scheduler: TopicScheduler) -> None:
        self._topic = topic
        self._blocks = False
        self._owner: UserUsage | None = None
        self._max_messages: int | None = None
        self._max_bytes: int | None = None
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._submitted = self._submitted_bytes = 0  # not answered by the store
        self._held: deque[Publication] = deque()  # waiting for room, oldest first
        self._held_by_key: defaultdict[Hashable, list[Publication]] = defaultdict(list)
        self._held_bytes = 0
        self._polling = False
        self._log_limit = RateLimit()

    def set_bounds(
        self, overflow: str, max_messages: int | None, max_bytes: int | None, owner: UserUsage | None = None
    ) -> None:
        """Sets the bounds. Submits waiting publications that now have room; rejects the rest unless they may block.

        Args:
            overflow: `block`: a publication without room waits. Any other value rejects it.
            max_messages: The maximum number of messages in the topic; `None` for no bound.
            max_bytes: The maximum number of bytes in the topic, approximately; `None` for no bound.
            owner: The usage of the owner, whose topics share a limit of bytes; `None` for no limit.
        """
        self._owner = owner
        self._blocks = overflow == "block"
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self.resume()
        if not self._blocks:
            for publication in tuple(self._held):
                self._remove(publication)
                if not publication.probing:  # `probed` rejects it if it is not a repetition
                    self._reject(publication)

    @property
    def submitted_bytes(self) -> int:
        """The bytes that were submitted to the store, which has not answered them."""
        return self._submitted_bytes

    @property
    def has_waiting(self) -> bool:
        """Returns whether publications wait for room."""
        return bool(self._held)

    @property
    def blocked(self) -> int:
        """The number of messages that wait for room."""
        return sum(publication.count for publication in self._held)

    def has_room(self, count: int, size: int) -> bool:
        """Returns whether the topic has room for *count* messages of *size* bytes; in any thread."""
        if self._owner is not None and not self._owner.has_room(size):
            return False
        messages, used = self._topic.used()
        messages += self._submitted
        used += self._submitted_bytes
        if not messages and self._blocks:
            return True  # a publication larger than the bounds would wait for ever
        if self._max_messages is not None and messages + count > self._max_messages:
            return False
        return self._max_bytes is None or used + size <= self._max_bytes

    def admit(self, publication: RecordsPublication) -> None:
        """Submits a publication, holds it until there is room, or rejects it."""
        self._topic.refresh()
        publication.admission = self
        if not self._held and self.has_room(publication.count, publication.size):
            self._submit(publication)
        elif not self._blocks and publication.key is None:
            self._reject(publication)
        elif (not self._blocks or self._hold(publication)) and publication.key is not None:
            publication.probe()  # a repetition needs no room

    def hold_or_reject(self, publication: Publication) -> None:
        """Holds a publication for which the store found no room, or rejects it."""
        if self._blocks:
            self._hold(publication)
        else:
            self._reject(publication)

    def _hold(self, publication: Publication) -> bool:
        """Holds a publication until there is room; refuses it and returns `False` if too many bytes wait."""
        if self._topic.deleted:
            publication.refuse(self._topic.gone())
            return False
        size = publication.held_bytes
        if self._held and self._held_bytes + size > _MAX_HELD_BYTES:
            waiting, where = self._held_bytes, "it"
        elif not self._scheduler.held.has_room(size):
            waiting, where = self._scheduler.held.used, "all full topics"
        else:
            self._held.append(publication)
            if publication.key is not None:
                self._held_by_key[publication.key].append(publication)
            self._held_bytes += size
            self._scheduler.held.used += size
            self._topic.touch()
            self._log("publishers wait")
            self._schedule_poll()
            return True
        publication.refuse(
            Busy(f"topic {self._topic.name!r} is full, and {waiting} bytes wait for room in {where}; publish it later")
        )
        return False

    def reserve(self, count: int, size: int) -> bool:
        """Reserves room for messages that do not wait for it; returns whether there is room; in any thread."""
        if not self.has_room(count, size):
            return False
        self._reserve(count, size)
        return True

    def _reserve(self, count: int, size: int) -> None:
        with self._lock:
            self._submitted += count
            self._submitted_bytes += size
        if self._owner is not None:
            self._owner.add_bytes(size)

    def take_back(self, count: int, size: int) -> None:
        """Releases reserved room, and continues no waiting publication; in any thread."""
        with self._lock:
            self._submitted -= count
            self._submitted_bytes -= size

    def release(self, count: int, size: int) -> None:
        """Releases the room that messages have reserved; the store has answered them."""
        self.take_back(count, size)
        self.resume()

    def resume(self) -> None:
        """Submits the waiting publications for which there is room now."""
        while self._held:
            publication = self._held[0]
            if (
                publication.alive()
                and not self._topic.deleted
                and not self.has_room(publication.count, publication.size)
            ):
                return
            self._remove(publication)
            if publication.alive():
                self._submit(publication)  # the store reports a topic that was deleted
            else:
                self._abandon(publication)

    def submit_repetitions(self, key: Hashable) -> None:
        """Submits the waiting publications with a key: one with this key was stored, so that they need no room."""
        for publication in tuple(self._held_by_key.get(key, ())):
            self._remove(publication)
            self._submit(publication)

    def end(self, error: BrokerError | None) -> None:
        """Refuses all waiting publications; with `None` they get no answer, and clients repeat them after a restart."""
        held, self._held = self._held, deque()
        self._held_by_key.clear()
        self._topic.touch()
        self._scheduler.held.used -= self._held_bytes
        self._held_bytes = 0
        for publication in held:
            if error is not None:
                publication.refuse(error)

    def _submit(self, publication: Publication) -> None:
        self._reserve(publication.count, publication.size)
        publication.submit(self)

    def _abandon(self, publication: Publication) -> None:
        publication.refuse(WrongState(f"the publisher gave up before topic {self._topic.name!r} had room"))

    def _remove(self, publication: Publication) -> None:
        self._held.remove(publication)
        if publication.key is not None:
            same = self._held_by_key[publication.key]
            same.remove(publication)
            if not same:
                del self._held_by_key[publication.key]
        self._topic.touch()
        self._held_bytes -= publication.held_bytes
        self._scheduler.held.used -= publication.held_bytes

    def probed(self, publication: RecordsPublication, repeats: bool) -> None:
        """Handles the result of a probe: a repetition is answered and no longer waits."""
        if repeats:
            if publication in self._held:
                self._remove(publication)
        elif not publication.decided and publication not in self._held:
            if not self._held and self.has_room(publication.count, publication.size):
                self._submit(publication)
            else:
                self.hold_or_reject(publication)

    def _reject(self, publication: Publication) -> None:
        self._topic.rejected += publication.count
        self._topic.touch()
        self._log("publications are rejected")
        if self._owner is not None and not self._owner.has_room(publication.size):
            publication.refuse(self._owner.no_room(self._topic.name, publication.size))
            return
        messages, used = self._topic.used()
        bounds = [
            f"{name}={bound}"
            for name, bound in (("max_messages", self._max_messages), ("max_bytes", self._max_bytes))
            if bound is not None
        ]
        publication.refuse(
            StoreFull(
                f"topic {self._topic.name!r} is full: it has {messages} messages of about {used} bytes, no room for "
                f"{publication.count} more, and {', '.join(bounds)}; publish fewer at once or later, or set overflow"
            )
        )

    def _log(self, consequence: str) -> None:
        if self._log_limit.passes():
            log.warning(
                "topic %r is full: %s",
                self._topic.name,
                consequence,
                extra={"event": "topic_full", "topic": self._topic.name, "effect": consequence},
            )

    def _schedule_poll(self) -> None:
        if not self._polling and self._held:
            self._polling = True
            self._scheduler.later(_POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        self._polling = False
        self._topic.refresh()
        for publication in [publication for publication in self._held if not publication.alive()]:
            self._remove(publication)
            self._abandon(publication)
        self.resume()
        self._schedule_poll()
