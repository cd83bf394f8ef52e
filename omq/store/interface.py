"""The interface of a store: the operations that change it, and its readers. LMDB and memory implement it.

Operations are objects: `submit` takes one, the store fills in its result or its `error` and hands it back through
`notify`. Operations on one topic are done in the order in which they are submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, Protocol

from omq.store.ack_set import AckSet
from omq.store.errors import DamagedError

Delivery = Literal["broadcast", "round_robin"]
Persistence = Literal["transient", "async", "weak", "strong"]
MAX_ID: Final = 2**62 - 1
BLOCK_BYTES: Final = 256 * 1024  # of records: appends are joined, and cut, to blocks of about this size
PRODUCER_TIMEOUT_US: Final = 86_400_000_000  # after which a producer is forgotten
MAX_ANSWERS: Final = 65_536  # that are kept for one producer which never acknowledges any
MAX_SEQUENCE: Final = 2**64 - 1
MAX_MEMORY_BYTES: Final = 64 << 20  # that a topic in memory keeps without a setting


def drops_oldest(delivery: Delivery, settings: Mapping[str, Any]) -> bool:
    """Returns whether the store drops the oldest messages of a topic beyond `max_messages` and `max_bytes`.

    A round-robin topic's are work that is not finished, and those of one with `retain_for` have not been read:
    a publisher is refused, or waits. So the store drops none of them but for their age.
    """
    default = "reject" if "retain_for" in settings else "drop-oldest"
    return delivery == "broadcast" and settings.get("overflow", default) == "drop-oldest"


@dataclass(slots=True, eq=False)
class Write:
    """Something that changes the store.

    Attributes:
        context: The caller's own.
        error: Why it was not done; `None` if it was. A `StoreError`.
        done: True once it was handed back.
    """

    context: Any = field(default=None, kw_only=True)
    error: BaseException | None = field(default=None, init=False)
    done: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class Append(Write):
    """Appends checked records (`blocks.check`).

    With a producer and a sequence (1 or more) it is done once: a repetition gets the answer of the first.

    Attributes:
        topic_id: Where.
        records: The records; not copied until they are written.
        count: How many they are.
        producer: Who sends them, 1 to 96 bytes, the first one not 0, which the store's own have; empty: a repetition
            is not noticed.
        sequence: The producer's number of this write.
        settled: The producer has the answers of all sequences below, and will not repeat them.
        repeats_only: Stores nothing: answers a repetition, and fails with `TopicFull` otherwise.
        first: The id of the first record; 0 where the sequence is settled, and its id forgotten.
        timestamp: What the block was given, in microseconds since 1970.
        duplicate: It had been stored before, or is settled.
    """

    topic_id: int
    records: bytes | memoryview
    count: int
    producer: bytes = b""
    sequence: int = 0
    settled: int = 0
    repeats_only: bool = field(default=False, kw_only=True)
    first: int = field(default=0, init=False)
    timestamp: int = field(default=0, init=False)
    duplicate: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class MakeTopic(Write):
    """Makes a topic; one that exists by this name is found, as it is (compare `topics()`).

    Attributes:
        name: Its name.
        delivery: Who gets a message.
        persistence: What an acknowledgement means.
        settings: `max_age` (seconds), which the store obeys; `max_messages` and `max_bytes`, which it obeys where
            `drops_oldest` returns true; and any other setting to be kept (as JSON).
        topic_id: Its id, never used for another one.
        found: It existed.
    """

    name: str
    delivery: Delivery
    persistence: Persistence
    settings: dict[str, Any] = field(default_factory=dict)
    topic_id: int = field(default=0, init=False)
    found: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class DeleteTopic(Write):
    """Deletes a topic with all that belongs to it. Its pages are given back bit by bit, after other writes."""

    topic_id: int


@dataclass(slots=True, eq=False)
class Acknowledge(Write):
    """Notes what consumers of a round-robin topic have done.

    Attributes:
        topic_id: Where.
        ranges: First and last id, both included, of what is acknowledged.
        handed: The highest id ever handed out; 0 where it has not changed.
        deliveries: How often an id was attempted in vain, for those that are. Forgotten when the id is
            settled.
    """

    topic_id: int
    ranges: list[tuple[int, int]]
    handed: int = 0
    deliveries: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class MoveToDeadLetter(Write):
    """Appends a record to another topic and settles it in its own, at once (after a crash between: once all the same).

    Attributes:
        topic_id: Its topic.
        id: Its id there.
        target_id: The topic of dead letters.
        first: Its id in that.
        size: The bytes that the other topic has got by it; 0 where it had come there before.
    """

    topic_id: int
    id: int
    target_id: int
    first: int = field(default=0, init=False)
    size: int = field(default=0, init=False)


@dataclass(slots=True, eq=False)
class SetCursor(Write):
    """Keeps the position of a named subscription: the last id that it has finished."""

    topic_id: int
    name: str
    id: int


@dataclass(slots=True, eq=False)
class DeleteCursor(Write):
    """Forgets a named position.

    Attributes:
        topic_id: Where.
        name: Of the position.
        found: There was one.
    """

    topic_id: int
    name: str
    found: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class Stage(Write):
    """Keeps records aside, under a name, for a commit. A sequence (1 or more) that the stage has is not kept again."""

    topic_id: int
    records: bytes | memoryview
    count: int
    stage: bytes
    sequence: int = 0


@dataclass(slots=True, eq=False)
class CommitStages(Write):
    """Publishes stages at once, in this order; they get their ids now. What is staged is not written again.

    All stages of a commit are of topics of one kind: strong, weak and async together, or transient.

    Attributes:
        commit: Its name.
        stages: Theirs.
        may: Asked in the store's thread whether the topic of this id may be published to; `None`: any may.
        has_room: Asked there whether the topic of this id has room for a number of messages with a number of bytes;
            `None`: any has.
        published: `(stage, topic_id, first, count)` of each. A second commit of the same name gets the first one's.
        names: Of these topics, by id, as they were then: they may have been deleted since.
        grown: Records that topics have got by it, and their bytes, by id.
        repeated: It is a second one: nothing has grown.
    """

    commit: bytes
    stages: list[bytes]
    may: Callable[[int], bool] | None = field(default=None, kw_only=True)
    has_room: Callable[[int, int, int], bool] | None = field(default=None, kw_only=True)
    published: list[tuple[bytes, int, int, int]] = field(default_factory=list, init=False)
    names: dict[int, str] = field(default_factory=dict, init=False)
    grown: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)
    repeated: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class AbortStage(Write):
    """Forgets a stage, or every stage whose name begins so; one that does not exist is not an error.

    Attributes:
        stage: Its name.
        prefix: It is the beginning of the names of all that are forgotten.
        places: Of the store, where there are several, that it has been done in.
    """

    stage: bytes
    prefix: bool = field(default=False, kw_only=True)
    places: int = field(default=0, init=False)


@dataclass(slots=True, eq=False)
class Trim(Write):
    """Drops what is below `first`."""

    topic_id: int
    first: int


class TopicState(NamedTuple):
    """A topic as it is committed; a tuple, which is quickly made and compared: each look at all topics does that.

    Attributes:
        first: The oldest id kept; `last + 1` where nothing is.
        last: The newest id given; 0: none.
        bytes: Of records, about: what is dropped counts until its block is gone.
        jumped: Ranges, first and last id, that were passed over after a crash: nothing is there. The last ones are
            known even when nothing in front of them is kept any more.
    """

    id: int
    name: str
    delivery: Delivery
    persistence: Persistence
    settings: dict[str, Any]
    first: int
    last: int
    bytes: int
    jumped: tuple[tuple[int, int], ...] = ()

    def messages(self, position: int, last: int = 0) -> int:
        """Returns how many messages are kept after a position.

        Args:
            position: The id.
            last: The newest id, where it is known that more were given than are committed.
        """
        start, last = max(position + 1, self.first), max(last, self.last)
        missing = sum(max(min(to, last) - max(begin, start) + 1, 0) for begin, to in self.jumped)
        return max(last - start + 1 - missing, 0)


@dataclass(slots=True)
class Stats:
    """The statistics of a store, or of one of its engines, since it was opened.

    Attributes:
        file_bytes: The size of the files.
        used_bytes: What of them is in use; the rest is taken again before they grow.
        commits: Transactions.
        appended: Records.
        appended_bytes: Their bytes.
        duplicates: Appends that were stored before.
        full: Transactions that found no space.
        syncs: Commits or flushes that waited for the disk.
        sync_seconds: How long they took in all.
        sync_buckets: Number of syncs that took at most the bucket's seconds (cumulative, as Prometheus has it).
        damaged: `(topic_id, first, last)` of what is quarantined.
        engines: The same a part (`"strong"`, `"weak"`, `"memory"`).
    """

    file_bytes: int = 0
    used_bytes: int = 0
    commits: int = 0
    appended: int = 0
    appended_bytes: int = 0
    duplicates: int = 0
    full: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    sync_buckets: dict[float, int] = field(default_factory=dict)
    damaged: list[tuple[int, int, int]] = field(default_factory=list)
    engines: dict[str, Stats] = field(default_factory=dict)

    def sum_up(self) -> None:
        """Adds the numbers of the engines."""
        for stats in self.engines.values():
            for one in fields(Stats):
                number = getattr(stats, one.name)
                if isinstance(number, int | float):
                    setattr(self, one.name, getattr(self, one.name) + number)
            for limit, number in stats.sync_buckets.items():
                self.sync_buckets[limit] = self.sync_buckets.get(limit, 0) + number


class Reader(Protocol):
    """One topic, as it is while this reader lives."""

    @property
    def first(self) -> int:
        """The oldest id kept."""

    @property
    def last(self) -> int:
        """The newest id given."""

    def blocks(self, start: int, stop: int = 0) -> Iterator[tuple[bytes, memoryview]]:
        """Header and records of blocks with ids from `start` (included) to `stop` (excluded; 0: to the end).

        The first and the last are cut to fit; checksums are verified. Views hold until the reader ends.

        Raises:
            Gone: `start` is below `first`.
            DamagedError: At damaged ids, after what is before them. Go on with `blocks(error.last + 1)`.
        """


Notify = Callable[[list[Write]], None]
Appended = Callable[[dict[int, int]], None]


class Log(Protocol):
    """A store. All methods may be called in any thread.

    `notify` gets writes that are done: after the commit, for a strong topic after the fsync, for an async one once ids
    are given. `appended` gets, after each commit that can be read, the topics that have grown and their last ids. Both
    are called in a thread of the store, or in the caller's by `write_at_once` and (memory) `submit`; they must be
    quick, and must not call back. Of one commit, `notify` comes first.

    Attributes:
        id: Of the store, 16 bytes in hex.
        findings: What opening it found, in sentences; empty after an orderly end.
        refused: Topics that are not opened, since a row of them is damaged, by name: why. They can be deleted.
        broken: Why it takes no more writes; `None` as long as it does.
        full: What was acknowledged to publishers of async topics waits in memory for room on the disk.
    """

    id: str
    findings: list[str]
    refused: dict[str, DamagedError]

    @property
    def broken(self) -> BaseException | None: ...

    @property
    def full(self) -> bool: ...

    def submit(self, write: Write) -> None:
        """Takes a write; never blocks. `StoreClosed` once it is closed."""

    def submit_many(self, writes: Iterable[Write]) -> None:
        """Takes several."""

    def write_at_once(self, writes: list[Write], *, note: bool = False) -> bool:
        """Does writes that wait for no disk in the calling thread, `notify` and `appended` included.

        Args:
            writes: The writes.
            note: Small appends need only be noted: a process that dies loses none, and they are there to be read once
                something else is written, or `catch_up` is called, which who asks for it does soon.

        Returns:
            Whether it has: not where the disk is to be waited for, or something else is written or waits to be.
        """

    def catch_up(self) -> None:
        """Writes what was only noted, in the calling thread, `appended` included."""

    def topics(self) -> list[TopicState]:
        """Returns all topics, by id."""

    def topic(self, topic_id: int) -> TopicState:
        """One topic. `UnknownTopic`."""

    def read(self, topic_id: int) -> AbstractContextManager[Reader]:
        """Reads a topic. To be held shortly: what is dropped gives no space back meanwhile. `UnknownTopic`."""

    def positions(self, topic_id: int) -> dict[str, int]:
        """Named positions; -1 where what was kept under the name is damaged."""

    def all_positions(self) -> dict[int, dict[str, int]]:
        """Named positions of each topic that has some, by its id."""

    def settled(self, topic_id: int) -> AckSet:
        """Returns a copy of the ack set of a round-robin topic."""

    def stats(self) -> Stats:
        """Returns its statistics so far."""

    def close(self) -> None:
        """Does what was submitted, syncs and closes. Writes of other threads meanwhile fail."""
