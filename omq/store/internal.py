"""Operations that the store gives itself."""

from __future__ import annotations

from dataclasses import dataclass

from omq.store.errors import StoreError
from omq.store.interface import Acknowledge, Append, DeleteTopic, Write


class WrongEnvironment(StoreError):
    """The stage or topic asked for is not in this environment; it may be in another."""


class Sweep(DeleteTopic):
    """Deletes the rows of a topic that the catalog does not have any more, where that could not be done at once."""

    __slots__ = ()


class MoveAppend(Append):
    """The first half of moving a dead letter to another environment; its context is the whole."""

    __slots__ = ()


class MoveAck(Acknowledge):
    """The second half."""

    __slots__ = ()


class PendingAppend(Append):
    """An append that was acknowledged and found no space: kept until it does.

    Attributes:
        told: The id of its first record, as it was acknowledged.
    """

    __slots__ = ("told",)

    def __init__(self, write: Append) -> None:
        Append.__init__(
            self,
            write.topic_id,
            write.records,
            write.count,
            write.producer,
            write.sequence,
            write.settled,
            context=write.context,
        )
        self.told = write.first
        self.timestamp = write.timestamp
        self.done = True


class LoggedAppend(PendingAppend):
    """An append that was acknowledged once it was noted (see `omq.store.lmdb.wal`), where it stays until written."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class ReserveIds(Write):
    """Makes durable how high the ids of topics may go that are not strong: none is given twice if power is lost.

    Attributes:
        highest: By topic.
        next_topic: Topics get no id below it.
    """

    highest: dict[int, int]
    next_topic: int = 0


class ReserveTransientIds(ReserveIds):
    """The same of a transient topic, whose writes wait for it."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class SkipIds(Write):
    """Gives no id up to `last` any more: they may have been given, and were lost."""

    topic_id: int
    last: int


class ApplyRetention(Write):
    """Drops what is too old, and what was left for later."""

    __slots__ = ()


class ExpireState(Write):
    """Forgets producers that are silent, stages that are not committed, names of old commits."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Quarantine(Write):
    """Notes that ids are damaged."""

    topic_id: int
    first: int
    last: int
