"""A topic: what its two kinds, broadcast and round-robin, have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

from omq.broker.core.admission import Admission, HeldBytes, Publication
from omq.broker.core.permissions import Permissions
from omq.broker.core.stats import PositionStats, SubscriptionStats, TopicStats
from omq.broker.errors import AlreadySettled, BrokerError, TopicError, broker_error
from omq.broker.protocol import pack_json
from omq.broker.settings import SETTINGS, check_setting, overflow_of
from omq.store.async_store import AsyncStore
from omq.store.errors import TopicFull, UnknownTopic
from omq.store.interface import MAX_MEMORY_BYTES, Append, Delivery, TopicState, Write

log = logging.getLogger("omq.broker")

#: Bytes of records that one topic hands out before the next one has its turn.
TURN: Final = 1 << 20
#: As how many of them a block counts at least, and a read that finds none: so a turn is short with the smallest blocks.
BLOCK: Final = 16 << 10

#: Called with the first record's id, or 0 and why nothing was stored.
Done = Callable[[int, BrokerError | None], None]

DELIVERIES: Final = ("broadcast", "round-robin")
PERSISTENCES: Final = ("transient", "strong", "weak", "async")


class Turns(Protocol):
    """Gives topics their turns.

    Attributes:
        held: The account of the publications that wait for room in all topics.
    """

    held: HeldBytes

    def ready(self, topic: Topic) -> None:
        """The topic has something to hand out."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Makes a call later, unless the broker has ended by then."""


def check_settings(delivery: str, persistence: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a topic, without those that say nothing.

    Raises:
        TopicError: One does not exist, does not fit the kind of topic, or has a value that does not fit.
    """
    if delivery not in DELIVERIES:
        raise TopicError(f"delivery is one of {', '.join(DELIVERIES)}, not {delivery!r}")
    if persistence not in PERSISTENCES:
        raise TopicError(f"persistence is one of {', '.join(PERSISTENCES)}, not {persistence!r}")
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        if name not in SETTINGS:
            raise TopicError(f"there is no setting {str(name)[:80]!r}")
        try:
            found[name] = check_setting(name, value, delivery, settings)
        except ValueError as reason:
            raise TopicError(f"{name}={str(value)[:80]!r}: {reason}") from None
    return found


class Topic:
    """What one topic is and has done, and what is to be kept for those who read it.

    Args:
        state: What the store says of it.
        journal: Where it is stored.
        turns: Where it says that it has something to hand out.

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

    def __init__(self, state: TopicState, journal: AsyncStore, turns: Turns) -> None:
        self.id = state.id
        self.name = state.name
        self.persistence = state.persistence
        self.settings = dict(state.settings)
        self.last = self.readable = state.last
        self.deleted = False
        self.published = self.published_bytes = 0
        self.delivered = self.delivered_bytes = 0
        self._journal = journal
        self._turns = turns
        #: `None`: it takes whatever is published.
        self.admission = self._admission(journal)
        self._keeping: Write | None = None  # the last write of `_keep` that is not answered
        self._unkept: BrokerError | None = None  # why the last one was not done
        self._retrying = False
        self._flushing: list[tuple[Write, Callable[[BrokerError | None], None]]] = []
        self._missed: BrokerError | None = None  # why a write that somebody flushes was not done
        # What it has told about itself; `None`: something has changed since.
        self._stats: TopicStats | None = None
        self._info: bytes | None = None
        self._told_state: TopicState | None = None  # what the store said then

    def __repr__(self) -> str:
        return f"<{self.delivery} topic {self.name!r}, {self.persistence}, {self.last} messages>"

    # ------------------------------------------------------------------ publishing

    def _admission(self, journal: AsyncStore) -> Admission | None:
        """Returns what decides where it is full; `None` where it has no bounds, or drops its oldest messages."""
        overflow = overflow_of(self.delivery, self.settings)
        if overflow == "drop-oldest":
            return None
        max_messages, max_bytes = self.settings.get("max_messages"), self.settings.get("max_bytes")
        if max_bytes is None and journal.in_memory(self.persistence):
            max_bytes = MAX_MEMORY_BYTES
        if max_messages is None and max_bytes is None:
            return None
        return Admission(self, overflow, max_messages, max_bytes, self._turns, self._turns.held)

    def append(
        self,
        records: bytes | memoryview,
        count: int,
        done: Done,
        producer: bytes = b"",
        sequence: int = 0,
        settled: int = 0,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """Stores checked records; see `Broker.append`."""
        size = len(records)
        admission = self.admission

        def append(answered: Callable[[Append], None], *, repeats_only: bool = False) -> None:
            self._journal.waiting += size
            write = Append(self.id, records, count, producer, sequence, settled, repeats_only=repeats_only)
            self._journal.submit(write, answered)

        def appended(write: Append) -> None:
            self._journal.waiting -= size
            self._appended(write, done)

        if admission is None:
            append(appended)
            return
        is_answered = False

        def answer(write: Append) -> None:
            nonlocal is_answered
            self._journal.waiting -= size
            if not is_answered:  # once, though it may be submitted while the store is asked about a repetition
                is_answered = True
                self._appended(write, done)

        def submit() -> None:
            append(admitted)

        def admitted(write: Append) -> None:
            answer(write)
            admission.answered(publication)

        def probe(told: Callable[[bool], None]) -> None:
            def probed(write: Append) -> None:
                if isinstance(write.error, TopicFull):
                    self._journal.waiting -= size
                    told(False)
                else:
                    told(True)
                    answer(write)

            append(probed, repeats_only=True)

        may_repeat = bool(producer and sequence)
        publication = Publication(
            count, size, submit, lambda error: done(0, error), probe if may_repeat else None, alive
        )
        admission.take(publication)

    def _appended(self, write: Append, done: Done) -> None:
        if write.error is not None:
            done(0, broker_error(write.error))
            return
        if not write.first:
            done(0, AlreadySettled(f"sequence {write.sequence} is below what its producer has settled: not stored"))
            return
        if not write.duplicate:
            self.took(write.count, len(write.records))
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

    def took(self, count: int, size: int) -> None:
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
            self._turns.ready(self)

    def pump(self) -> bool:
        """Hands out some of what is there, about `TURN` bytes; whether there is more to do."""
        raise NotImplementedError

    def end(self, error: BrokerError | None) -> None:
        """Ends everybody who reads."""
        raise NotImplementedError

    def expel(self, permissions: Permissions) -> None:
        """Ends those who read and may not any more."""
        raise NotImplementedError

    async def close(self) -> None:
        """Ends everybody who reads, and saves what they have left; the broker ends."""
        self.end(None)
        if self.admission is not None:
            self.admission.end(None)
        self.save()

    # ------------------------------------------------------------------ what readers leave

    def save(self) -> None:
        """Submits what readers want to be kept and is not submitted yet, by `_keep`."""
        raise NotImplementedError

    def _changed(self) -> None:
        """There is something to save; one write at a time is under way, so that the next one takes it all."""
        if self._keeping is None and not self._retrying:
            self.save()

    def _keep(self, write: Write) -> None:
        self._keeping = write
        self._journal.submit(write, self._kept)

    def _kept(self, write: Write) -> None:
        error = None if write.error is None else broker_error(write.error)
        self._unkept = error
        if error is not None:
            self._take_back(write)
            self._missed = self._missed or error
        # Several writes may be under way: a flush waits for the last of them, and tells of any that was not done.
        while self._flushing and self._flushing[0][0] is write:
            self._flushing.pop(0)[1](self._missed)
        if self._keeping is write or not self._flushing:
            self._missed = None
        if self._keeping is not write:
            return
        self._keeping = None
        if error is None:
            self.save()
        elif error.code == "full" and not self.deleted:
            self._retrying = True
            self._turns.later(1.0, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self._changed()

    def _take_back(self, write: Write) -> None:
        """A write of `_keep` was not done: it is to be part of the next one."""
        raise NotImplementedError

    def flush(self, done: Callable[[BrokerError | None], None]) -> None:
        """Calls *done* once all that readers have left so far is durable, or was not kept."""
        self.save()
        if self._keeping is None:
            done(self._unkept)
        else:
            self._flushing.append((self._keeping, done))

    # ------------------------------------------------------------------ what it tells

    def state(self) -> TopicState:
        """What the store says of it now; where it has just forgotten it, that nothing is kept."""
        try:
            return self._journal.store.topic(self.id)
        except UnknownTopic:
            kind: Delivery = "broadcast" if self.delivery == "broadcast" else "round_robin"
            settings = self.settings
            return TopicState(self.id, self.name, kind, self.persistence, settings, self.last + 1, self.last, 0)

    @property
    def readers(self) -> int:
        """Subscriptions or shares in force."""
        raise NotImplementedError

    def info(self) -> bytes:
        """Returns the topic as `TOPICS` tells it, in JSON."""
        state = self._look()
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

    def names(self) -> list[PositionStats]:
        """Its named positions."""
        return []

    def subscriptions(self) -> list[SubscriptionStats]:
        """Who reads it."""
        raise NotImplementedError

    def touch(self) -> None:
        """Takes note that what it tells about itself has changed: whatever changes that calls this."""
        self._stats = self._info = None

    def _look(self) -> TopicState:
        """Returns what the store says of it now, and notices whether that has changed: it drops messages by itself."""
        state = self.state()
        if state != self._told_state:
            self.touch()
            self._told_state = state
        return state

    def stats(self) -> TopicStats:
        """Returns what it tells about itself: the same object, not to be altered, until it changes."""
        self.refresh()
        state = self._look()
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
            "names": self.names(),
        }

    backlog = 0
    redelivered = 0
    dead_lettered = 0
    dropped = 0
    expired = 0
