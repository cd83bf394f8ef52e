"""Writes that the store submits to itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from omq.store.errors import StoreError
from omq.store.interface import Acknowledge, Append, DeleteTopic, Trim, Write


class WrongEnvironment(StoreError):
    """Raised when a stage or topic is not in this environment; it may be in the other one."""


class PurgeTopic(DeleteTopic):
    """Deletes the remaining rows of a deleted topic."""

    __slots__ = ()


class MoveAppend(Append):
    """Appends a moved record to a topic of another environment. Its context is the `MoveToDeadLetter` or `Requeue`."""

    __slots__ = ()


class MoveAck(Acknowledge):
    """Acknowledges a dead letter in its own topic, after `MoveAppend`."""

    __slots__ = ()


class MoveTrim(Trim):
    """Drops a requeued record from its topic, after `MoveAppend`."""

    __slots__ = ()


class PendingAppend(Append):
    """An append that was answered, but found no space on the disk. It stays in memory until there is space.

    Attributes:
        answered_first: The id of its first record in the answer.
    """

    __slots__ = ("answered_first",)

    def __init__(self, write: Append) -> None:
        Append.__init__(
            self,
            write.topic_id,
            write.records,
            write.count,
            write.producer,
            write.sequence,
            write.first_outstanding,
            context=write.context,
        )
        self.answered_first = write.first
        self.timestamp = write.timestamp
        self.done = True


class LoggedAppend(PendingAppend):
    """An append that was answered once it stood in the write-ahead log (see `omq.store.lmdb.wal`)."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class ReserveIds(Write):
    """Stores an upper bound of the ids of topics that are not strong, so that a power loss does not repeat an id.

    Attributes:
        highest: The bound by topic id.
        next_topic: The lowest id of the next topic.
    """

    highest: dict[int, int]
    next_topic: int = 0


class ReserveTransientIds(ReserveIds):
    """Stores that bound for transient topics, whose writes wait for it."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class SkipIds(Write):
    """Skips the ids up to `last`: a crash may have lost records that had them."""

    topic_id: int
    last: int


class ApplyRetention(Write):
    """Drops records that are too old, and continues drops that were put off."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class ExpireState(Write):
    """Drops the state of idle producers, abandoned stages, and the names of old commits, as much as one step may.

    Attributes:
        start: The key at which to begin; empty: the first one.
        next_start: The `start` of the next step; `None` if nothing is left to drop.
    """

    start: bytes = b""
    next_start: bytes | None = field(default=None, init=False)


@dataclass(slots=True, eq=False)
class ApplyEntry(Write):
    """Applies an entry of the journal to a replica, in one step with its position.

    The results are in `writes`, with the errors of single writes. An entry that has an error itself was not applied.

    Attributes:
        position: The sequence of the entry in the journal. It is higher than that of the entry before.
        term: The term of its leader, which is never lower than that of the entry before.
        timestamp: Its time by the clock of the cluster, in microseconds.
        writes: Its writes.
        wall: The timestamp of its messages; 0: that of the entry.
    """

    position: int
    term: int
    timestamp: int
    writes: list[Write]
    wall: int = 0


class PurgeRows(Write):
    """Continues to delete the rows of deleted topics in a replica, which does that outside of entries."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Quarantine(Write):
    """Records a range of damaged ids."""

    topic_id: int
    first: int
    last: int
