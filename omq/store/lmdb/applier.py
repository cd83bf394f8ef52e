"""The changes that writes make in the current transaction of an environment. Only its writer thread uses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from omq._core import blocks
from omq.store.ack_set import AckSet
from omq.store.block_builder import BlockBuilder, Records, count_reaching, pieces
from omq.store.clock import Clock, wall
from omq.store.dead_letters import dead_letter, requeued
from omq.store.errors import DamagedError, NotAllowed, OutOfSpace, StageError, StoreError, TopicFull, UnknownTopic
from omq.store.interface import (
    MAX_ID,
    AbortStage,
    Acknowledge,
    AlterTopic,
    Append,
    CommitStages,
    DeleteCursor,
    DeleteGroup,
    DeleteTopic,
    MakeTopic,
    MoveToDeadLetter,
    Requeue,
    SetCursor,
    SetGroup,
    Stage,
    Trim,
    Write,
    drops_oldest,
)
from omq.store.internal import (
    ApplyRetention,
    ExpireState,
    LoggedAppend,
    MoveAck,
    MoveAppend,
    MoveTrim,
    PendingAppend,
    PurgeTopic,
    Quarantine,
    ReserveIds,
    ReserveTransientIds,
    SkipIds,
    WrongEnvironment,
)
from omq.store.lmdb import consumer_rows
from omq.store.lmdb.catalog import RESERVED_IDS, Catalog, Oldest, StoredTopic
from omq.store.lmdb.layout import (
    BLOCK,
    INLINE,
    NUMBER,
    STAGED,
    THREE,
    TOPIC,
    TOPIC_NUMBER,
    block_header,
    block_key,
    block_prefix,
    cursor_key,
    id_ranges,
    rows,
    topic_key,
    with_checksum,
    without_checksum,
)
from omq.store.lmdb.producers import Producers
from omq.store.lmdb.reader import block_at, find_record
from omq.store.lmdb.staging import Stages

MAX_DELETIONS: Final = 1024  # of blocks and of rows of deleted topics in one transaction
#: Skipped ranges of ids that a topic remembers after it has dropped all records before them.
MAX_SKIPPED_RANGES: Final = 32
ANOTHER_KIND: Final = "the stage {} belongs to a topic of another persistence"
SEPARATE_COMMITS: Final = (
    "the stage {} cannot be in one commit with the others: commit the stages of strong topics, of weak and async "
    "topics, and of transient topics separately"
)
#: The kinds of rows that belong to one topic.
TOPIC_KINDS: Final = (b"b", b"n", b"d", b"p", b"w", b"s", b"r", b"o", b"W", b"S", b"R", b"q", b"j")


class Applier:
    """Applies writes to the transactions of an environment.

    Args:
        catalog: The catalog, if it is in this environment.
        reserve: Called with a topic and the last id that it is about to assign, to reserve more ids.
        clock: Measures ages.
        in_other_engine: Returns whether another engine has the stage or the commit of a key.

    Attributes:
        topics: The topics of the environment by id.
        touched: The topics that the current transaction has changed.
        has_backlog: True while dropped blocks or rows of deleted topics are left to delete.
        deletion_limit: The highest number of blocks and rows that a transaction deletes while space is short, as a
            deletion writes new pages before it frees the old ones. `None`: `MAX_DELETIONS`. While it is set,
            `ApplyRetention` checks all topics.
        next_expiry: The step that continues the last `ExpireState`; `None` if that has left nothing.
        has_async_appends: The current transaction appends to an async topic; such appends are answered before the
            commit.
        pending_topics: Topics with pending appends. No other record may take the ids of these.
    """

    def __init__(
        self,
        catalog: Catalog | None,
        reserve: Callable[[StoredTopic, int], None],
        clock: Clock,
        in_other_engine: Callable[[bytes], bool] = lambda key: False,
    ) -> None:
        self.catalog = catalog
        self.topics: dict[int, StoredTopic] = {}
        self.touched: set[StoredTopic] = set()
        self.has_backlog = False
        self.next_expiry: ExpireState | None = None
        self.deletion_limit: int | None = None
        self.pending_topics: set[int] = set()
        self.appended = 0  # records in the current transaction
        self.appended_bytes = 0
        self.duplicates = 0
        self.has_async_appends = False
        #: The ack sets that the current transaction has changed, by topic and group.
        self._acked: set[tuple[StoredTopic, str]] = set()
        self._reserve = reserve
        self._in_other_engine = in_other_engine
        self._producers = Producers()
        self._stages = Stages()
        self._deleted: set[int] = set()  # deleted topics that have rows left
        self._purged: set[int] = set()  # those of them whose last rows the current transaction deletes
        self._catalog_changes = 0  # that may leave the number of topics as it was
        self._ages = (-1, 0), False  # the number of topics and changes, and the result of `has_ages` for them
        self._clock = clock
        self._now = 0  # the time by `clock`
        self._wall = 0  # the timestamp of messages
        self._transaction: Any = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Append: self._append,
            MoveAppend: self._append,
            PendingAppend: self._append_pending,
            LoggedAppend: self._append_pending,
            MoveAck: self._acknowledge,
            MakeTopic: self._make_topic,
            AlterTopic: self._alter_topic,
            DeleteTopic: self._delete_topic,
            Acknowledge: self._acknowledge,
            MoveToDeadLetter: self._move_to_dead_letter,
            Requeue: self._requeue,
            SetCursor: self._set_cursor,
            DeleteCursor: self._delete_cursor,
            SetGroup: self._set_group,
            DeleteGroup: self._delete_group,
            Stage: self._stage,
            CommitStages: self._commit,
            AbortStage: self._abort,
            Trim: self._trim,
            MoveTrim: self._trim,
            ReserveIds: self._reserve_ids,
            ReserveTransientIds: self._reserve_ids,
            ApplyRetention: self._apply_retention,
            ExpireState: self._expire_state,
            Quarantine: self._quarantine,
            SkipIds: self._skip_ids,
            PurgeTopic: self._delete_topic,
        }

    # The transaction

    def begin(self, transaction: Any) -> None:
        """Begins a transaction."""
        self._transaction = transaction
        self._now = self._clock.now()
        self._wall = wall()
        self.touched.clear()
        self._acked.clear()
        self.appended = self.appended_bytes = self.duplicates = 0
        self.has_async_appends = False

    def apply(self, write: Write) -> None:
        """Applies one write. If it raises `StoreError`, it has changed nothing."""
        self._handlers[type(write)](write)

    def finish(self) -> None:
        """Writes the open blocks, and the changed topics and ack sets; applies retention, and frees deleted topics."""
        limit = MAX_DELETIONS if self.deletion_limit is None else min(MAX_DELETIONS, self.deletion_limit)
        left = self._put_topics(self.touched, limit)
        if self._deleted and left > 0:
            self._purge(left)
        self.has_backlog = left <= 0 or self._deleted > self._purged

    def _put_topics(self, topics: Iterable[StoredTopic], left: int) -> int:
        """Writes the open blocks of topics, and what has changed; drops at most `left` blocks; returns what is left."""
        for topic in topics:
            if topic.id not in self.topics:
                continue
            self._flush(topic)
            left = self._retain(topic, left)
            key = topic_key(b"n", topic.id)
            self._transaction.put(key, with_checksum(key, THREE.pack(topic.first, topic.last, topic.bytes)))
        for topic, group in self._acked:
            if topic.id in self.topics and (acks := topic.ack_sets.get(group)) is not None:
                consumer_rows.put_ack_set(self._transaction, topic.id, group, acks)
        return left

    def committed(self) -> dict[int, int]:
        """Ends a committed transaction; returns the last ids of the topics that have grown."""
        self._deleted -= self._purged
        self._purged.clear()
        grown = {}
        for topic in self.touched:
            if topic.commit():
                grown[topic.id] = topic.last
        self._transaction = None
        return grown

    def rollback(self, transaction: Any) -> None:
        """Ends a failed transaction: returns to the committed state, which `transaction` reads."""
        self._transaction = None
        self._purged.clear()
        self.has_backlog = False  # without space an immediate retry would fail too; the next tick retries
        self.next_expiry = None  # the next hourly `ExpireState` retries
        self._producers.rollback()
        touched = list(self.touched)
        if self.catalog is not None:
            self.catalog.load(transaction)
            self._deleted -= self.catalog.topics.keys()
        for topic in touched:
            if self.catalog is None or topic.id in self.catalog.topics:
                self.topics[topic.id] = topic
                self.load(transaction, topic)
            else:
                self.topics.pop(topic.id, None)
            self._deleted.discard(topic.id)
        self.touched.clear()
        self._catalog_changes += 1

    @property
    def has_deletions(self) -> bool:
        """Returns whether rows of deleted topics are left."""
        return bool(self._deleted)

    def has_ages(self) -> bool:
        """Returns whether a topic drops old records. Any thread may call it; it is called each second."""
        catalog = len(self.topics), self._catalog_changes
        if self._ages[0] != catalog:
            self._ages = catalog, any(topic.settings.get("max_age") for topic in list(self.topics.values()))
        return self._ages[1]

    def load(self, transaction: Any, topic: StoredTopic) -> None:
        """Reads the committed state of a topic."""
        key = topic_key(b"n", topic.id)
        row = transaction.get(key)
        jumped = [(first, last) for _, first, last in id_ranges(transaction, topic_key(b"j", topic.id))]
        first, last, size = THREE.unpack(without_checksum(key, row)) if row is not None else (1, 0, 0)
        topic.set_committed(first, last, size, jumped)

    def purge_unknown(self, transaction: Any, known: set[int]) -> None:
        """Marks the rows of unknown topics for deletion."""
        cursor = transaction.cursor()
        for kind in TOPIC_KINDS:
            found = cursor.set_range(kind)
            while found and cursor.key()[:1] == kind:
                _, id = TOPIC.unpack_from(cursor.key())
                if id not in known:
                    self._deleted.add(id)
                if id == 2**32 - 1:
                    break
                found = cursor.set_range(topic_key(kind, id + 1))
        cursor.close()
        self.has_backlog = bool(self._deleted)

    # Appends

    def _topic(self, id: int) -> StoredTopic:
        topic = self.topics.get(id)
        if topic is None:
            raise UnknownTopic(f"there is no topic with the id {id}")
        return topic

    def _append(self, write: Append) -> None:
        topic = self._topic(write.topic_id)
        write.duplicate = False
        if topic.persistence == "async":
            self.has_async_appends = True
        if not (write.producer and write.sequence):
            write.timestamp = self._wall
            write.first = self._grow(topic, write.records, write.count)
            return
        producer = self._producers.of(self._transaction, write)
        if self._producers.answer_repetition(self._transaction, producer, write):
            self.duplicates += 1
        elif write.repeats_only:
            raise TopicFull(topic.id, write.count, len(write.records))
        else:
            write.timestamp = self._wall
            write.first = self._grow(topic, write.records, write.count)
        self._producers.record(self._transaction, producer, write, self._now)

    def assign_ids(self, write: Append, last: int) -> bool:
        """Assigns an append its ids ahead of its transaction; returns whether that is possible.

        Args:
            write: The append.
            last: The last id assigned in its topic; 0: the topic's own `last`.
        """
        topic = self.topics.get(write.topic_id)
        if topic is None or topic.id in self.pending_topics or topic.reserved is None or write.repeats_only:
            return False
        write.first = (last or topic.last) + 1
        if write.first + write.count + RESERVED_IDS // 2 > topic.reserved:
            return False
        if write.producer and write.sequence and not self._producers.is_new(write):
            return False
        write.duplicate = False
        write.timestamp = wall()
        return True

    def _append_pending(self, write: PendingAppend) -> None:
        topic = self._topic(write.topic_id)
        if write.answered_first > topic.last + 1:
            # The appends with the ids between were refused and not answered.
            self._skip_ids(SkipIds(topic.id, write.answered_first - 1))
        if not self.appended:  # pending appends come first, and all records of a transaction have one timestamp
            self._wall = write.timestamp
        self._append(write)

    def _grow(self, topic: StoredTopic, records: Records, count: int) -> int:
        """Appends records; returns the first id."""
        first = topic.last + 1
        last = topic.last + count
        self._check_ids(topic, last)
        for piece, number in pieces(records, count):
            block = topic.open
            if block is not None and block.has_room(piece):
                block.add(piece, number)
            else:
                self._flush(topic)
                topic.open = BlockBuilder(topic.last + 1, piece, number)
            topic.last += number
        topic.bytes += len(records)
        self.touched.add(topic)
        self.appended += count
        self.appended_bytes += len(records)
        return first

    def _check_ids(self, topic: StoredTopic, last: int) -> None:
        """Raises `StoreError` unless a topic may assign ids up to `last`; reserves more if few are left."""
        if last > MAX_ID:
            raise StoreError(f"topic {topic.name!r} has used all ids up to {MAX_ID}")
        if topic.id in self.pending_topics:
            raise OutOfSpace("the disk is full: messages that were acknowledged before have to be written first")
        if topic.reserved is not None and last + RESERVED_IDS // 2 > topic.reserved:
            self._reserve(topic, last)

    def _skip_ids(self, write: SkipIds) -> None:
        topic = self._topic(write.topic_id)
        if topic.delivery == "round_robin":
            self._ack_set(topic).add(topic.last + 1, write.last)
        if write.last > topic.last:
            self._flush(topic)
            key = TOPIC_NUMBER.pack(b"j", topic.id, topic.last + 1)
            self._transaction.put(key, with_checksum(key, NUMBER.pack(write.last)))
            topic.jumped.append((topic.last + 1, write.last))
        if topic.first > topic.last:
            topic.first = write.last + 1
        topic.last = max(topic.last, write.last)
        self.touched.add(topic)

    def _flush(self, topic: StoredTopic) -> None:
        """Writes the open block of a topic."""
        block, topic.open = topic.open, None
        if block is not None:
            header = blocks.header(block.first, block.count, self._wall, block.size)
            key = block_key(topic.id, block.first)
            self._transaction.put(key, b"".join((block_prefix(key, header, INLINE, self._now), *block.parts)))

    def _move_to_dead_letter(self, write: MoveToDeadLetter) -> None:
        topic, target = self._topic(write.topic_id), self.topics.get(write.target_id)
        if target is None:
            raise WrongEnvironment(f"there is no topic with the id {write.target_id}")
        acks = self._ack_set(topic, write.group)
        self._flush(topic)
        record = find_record(self._transaction, topic.id, write.id, topic.first)
        record = dead_letter(record, topic.name, write, self._wall)
        write.first, write.size = self._grow(target, record, 1), len(record)
        if acks.is_of(write.generation):
            dropped = topic.first - 1 if write.group else 0
            write.floor = acks.record([(write.id, write.id)], 0, {}, dropped)
        self.touched.add(topic)

    def _requeue(self, write: Requeue) -> None:
        topic = self._topic(write.topic_id)
        self._flush(topic)
        moves = [
            (self._topic(target_id), requeued(find_record(self._transaction, topic.id, id, topic.first)))
            for id, target_id in write.moves
        ]
        for target, count in Counter(target for target, _ in moves).items():
            self._check_ids(target, target.last + count)
        write.grown = {}
        for target, record in moves:
            self._grow(target, record, 1)
            write.record_growth(target.id, len(record))
        write.moved = len(moves)
        topic.first = write.moves[-1][0] + 1
        self.touched.add(topic)

    # Topics

    def _make_topic(self, write: MakeTopic) -> None:
        assert self.catalog is not None
        topic = self.catalog.make(self._transaction, write)
        if topic is not None and topic.engine == "strong":
            self.topics[topic.id] = topic
            self.touched.add(topic)

    def _alter_topic(self, write: AlterTopic) -> None:
        """Rewrites the topic's row, if this environment has the catalog.

        Applies the settings, if this environment has the topic's records.
        """
        if self.catalog is not None:
            self.catalog.alter(self._transaction, write)
        topic = self.topics.get(write.topic_id)
        if topic is not None:
            topic.settings = write.settings
            self._catalog_changes += 1
            self.touched.add(topic)

    def _delete_topic(self, write: DeleteTopic) -> None:
        if self.catalog is not None:
            topic = self.catalog.delete(self._transaction, write.topic_id)
            if topic.engine != "strong":
                raise WrongEnvironment(f"the rows of topic {topic.name!r} are in another environment")
        id = write.topic_id
        if id in self.topics:
            topic = self.topics.pop(id)
            self._catalog_changes += 1
            topic.open = None
            self.touched.add(topic)
        # A topic that was refused at opening is not in `topics`, but has rows to delete.
        self._producers.forget_topic(id)
        self._stages.drop_topic(self._transaction, id)
        self._deleted.add(id)

    def _reserve_ids(self, write: ReserveIds) -> None:
        assert self.catalog is not None
        self.catalog.reserve(self._transaction, write)

    def _set_cursor(self, write: SetCursor) -> None:
        self._topic(write.topic_id)
        key = cursor_key(write.topic_id, write.name)
        self._transaction.put(key, with_checksum(key, NUMBER.pack(write.id)))

    def _delete_cursor(self, write: DeleteCursor) -> None:
        self._topic(write.topic_id)
        write.found = self._transaction.delete(cursor_key(write.topic_id, write.name))

    # Consumers

    def _ack_set(self, topic: StoredTopic, group: str = "") -> AckSet:
        """Returns the ack set of a topic or of a group of it, for a change."""
        acks = topic.ack_sets.get(group)
        if acks is None:
            acks = topic.ack_sets[group] = consumer_rows.load_ack_set(self._transaction, topic.id, group)
        self._acked.add((topic, group))
        return acks

    def _acknowledge(self, write: Acknowledge) -> None:
        topic = self._topic(write.topic_id)
        if any(first < 1 or last > topic.last for first, last in write.ranges) or write.last_delivered > topic.last:
            raise StoreError(f"topic {topic.name!r} has no ids above {topic.last} yet")
        acks = self._ack_set(topic, write.group)
        self.touched.add(topic)
        if acks.is_of(write.generation):
            dropped = topic.first - 1 if write.group else 0
            write.floor = acks.record(write.ranges, write.last_delivered, write.deliveries, dropped)

    def _set_group(self, write: SetGroup) -> None:
        topic = self._topic(write.topic_id)
        if write.position > topic.last:
            raise StoreError(f"topic {topic.name!r} has no id {write.position} yet")
        consumer_rows.delete_ack_set(self._transaction, topic.id, write.name)
        write.generation = consumer_rows.next_generation(self._transaction, self._wall)
        topic.ack_sets[write.name] = AckSet(write.position, write.position, generation=write.generation)
        self._acked.add((topic, write.name))
        self.touched.add(topic)

    def _delete_group(self, write: DeleteGroup) -> None:
        topic = self._topic(write.topic_id)
        write.found = consumer_rows.delete_ack_set(self._transaction, topic.id, write.name)
        topic.ack_sets.pop(write.name, None)
        self._acked.discard((topic, write.name))
        self.touched.add(topic)

    # Stages

    def _stage(self, write: Stage) -> None:
        self._topic(write.topic_id)
        if self._stages.find(self._transaction, write.stage) is None and self._in_other_engine(b"G" + write.stage):
            raise StageError(ANOTHER_KIND, write.stage)
        self._stages.put(self._transaction, write, self._now)

    def _commit(self, write: CommitStages) -> None:
        known = self._stages.known(self._transaction, write.commit)
        write.repeated, write.grown = False, {}
        if known is not None:
            (write.published, write.names), write.repeated = known, True
            return
        if self._in_other_engine(b"c" + write.commit):
            raise WrongEnvironment("the other environment has this commit")
        found = [self._stages.find(self._transaction, stage) for stage in write.stages]
        here = [one for one in found if one is not None]
        if not here:
            raise WrongEnvironment("there are no such stages")
        if len(here) < len(found):
            missing = [stage for stage, one in zip(write.stages, found, strict=True) if one is None]
            for stage in missing:
                if self._in_other_engine(b"G" + stage):
                    raise StageError(SEPARATE_COMMITS, stage)
            raise StageError("there is no stage {} with the others of this commit", missing[0])
        if len(set(write.stages)) < len(write.stages):
            raise StageError("the commit names a stage twice")
        for stage in write.stages:
            if self._in_other_engine(b"G" + stage):
                raise StageError(
                    "the stage {} exists twice, in topics of two kinds: abort it twice, once for each kind", stage
                )
        counts: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for number, topic_id in here:
            count, size = self._stages.measure(self._transaction, number)
            counts[topic_id] = counts.get(topic_id, 0) + count
            sizes[topic_id] = sizes.get(topic_id, 0) + size
        for topic_id, count in counts.items():
            topic = self._topic(topic_id)
            if write.may is not None and not write.may(topic_id):
                raise NotAllowed(topic_id)
            if write.has_room is not None and not write.has_room(topic_id, count, sizes[topic_id]):
                raise TopicFull(topic_id, count, sizes[topic_id])
            self._check_ids(topic, topic.last + count)
        before = {id: self.topics[id].bytes for id in counts}
        write.published = [
            self._publish(self.topics[topic_id], stage) for stage, (_, topic_id) in zip(write.stages, here, strict=True)
        ]
        write.names = {id: self.topics[id].name for id in counts}
        write.grown = {id: (count, self.topics[id].bytes - before[id]) for id, count in counts.items()}
        self._stages.record(self._transaction, write, self._now)

    def _publish(self, topic: StoredTopic, stage: bytes) -> tuple[bytes, int, int, int]:
        """Publishes a stage: writes a block header for each piece, and leaves the piece where it is."""
        self._flush(topic)
        first = topic.last + 1
        for piece, count, size in self._stages.publish(self._transaction, stage):
            header = blocks.header(topic.last + 1, count, self._wall, size)
            key = block_key(topic.id, topic.last + 1)
            self._transaction.put(key, block_prefix(key, header, STAGED, self._now) + piece)
            topic.last += count
            topic.bytes += size
            self.appended += count
            self.appended_bytes += size
        self.touched.add(topic)
        return stage, topic.id, first, topic.last + 1 - first

    def _abort(self, write: AbortStage) -> None:
        if write.prefix:
            self._stages.drop_all(self._transaction, write.stage)
            return
        if self._stages.find(self._transaction, write.stage) is None:
            raise WrongEnvironment("there is no such stage")
        self._stages.drop(self._transaction, write.stage)

    # Retention

    def _trim(self, write: Trim) -> None:
        topic = self._topic(write.topic_id)
        before = topic.current
        topic.first = max(topic.first, min(write.first, topic.last + 1))
        write.dropped = before.messages(0) - before.messages(topic.first - 1)
        self.touched.add(topic)

    def _apply_retention(self, write: ApplyRetention) -> None:
        """Marks the topics that may have records to drop, so that `finish` checks them."""
        for topic in self.topics.values():
            if topic.settings.get("max_age") or self.has_backlog or self.deletion_limit is not None:
                self.touched.add(topic)
                if self.deletion_limit is not None and topic.delivery == "round_robin" and "" not in topic.ack_sets:
                    topic.ack_sets[""] = consumer_rows.load_ack_set(self._transaction, topic.id)

    def _retain(self, topic: StoredTopic, left: int) -> int:
        """Drops the blocks that a topic does not retain, at most `left`; returns what is left of that limit."""
        settings = topic.settings
        first = topic.first
        bounded = drops_oldest(topic.delivery, settings)
        if bounded and settings.get("max_messages"):
            first = max(first, topic.last - int(settings["max_messages"]) + 1)
        most = (settings.get("max_bytes") or 0) if bounded else 0
        oldest = self._now - int(settings["max_age"] * 1e6) if settings.get("max_age") else 0
        below = first
        acks = topic.ack_sets.get("") if topic.delivery == "round_robin" else None
        if acks is not None:
            below = max(below, acks.floor + 1)
        if below > 1 or (most and topic.bytes > most) or oldest:
            while left > 0:
                block = topic.oldest or self._oldest(topic)
                if block is None:
                    break
                if most and topic.bytes > most:
                    first = max(first, self._fitting(topic, block, topic.bytes - most))
                if not (block.last < max(first, below) or block.when < oldest):
                    break
                self._drop(topic, block)
                first = max(first, block.last + 1)
                left -= 1
        topic.first = first
        while len(topic.jumped) > MAX_SKIPPED_RANGES and topic.jumped[0][1] < first:
            self._transaction.delete(TOPIC_NUMBER.pack(b"j", topic.id, topic.jumped.pop(0)[0]))
        if topic.delivery == "round_robin" and topic.first > 1 and (acks is None or acks.floor < topic.first - 1):
            acks = self._ack_set(topic)
            acks.add(acks.floor + 1, topic.first - 1)
        return left

    def _fitting(self, topic: StoredTopic, block: Oldest, excess: int) -> int:
        """Returns the first id to keep if the oldest block has to shrink by `excess` bytes. The newest record stays."""
        if excess >= block.size:
            return min(block.last + 1, topic.last)
        key = block_key(topic.id, block.first)
        try:
            records = block_at(self._transaction, key, self._transaction.get(key))[-1]
            return min(block.first + count_reaching(records, excess), topic.last)
        except (DamagedError, ValueError):
            return block.first  # the bounds of its records are unknown, so the block is only dropped as a whole

    def _oldest(self, topic: StoredTopic) -> Oldest | None:
        """Returns the oldest block of a topic; `None` if the topic is empty."""
        cursor = self._transaction.cursor()
        prefix = topic_key(b"b", topic.id)
        if cursor.set_range(prefix) and cursor.key()[:5] == prefix:
            key = bytes(cursor.key())
            first = TOPIC_NUMBER.unpack(key)[2]
            try:
                _, when, header = block_header(key, cursor.value())
                _, count, _, size = blocks.read_header(header)
                topic.oldest = Oldest(first, first + count - 1, size, when)
            except (DamagedError, ValueError):
                # A damaged header: the block counts as reaching to the next one.
                last = topic.last
                size = max(len(cursor.value()) - BLOCK.size, 0)
                if cursor.next() and cursor.key()[:5] == prefix:
                    last = TOPIC_NUMBER.unpack(cursor.key())[2] - 1
                topic.oldest = Oldest(first, last, size, self._now)
        cursor.close()
        return topic.oldest

    def _drop(self, topic: StoredTopic, block: Oldest) -> None:
        """Drops the oldest block of a topic."""
        key = block_key(topic.id, block.first)
        self._drop_block(key, self._transaction.get(key))
        topic.bytes = max(topic.bytes - block.size, 0)
        topic.oldest = None

    def _drop_block(self, key: bytes, value: Any) -> None:
        """Deletes a block, and the staged piece that it refers to."""
        if value is not None and len(value) > BLOCK.size and value[0] == STAGED:
            self._transaction.delete(bytes(value[BLOCK.size :]))
        self._transaction.delete(key)

    def _purge(self, left: int) -> None:
        """Deletes at most `left` rows of deleted topics."""
        for id in self._deleted - self._purged:
            for kind in TOPIC_KINDS:
                keys = [key for key, _ in islice(rows(self._transaction, topic_key(kind, id)), left)]
                for key in keys:
                    if kind == b"b":
                        self._drop_block(key, self._transaction.get(key))
                    else:
                        self._transaction.delete(key)
                left -= len(keys)
                if left <= 0:
                    return
            self._purged.add(id)

    def _expire_state(self, write: ExpireState) -> None:
        position = self._producers.expire(self._transaction, self._now, MAX_DELETIONS, write.start, self.topics)
        has_more = self._stages.drop_old(self._transaction, self._now, MAX_DELETIONS) >= MAX_DELETIONS
        write.next_start = position if position or has_more else None
        self.next_expiry = None if write.next_start is None else ExpireState(write.next_start)

    def _quarantine(self, write: Quarantine) -> None:
        key = TOPIC_NUMBER.pack(b"q", write.topic_id, write.first)
        self._transaction.put(key, with_checksum(key, NUMBER.pack(write.last)))
