"""The interface of a store: the writes that change it, and its readers. LMDB and memory implement it.

Writes are objects (`Write`). `Store.submit` takes one; the store fills in its result or its `error` and returns it
through `notify`. Writes to one topic are applied in the order in which they are submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, Protocol

from omq.store.ack_set import AckSet
from omq.store.errors import DamagedError, StoreError

Delivery = Literal["broadcast", "round_robin"]
#: A finding that is not about damage: each kill of the process causes it.
UNCLEAN_SHUTDOWN: Final = "the store was not shut down cleanly"
Persistence = Literal["transient", "async", "weak", "strong"]
DeadLetterReason = Literal["max-deliveries", "overflow"]
MAX_ID: Final = 2**62 - 1
BLOCK_BYTES: Final = 256 * 1024  # the target size of a block of records: appends are joined or cut to it
PRODUCER_TIMEOUT_US: Final = 86_400_000_000  # the idle time after which a producer's state is dropped
MAX_ANSWERS: Final = 65_536  # kept for a producer that never confirms any
MAX_SEQUENCE: Final = 2**64 - 1
MAX_MEMORY_BYTES: Final = 64 << 20  # the default bound of a topic in memory
MAX_READER_NAME_BYTES: Final = 255  # of the name of a durable subscription or a consumer group


def keeps_unread(settings: Mapping[str, Any]) -> bool:
    """Returns whether a broadcast topic keeps its messages until readers have acknowledged them."""
    return settings.get("retention") is not None or settings.get("retain_for") is not None


def drops_oldest(delivery: Delivery, settings: Mapping[str, Any]) -> bool:
    """Returns whether the store drops the oldest messages of a topic beyond `max_messages` and `max_bytes`.

    It does not in round-robin topics and where `keeps_unread` returns true, as a dropped message would be lost work.
    There a publisher waits or is refused, and only `max_age` drops messages.
    """
    default = "reject" if keeps_unread(settings) else "drop-oldest"
    return delivery == "broadcast" and settings.get("overflow", default) == "drop-oldest"


def check_reader_name(name: str, reader: Literal["cursor", "group"]) -> None:
    """Checks the name of a durable subscription, which has the cursor, or of a consumer group.

    Raises:
        StoreError: It is longer than `MAX_READER_NAME_BYTES`.
    """
    size = len(name.encode())
    if size > MAX_READER_NAME_BYTES:
        raise StoreError(
            f"the name of the {reader} has {size} bytes; at most {MAX_READER_NAME_BYTES} are allowed: {name[:40]!r}..."
        )


@dataclass(slots=True, eq=False)
class Write:
    """An operation that changes the store.

    Attributes:
        context: For the caller. The store reads it in its own writes only.
        error: The `StoreError` with which it failed; `None` if it succeeded.
        done: True once it was returned to the caller.
    """

    context: Any = field(default=None, kw_only=True)
    error: BaseException | None = field(default=None, init=False)
    done: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class Append(Write):
    """Appends checked records (`blocks.check`).

    With a producer and a sequence (1 or more) it is idempotent: a repetition gets the answer of the first append.

    Attributes:
        topic_id: The id of the topic.
        records: The records; not copied until they are written.
        count: The number of records.
        producer: The id of the producer, 1 to 96 bytes; a first byte of 0 is reserved for the store. Empty: repetitions
            are not detected.
        sequence: The producer's number of this append.
        first_outstanding: The lowest sequence that the producer may repeat; it has the answers of all lower ones.
        repeats_only: Store nothing: answer a repetition, and fail with `TopicFull` otherwise.
        first: The id of the first record; 0 if the sequence is below `first_outstanding` and its id was dropped.
        timestamp: The timestamp of the block, in microseconds since 1970.
        duplicate: True for a repetition.
    """

    topic_id: int
    records: bytes | memoryview
    count: int
    producer: bytes = b""
    sequence: int = 0
    first_outstanding: int = 0
    repeats_only: bool = field(default=False, kw_only=True)
    first: int = field(default=0, init=False)
    timestamp: int = field(default=0, init=False)
    duplicate: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class MakeTopic(Write):
    """Creates a topic, or finds the existing one of this name with any settings (compare `topics()`).

    Attributes:
        name: The name.
        delivery: Broadcast to all subscribers, or round-robin to one consumer each.
        persistence: The state that a record has reached when its append is answered.
        settings: The store applies `max_age` (seconds), and `max_messages` and `max_bytes` where `drops_oldest` returns
            true. It keeps any other setting as JSON.
        owner: The user who creates it, for the caller; empty for none.
        topic_id: The id, never used for another topic.
        found: True if the topic existed.
    """

    name: str
    delivery: Delivery
    persistence: Persistence
    settings: dict[str, Any] = field(default_factory=dict)
    owner: str = field(default="", kw_only=True)
    topic_id: int = field(default=0, init=False)
    found: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class AlterTopic(Write):
    """Replaces the settings of a topic, and applies retention by the new ones.

    It succeeds once the settings are durable, also for topics that are not strong. Appends that are submitted after it
    may be applied before it.

    Attributes:
        topic_id: The id of the topic.
        settings: All settings, as in `MakeTopic`. The store keeps the object.
        stored: True once the settings are durable.
    """

    topic_id: int
    settings: dict[str, Any]
    stored: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class DeleteTopic(Write):
    """Deletes a topic with all its rows. The pages are freed in small steps, after other writes."""

    topic_id: int


@dataclass(slots=True, eq=False)
class Acknowledge(Write):
    """Records acks, the highest delivered id, and delivery counts of a round-robin topic or of a consumer group.

    Attributes:
        topic_id: The id of the topic.
        group: The consumer group of a broadcast topic; empty: the topic is round-robin.
        ranges: First and last acknowledged id of each range, both included.
        last_delivered: The highest id ever delivered; 0 if it has not changed.
        deliveries: The number of failed deliveries by id. Dropped when the id is acknowledged.
        generation: The generation of the group that it is about (see `SetGroup`): nothing is recorded if the group has
            another one. 0: any.
        floor: The ack floor then; 0 if nothing was recorded.
    """

    topic_id: int
    ranges: list[tuple[int, int]]
    last_delivered: int = 0
    deliveries: dict[int, int] = field(default_factory=dict)
    group: str = field(default="", kw_only=True)
    generation: int = field(default=0, kw_only=True)
    floor: int = field(default=0, init=False)


@dataclass(slots=True, eq=False)
class MoveToDeadLetter(Write):
    """Appends a record to a dead-letter topic and acknowledges it in its own, exactly once even after a crash.

    Attributes:
        topic_id: The record's topic.
        group: The consumer group that acknowledges it, in a broadcast topic; empty: the topic is round-robin.
        generation: The generation of the group, as in `Acknowledge`. Each generation may move the same record.
        id: Its id in that topic.
        target_id: The dead-letter topic.
        deliveries: The number of its deliveries.
        reason: The reason; with one the dead letter gets the headers of `omq.store.dead_letters`. `None`: it is copied
            as it is.
        first: Its id in the dead-letter topic.
        size: The bytes by which the dead-letter topic has grown; 0 if the record was in it already.
        floor: The ack floor then, as in `Acknowledge`.
    """

    topic_id: int
    id: int
    target_id: int
    group: str = field(default="", kw_only=True)
    generation: int = field(default=0, kw_only=True)
    deliveries: int = field(default=0, kw_only=True)
    reason: DeadLetterReason | None = field(default=None, kw_only=True)
    first: int = field(default=0, init=False)
    size: int = field(default=0, init=False)
    floor: int = field(default=0, init=False)


@dataclass(slots=True, eq=False)
class Requeue(Write):
    """Moves the oldest records of a broadcast topic to other topics, without the headers of dead letters.

    Each is moved exactly once, even after a crash. If one engine of the store has all these topics, all records are
    moved in one step, or none. Otherwise only the first one is moved, in two steps: it is appended under its id, so
    that a repetition within `PRODUCER_TIMEOUT_US` is not appended again, and then dropped.

    Attributes:
        topic_id: The id of the broadcast topic.
        moves: The id of each record, and the id of the topic to which it moves; ascending, without gaps between the
            records.
        moved: The number of records that were moved.
        grown: Records and bytes by which topics have grown, by id.
    """

    topic_id: int
    moves: list[tuple[int, int]]
    moved: int = field(default=0, init=False)
    grown: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)

    def record_growth(self, target_id: int, size: int) -> None:
        """Adds a record of this size to `grown`."""
        records, total = self.grown.get(target_id, (0, 0))
        self.grown[target_id] = records + 1, total + size


@dataclass(slots=True, eq=False)
class SetCursor(Write):
    """Stores the cursor of a durable subscription: the last id that it has acknowledged."""

    topic_id: int
    name: str
    id: int


@dataclass(slots=True, eq=False)
class DeleteCursor(Write):
    """Deletes a cursor.

    Attributes:
        topic_id: The id of the topic.
        name: The name of the durable subscription.
        found: True if there was a cursor.
    """

    topic_id: int
    name: str
    found: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class SetGroup(Write):
    """Creates a consumer group of a broadcast topic, or moves it.

    Attributes:
        topic_id: The id of the topic.
        name: The name of the group.
        position: All messages up to this id count as acknowledged by the group, and no later one does.
        generation: The number of the group from now on. No group of the store has had it before, and it is higher than
            the earlier ones.
    """

    topic_id: int
    name: str
    position: int
    generation: int = field(default=0, init=False)


@dataclass(slots=True, eq=False)
class DeleteGroup(Write):
    """Deletes a consumer group with its acks.

    Attributes:
        topic_id: The id of the topic.
        name: The name of the group.
        found: True if there was a group.
    """

    topic_id: int
    name: str
    found: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class Stage(Write):
    """Stores records in a named stage until a commit publishes them.

    Attributes:
        topic_id: The id of the topic.
        records: The records.
        count: The number of records.
        stage: The name of the stage.
        sequence: Records whose sequence the stage already has are ignored. 0: the next one, so nothing is deduplicated.
    """

    topic_id: int
    records: bytes | memoryview
    count: int
    stage: bytes
    sequence: int = 0


@dataclass(slots=True, eq=False)
class CommitStages(Write):
    """Publishes stages atomically, in this order, and gives their records ids. Staged records are not written again.

    All stages of a commit belong to topics of one kind: strong, weak and async together, or transient.

    Attributes:
        commit: The name of the commit.
        stages: The names of the stages.
        may: Called in the store's thread with a topic id; returns whether publishing to it is permitted. `None`: it is.
        has_room: Called there with a topic id, a number of messages and of bytes; returns whether the topic has room
            for them. `None`: it has.
        published: `(stage, topic_id, first, count)` of each stage. A repeated commit gets those of the first.
        names: The names of these topics by id, at the time of the commit: they may have been deleted since.
        grown: Records and bytes by which topics have grown, by id.
        repeated: True for a repeated commit, by which nothing has grown.
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
    """Drops a stage, or every stage whose name has a prefix; a stage that does not exist is not an error.

    Attributes:
        stage: The name, or the prefix.
        prefix: True if `stage` is a prefix.
        places: The number of the store's engines that have applied it.
    """

    stage: bytes
    prefix: bool = field(default=False, kw_only=True)
    places: int = field(default=0, init=False)


@dataclass(slots=True, eq=False)
class Trim(Write):
    """Drops the records below the id `first`.

    Attributes:
        topic_id: The id of the topic.
        first: The oldest id to keep.
        dropped: The number of dropped records.
    """

    topic_id: int
    first: int
    dropped: int = field(default=0, init=False)


class TopicState(NamedTuple):
    """The committed state of a topic. A tuple, because a look at all topics creates and compares thousands of them.

    Attributes:
        first: The oldest id kept; `last + 1` if none is kept.
        last: The newest id; 0 before the first append.
        bytes: The approximate bytes of records: a dropped record counts until its block is dropped.
        jumped: Ranges of ids, first and last, that were skipped after a crash: they have no records. The newest ranges
            stay known after the records before them are dropped.
        owner: The user who has created it; empty for none.
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
    owner: str = ""

    def messages(self, position: int, last: int = 0) -> int:
        """Returns the number of messages that are kept after an id.

        Args:
            position: The id.
            last: The newest id, if it is known to be above the committed one.
        """
        start, last = max(position + 1, self.first), max(last, self.last)
        missing = sum(max(min(to, last) - max(begin, start) + 1, 0) for begin, to in self.jumped)
        return max(last - start + 1 - missing, 0)


@dataclass(slots=True)
class Stats:
    """The statistics of a store, or of one of its engines, since it was opened.

    Attributes:
        file_bytes: The size of the files.
        used_bytes: The part of it in use; the rest is free pages, which are reused before the files grow.
        commits: Transactions.
        appended: Appended records.
        appended_bytes: Their bytes.
        duplicates: Appends that repeated an earlier one.
        full: Transactions that failed for want of space.
        syncs: Commits or flushes that waited for the disk.
        sync_seconds: Their total duration.
        sync_buckets: The number of syncs that took at most the bucket's seconds (cumulative, as in Prometheus).
        damaged: `(topic_id, first, last)` of each quarantined range.
        engines: The statistics of each engine (`"strong"`, `"weak"`, `"memory"`).
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
    """A snapshot of one topic."""

    @property
    def first(self) -> int:
        """The oldest id kept."""

    @property
    def last(self) -> int:
        """The newest id."""

    def blocks(self, start: int, stop: int = 0) -> Iterator[tuple[bytes, memoryview]]:
        """Yields header and records of the blocks with ids from `start` (included) to `stop` (excluded; 0: to the end).

        The first and last block are cut to these ids. Checksums are verified. Views are valid until the reader ends.

        Raises:
            Gone: `start` is below `first`.
            DamagedError: At damaged ids, after the blocks before them. Continue with `blocks(error.last + 1)`.
        """

    def first_at(self, timestamp: int) -> tuple[int, int]:
        """Finds the first message at or after a time, by binary search over the timestamps of the blocks.

        If the system's clock was set back, timestamps are not in order. The result is then the start of a block at or
        after the time whose predecessor is earlier; there may be several of them.

        A damaged block has no timestamp, and counts as stored at the same time as the next undamaged one. If messages
        at or after the time may be damaged, the result is therefore the first of them, and reading from it reports the
        damage.

        Args:
            timestamp: The time, in microseconds since 1970, as in the headers of blocks.

        Returns:
            The id of the message, `first` or higher, and its timestamp. If all messages are earlier: `last + 1` and 0.
            The timestamp is also 0 if all messages from there on are damaged.
        """


Notify = Callable[[list[Write]], None]
Appended = Callable[[dict[int, int]], None]


class Store(Protocol):
    """A store. Any thread may call its methods.

    `notify` gets finished writes: after the commit, for a strong topic after the fsync, for an async one once its
    records have ids. `appended` gets, after each commit that can be read, the topics that have grown and their last
    ids. Both are called in a thread of the store, or in the caller's by `write_at_once` and (memory) `submit`. They
    must be quick and must not call the store. Of one commit, `notify` comes first.

    Attributes:
        id: The id of the store, 16 bytes in hex.
        findings: Sentences that opening the store reports; empty after a clean shutdown of an undamaged store.
        refused: The topics that were not opened because a row of them is damaged, and the damage, by name. They can be
            deleted.
        broken: The error after which it takes no writes; `None` while it takes them.
        full: True while appends that were answered to publishers of async topics wait in memory for space on the disk.
    """

    @property
    def id(self) -> str: ...

    @property
    def findings(self) -> list[str]: ...

    @property
    def refused(self) -> dict[str, DamagedError]: ...

    @property
    def broken(self) -> BaseException | None: ...

    @property
    def full(self) -> bool: ...

    def submit(self, write: Write) -> None:
        """Submits a write; never blocks. Raises `StoreClosed` once the store is closed."""

    def submit_many(self, writes: Iterable[Write]) -> None:
        """Submits several writes."""

    def write_at_once(self, writes: list[Write], *, allow_wal: bool = False) -> bool:
        """Applies writes in the calling thread, and calls `notify` and `appended` there.

        Args:
            writes: The writes.
            allow_wal: Small appends may go to the write-ahead log alone. They survive the process, but cannot be read
                until another write or `catch_up` applies them: the caller must call that soon.

        Returns:
            False if nothing was applied: the call would wait for the disk, or another write is in progress.
        """

    def catch_up(self) -> None:
        """Applies the appends of the write-ahead log in the calling thread, and calls `appended` there."""

    def topics(self) -> list[TopicState]:
        """Returns all topics, by id."""

    def topic(self, topic_id: int) -> TopicState:
        """Returns one topic. Raises `UnknownTopic`."""

    def read(self, topic_id: int) -> AbstractContextManager[Reader]:
        """Opens a reader of a topic. Close it soon: it keeps dropped records on the disk. Raises `UnknownTopic`."""

    def cursors(self, topic_id: int) -> dict[str, int]:
        """Returns the cursors of a topic by name; -1 for one whose row is damaged."""

    def all_cursors(self) -> dict[int, dict[str, int]]:
        """Returns the cursors of each topic that has any, by topic id."""

    def ack_set(self, topic_id: int, group: str = "") -> AckSet:
        """Returns a copy of the ack set of a round-robin topic, or of a consumer group of a broadcast topic.

        Raises:
            DamagedError: A row of it is damaged. `SetGroup` replaces that of a group.
            StoreError: There is no such group.
        """

    def ack_floors(self, topic_id: int) -> dict[str, int]:
        """Returns the ack floors of the consumer groups of a topic by name; -1 for one whose row is damaged."""

    def all_ack_floors(self) -> dict[int, dict[str, int]]:
        """Returns the ack floors of the consumer groups of each topic that has any, by topic id."""

    def age(self, topic_id: int, id: int) -> float:
        """Returns the age of a message as `max_age` counts it: the seconds since it was stored.

        Args:
            topic_id: The id of the topic.
            id: The id of the message; without such a message, the next one counts.

        Returns:
            The age; 0 if there is no message with this id or a higher one.
        """

    def stats(self) -> Stats:
        """Returns the statistics so far."""

    def close(self) -> None:
        """Applies the submitted writes, syncs and closes. Writes that other threads submit meanwhile fail."""
