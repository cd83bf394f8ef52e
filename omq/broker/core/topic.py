"""A topic: what its two kinds, broadcast and round-robin, have in common.

What is published to a bounded topic is admitted to it first: `overflow` decides about what has no room.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final, Literal, Protocol

from omq.broker.core.permissions import Permissions
from omq.broker.core.rate_limit import RateLimit
from omq.broker.core.stats import CursorStats, SubscriptionStats, TopicStats
from omq.broker.errors import (
    AlreadySettled,
    BrokerError,
    BrokerFailed,
    Busy,
    StoreFull,
    TopicError,
    WrongState,
    broker_error,
)
from omq.broker.protocol import pack_json
from omq.broker.settings import overflow_of
from omq.store.async_store import AsyncStore
from omq.store.errors import TopicFull, UnknownTopic
from omq.store.interface import MAX_MEMORY_BYTES, Append, Delivery, TopicState, Write

log = logging.getLogger("omq.broker")

#: Bytes of records that one topic hands out before the next one has its turn.
TURN_BYTES: Final = 1 << 20
#: As how many of them a block counts at least, and a read that finds none: so a turn is short with the smallest blocks.
MIN_BLOCK_BYTES: Final = 16 << 10
#: Bytes of all connections that may wait for the store.
MAX_WAITING_BYTES: Final = 256 << 20
#: The most bytes of one topic's publications that wait for room; beyond, the broker answers that it is busy.
_MAX_HELD_BYTES: Final = 16 << 20
#: The most bytes of all topics' publications that wait for room.
MAX_TOTAL_HELD_BYTES: Final = 256 << 20
#: Counted for each publication that waits, besides its messages: about what its objects take.
HELD_OVERHEAD_BYTES: Final = 3 << 10
#: Between two looks whether a topic has room again, where no event reports it.
_POLL_INTERVAL_S: Final = 0.25

#: Called with the first record's id, or 0 and why nothing was stored.
OnAppended = Callable[[int, BrokerError | None], None]


class TopicScheduler(Protocol):
    """Gives topics their turns.

    Attributes:
        held: The account of the publications that wait for room in all topics.
        ended: The broker has ended, or is about to.
    """

    held: HeldBytes
    ended: bool

    def ready(self, topic: Topic) -> None:
        """The topic has something to hand out."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Makes a call later, unless the broker has ended by then."""


def check_waiting(scheduler: TopicScheduler, store: AsyncStore, size: int) -> None:
    """Refuses what is to be stored while the store cannot take it.

    Raises:
        Busy: Too much waits for the store.
        BrokerFailed: The broker ends.
    """
    if scheduler.ended:
        raise BrokerFailed("the broker ends")
    if store.waiting and store.waiting + size > MAX_WAITING_BYTES:
        raise Busy(f"{store.waiting} bytes of all clients wait for the disk")


class Topic:
    """One topic: its settings, its counters, and what is to be kept for its readers.

    Args:
        state: Its state in the store.
        store: Where it is stored.
        scheduler: Called when it has something to hand out.

    Attributes:
        id: Its number, never used for another one.
        name: Its name.
        delivery: `broadcast` or `round-robin`.
        persistence: What an acknowledgement means.
        settings: Those that were given.
        last: The newest id given.
        readable: The newest id that can be read already.
        deleted: It is gone, or about to go.
    """

    delivery: Literal["broadcast", "round-robin"]

    def __init__(self, state: TopicState, store: AsyncStore, scheduler: TopicScheduler) -> None:
        self.id = state.id
        self.name = state.name
        self.persistence = state.persistence
        self.settings = dict(state.settings)
        self.last = self.readable = state.last
        self.deleted = False
        self.published = self.published_bytes = 0
        self.delivered = self.delivered_bytes = 0
        self._store = store
        self._scheduler = scheduler
        #: `None`: it takes whatever is published.
        self.admission = self._admission(store)
        self._saving: Write | None = None  # the last write of `_submit_save` that is not answered
        self._save_error: BrokerError | None = None  # why the last one was not done
        self._retrying = False
        self._flush_waiters: list[tuple[Write, Callable[[BrokerError | None], None]]] = []
        self._flush_error: BrokerError | None = None  # why a write that a flush waits for was not done
        # Its cached statistics; `None`: something has changed since.
        self._stats: TopicStats | None = None
        self._info: bytes | None = None
        self._cached_state: TopicState | None = None  # its state in the store then

    def __repr__(self) -> str:
        return f"<{self.delivery} topic {self.name!r}, {self.persistence}, {self.last} messages>"

    # ------------------------------------------------------------------ publishing

    def _admission(self, store: AsyncStore) -> TopicAdmission | None:
        """Returns what decides where it is full; `None` where it has no bounds, or drops its oldest messages."""
        overflow = overflow_of(self.delivery, self.settings)
        if overflow == "drop-oldest":
            return None
        max_messages, max_bytes = self.settings.get("max_messages"), self.settings.get("max_bytes")
        if max_bytes is None and store.in_memory(self.persistence):
            max_bytes = MAX_MEMORY_BYTES
        if max_messages is None and max_bytes is None:
            return None
        return TopicAdmission(self, overflow, max_messages, max_bytes, self._scheduler)

    def append(
        self,
        records: bytes | memoryview,
        count: int,
        done: OnAppended,
        producer: bytes = b"",
        sequence: int = 0,
        settled: int = 0,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """Stores records that were checked (`omq._core.blocks.check`), once the topic has room for them.

        Args:
            records: Borrowed: nothing changes them.
            count: The number of them.
            done: Called in the loop with the first record's id, or 0 and the error, once the topic's persistence holds.
            producer: With `sequence`, makes a repetition harmless.
            sequence: See `producer`.
            settled: The producer has the answers of all sequences below.
            alive: Returns whether a client waits for that: what waits for room in a full topic is dropped otherwise.
        """
        try:
            if self.deleted:
                raise TopicError(f"topic {self.name!r} was deleted")
            check_waiting(self._scheduler, self._store, len(records))
        except BrokerError as error:
            done(0, error)
            return
        publication = RecordsPublication(self, records, count, done, producer, sequence, settled, alive)
        if self.admission is None:
            publication.submit()
        else:
            self.admission.admit(publication)

    def complete_append(self, write: Append, done: OnAppended) -> None:
        """Counts what the store has appended, and answers it."""
        if write.error is not None:
            done(0, broker_error(write.error))
            return
        if not write.first:
            done(0, AlreadySettled(f"sequence {write.sequence} is below what its producer has settled: not stored"))
            return
        if not write.duplicate:
            self.count_published(write.count, len(write.records))
            last = write.first + write.count - 1
            if last > self.last:
                self.last = last
        done(write.first, None)

    def used(self) -> tuple[int, int]:
        """Returns the messages that count for its bounds, and about how many bytes they have; in any thread."""
        state = self.state()
        return state.messages(0, self.last), state.bytes

    def refresh(self) -> None:
        """Takes note of what the store has dropped by itself."""

    def count_published(self, count: int, size: int) -> None:
        """Counts messages that were published, however they came."""
        self.touch()
        self.published += count
        self.published_bytes += size

    def grown(self, last: int) -> None:
        """Messages up to *last* can be read."""
        self.touch()
        if last > self.last:
            self.last = last
        if last > self.readable:
            self.readable = last
            self._scheduler.ready(self)

    def pump(self) -> bool:
        """Hands out some of what is there, about `TURN_BYTES`; returns whether more is to do."""
        raise NotImplementedError

    def end(self, error: BrokerError | None) -> None:
        """Ends all readers."""
        raise NotImplementedError

    def revoke_access(self, permissions: Permissions) -> None:
        """Ends those who read and may not any more."""
        raise NotImplementedError

    async def close(self) -> None:
        """Ends all readers, and saves what they have left; the broker ends."""
        self.end(None)
        if self.admission is not None:
            self.admission.end(None)
        self.save()

    # ------------------------------------------------------------------ what readers leave

    def save(self) -> None:
        """Submits what readers want to be kept and is not submitted yet, by `_submit_save`."""
        raise NotImplementedError

    def _schedule_save(self) -> None:
        """Saves changes; one write at a time is under way, so that the next one takes them all."""
        if self._saving is None and not self._retrying:
            self.save()

    def _submit_save(self, write: Write) -> None:
        self._saving = write
        self._store.submit(write, self._on_saved)

    def _on_saved(self, write: Write) -> None:
        error = None if write.error is None else broker_error(write.error)
        self._save_error = error
        if error is not None:
            self._restore_unsaved(write)
            self._flush_error = self._flush_error or error
        # Several writes may be under way: a flush waits for the last of them, and reports any that was not done.
        while self._flush_waiters and self._flush_waiters[0][0] is write:
            self._flush_waiters.pop(0)[1](self._flush_error)
        if self._saving is write or not self._flush_waiters:
            self._flush_error = None
        if self._saving is not write:
            return
        self._saving = None
        if error is None:
            self.save()
        elif error.code == "full" and not self.deleted:
            self._retrying = True
            self._scheduler.later(1.0, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self._schedule_save()

    def _restore_unsaved(self, write: Write) -> None:
        """A write of `_submit_save` was not done: it is to be part of the next one."""
        raise NotImplementedError

    def flush(self, done: Callable[[BrokerError | None], None]) -> None:
        """Calls *done* once all that readers have left so far is durable, or was not kept."""
        self.save()
        if self._saving is None:
            done(self._save_error)
        else:
            self._flush_waiters.append((self._saving, done))

    # ------------------------------------------------------------------ statistics

    def state(self) -> TopicState:
        """Returns its state in the store; an empty one where the store has just deleted it."""
        try:
            return self._store.store.topic(self.id)
        except UnknownTopic:
            kind: Delivery = "broadcast" if self.delivery == "broadcast" else "round_robin"
            settings = self.settings
            return TopicState(self.id, self.name, kind, self.persistence, settings, self.last + 1, self.last, 0)

    @property
    def readers(self) -> int:
        """Subscriptions or shares in force."""
        raise NotImplementedError

    def info(self) -> bytes:
        """Returns the topic as `TOPICS` sends it, in JSON."""
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
        """Its named positions."""
        return []

    def subscriptions(self) -> list[SubscriptionStats]:
        """The subscriptions in force."""
        raise NotImplementedError

    def touch(self) -> None:
        """Drops the cached statistics. Every change of them calls this."""
        self._stats = self._info = None

    def _refresh_state(self) -> TopicState:
        """Returns its state in the store, and notices whether that has changed: the store drops messages by itself."""
        state = self.state()
        if state != self._cached_state:
            self.touch()
            self._cached_state = state
        return state

    def stats(self) -> TopicStats:
        """Returns its statistics: the same object, not to be altered, until they change."""
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
            "first": state.first,
            "last": max(state.last, self.last),
            "bytes": state.bytes,
            "messages": state.messages(0, self.last),
            "backlog": self.backlog,
            "published": self.published,
            "published_bytes": self.published_bytes,
            "delivered": self.delivered,
            "delivered_bytes": self.delivered_bytes,
            "redelivered": self.redelivered,
            "dead_lettered": self.dead_lettered,
            "rejected": 0 if self.admission is None else self.admission.rejected,
            "blocked": 0 if self.admission is None else self.admission.blocked,
            "dropped": self.dropped,
            "expired": self.expired,
            "subscriptions": self.subscriptions(),
            "names": self.durables(),
        }

    backlog = 0
    redelivered = 0
    dead_lettered = 0
    dropped = 0
    expired = 0


class Publication:
    """Messages that are to be published together, and may have to wait for room.

    Args:
        count: Their number.
        size: Their bytes.
        memory: Bytes that it keeps while it waits for room, besides its objects.
        alive: Returns whether a client waits for the answer. Else it is refused, unless the store has it by then.
    """

    __slots__ = ("alive", "count", "held_bytes", "size")

    #: Its place is taken until `TopicAdmission.answered`. If not, the store asks for room when it gets there.
    reserves: ClassVar[bool] = False

    def __init__(self, count: int, size: int, memory: int, alive: Callable[[], bool]) -> None:
        self.held_bytes = HELD_OVERHEAD_BYTES + memory
        self.count = count
        self.size = size
        self.alive = alive

    def submit(self) -> None:
        """Hands them to the store."""
        raise NotImplementedError

    def refuse(self, error: BrokerError) -> None:
        """Answers with an error."""
        raise NotImplementedError


class RecordsPublication(Publication):
    """Records that are to be appended to a topic; see `Topic.append`."""

    __slots__ = ("_answered", "_done", "_producer", "_records", "_sequence", "_settled", "_topic")

    reserves = True

    def __init__(
        self,
        topic: Topic,
        records: bytes | memoryview,
        count: int,
        done: OnAppended,
        producer: bytes,
        sequence: int,
        settled: int,
        alive: Callable[[], bool],
    ) -> None:
        super().__init__(count, len(records), len(records), alive)
        self._topic = topic
        self._records = records
        self._done = done
        self._producer = producer
        self._sequence = sequence
        self._settled = settled
        self._answered = False  # once, though it may be submitted while the store is asked about a repetition

    @property
    def deduplicated(self) -> bool:
        """Publishes records again; the store detects those that it has."""
        return bool(self._producer and self._sequence)

    def submit(self) -> None:
        self._append(self._stored)

    def probe(self) -> None:
        """Has the store answer them if they are a repetition."""
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
            self._settled,
            repeats_only=repeats_only,
        )
        topic._store.submit(write, back)

    def _stored(self, write: Append) -> None:
        topic = self._topic
        topic._store.waiting -= self.size
        self._answer(write)
        if topic.admission is not None:
            topic.admission.release(self)

    def _probed(self, write: Append) -> None:
        topic = self._topic
        topic._store.waiting -= self.size
        repeats = not isinstance(write.error, TopicFull)
        if not repeats:
            write.error = None  # its traceback refers to the write, and the collector comes rarely
        assert topic.admission is not None
        topic.admission.probed(self, repeats)
        if repeats:
            self._answer(write)

    def _answer(self, write: Append) -> None:
        if not self._answered:
            self._answered = True
            self._topic.complete_append(write, self._done)

    def refuse(self, error: BrokerError) -> None:
        if not self._answered:
            self._answered = True
            self._done(0, error)


class HeldBytes:
    """The account of what waits for room in all full topics of a broker.

    Attributes:
        used: Bytes of publications that wait.
    """

    def __init__(self) -> None:
        self.used = 0
        self._log_limit = RateLimit()

    def has_room(self, size: int) -> bool:
        """Returns whether a publication of `size` bytes may wait, and logs where it may not."""
        if not self.used or self.used + size <= MAX_TOTAL_HELD_BYTES:
            return True
        if self._log_limit.passes():
            log.warning("%d bytes wait for room in all full topics: publishers to one are answered busy", self.used)
        return False


class TopicAdmission:
    """Admits publications to a topic as long as it has room. Lives in the broker's loop.

    Args:
        topic: The topic.
        overflow: `reject` or `block`: what happens to the others.
        max_messages: How many messages it may have; `None` for no bound.
        max_bytes: How many bytes they may have, about; `None` for no bound.
        scheduler: Makes calls later, and has the account of what waits in all topics.

    Attributes:
        rejected: Messages that were refused, since the broker has started.
    """

    def __init__(
        self,
        topic: Topic,
        overflow: str,
        max_messages: int | None,
        max_bytes: int | None,
        scheduler: TopicScheduler,
    ) -> None:
        self.rejected = 0
        self._topic = topic
        self._blocks = overflow == "block"
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._scheduler = scheduler
        self._submitted = self._submitted_bytes = 0  # handed to the store, and not answered
        self._held: deque[Publication] = deque()  # waiting for room, the first one first
        self._held_bytes = 0
        self._polling = False
        self._log_limit = RateLimit()

    @property
    def blocked(self) -> int:
        """Messages that wait for room."""
        return sum(publication.count for publication in self._held)

    def has_room(self, count: int, size: int) -> bool:
        """Returns whether the topic takes `count` more messages of `size` bytes; in any thread."""
        messages, used = self._topic.used()
        messages += self._submitted
        used += self._submitted_bytes
        if not messages and self._blocks:
            return True  # what is larger than the whole topic would wait for ever
        if self._max_messages is not None and messages + count > self._max_messages:
            return False
        return self._max_bytes is None or used + size <= self._max_bytes

    def admit(self, publication: RecordsPublication) -> None:
        """Hands a publication to the store, keeps it until there is room, or refuses it."""
        self._topic.refresh()
        if not self._held and self.has_room(publication.count, publication.size):
            self._submit(publication)
        elif not self._blocks and not publication.deduplicated:
            self._reject(publication)
        elif (not self._blocks or self._hold(publication)) and publication.deduplicated:
            publication.probe()  # the store answers a repetition, which needs no room

    def hold_or_reject(self, publication: Publication) -> None:
        """Keeps what the store had no room for until there is some, or refuses it."""
        if self._blocks:
            self._hold(publication)
        else:
            self._reject(publication)

    def _hold(self, publication: Publication) -> bool:
        """Keeps a publication until there is room; returns whether it was not too much, else it is refused."""
        size = publication.held_bytes
        if self._held and self._held_bytes + size > _MAX_HELD_BYTES:
            waiting, where = self._held_bytes, "it"
        elif not self._scheduler.held.has_room(size):
            waiting, where = self._scheduler.held.used, "all full topics"
        else:
            self._held.append(publication)
            self._held_bytes += size
            self._scheduler.held.used += size
            self._topic.touch()
            self._log("those who publish wait")
            self._schedule_poll()
            return True
        publication.refuse(
            Busy(f"topic {self._topic.name!r} is full, and {waiting} bytes wait for room in {where}; publish it later")
        )
        return False

    def release(self, publication: RecordsPublication) -> None:
        """The store has answered a publication."""
        self._submitted -= publication.count
        self._submitted_bytes -= publication.size
        self.resume()

    def resume(self) -> None:
        """Submits what waits for room, which there may be."""
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

    def end(self, error: BrokerError | None) -> None:
        """Refuses what waits for room; with `None` its clients are to send it again to the next broker."""
        held, self._held = self._held, deque()
        self._topic.touch()
        self._scheduler.held.used -= self._held_bytes
        self._held_bytes = 0
        for publication in held:
            if error is not None:
                publication.refuse(error)

    def _submit(self, publication: Publication) -> None:
        if publication.reserves:
            self._submitted += publication.count
            self._submitted_bytes += publication.size
        publication.submit()

    def _abandon(self, publication: Publication) -> None:
        publication.refuse(WrongState(f"given up by its publisher before topic {self._topic.name!r} had room"))

    def _remove(self, publication: Publication) -> None:
        self._held.remove(publication)
        self._topic.touch()
        self._held_bytes -= publication.held_bytes
        self._scheduler.held.used -= publication.held_bytes

    def probed(self, publication: RecordsPublication, repeats: bool) -> None:
        """The store has been asked whether a publication is a repetition, which it has answered then."""
        if repeats:
            if publication in self._held:
                self._remove(publication)
        elif not self._blocks:
            self._reject(publication)

    def _reject(self, publication: Publication) -> None:
        self.rejected += publication.count
        self._topic.touch()
        self._log("what is published is refused")
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

    def _log(self, what: str) -> None:
        if self._log_limit.passes():
            log.warning("topic %r is full: %s", self._topic.name, what)

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
