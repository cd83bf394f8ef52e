"""The changes that writes make in the current transaction of an environment. Only its writer thread uses it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from omq._core import blocks
from omq.store.ack_set import AckSet
from omq.store.block_builder import BlockBuilder, Records, pieces, reaching
from omq.store.clock import Clock, wall
from omq.store.errors import DamagedError, NotAllowed, OutOfSpace, StageError, StoreError, TopicFull, UnknownTopic
from omq.store.interface import (
    MAX_ID,
    AbortStage,
    Acknowledge,
    Append,
    CommitStages,
    DeleteCursor,
    DeleteTopic,
    MakeTopic,
    MoveToDeadLetter,
    SetCursor,
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
    PendingAppend,
    Quarantine,
    ReserveIds,
    ReserveTransientIds,
    SkipIds,
    Sweep,
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
    id_ranges,
    opened,
    rows,
    sealed,
    topic_key,
)
from omq.store.lmdb.producers import Producers
from omq.store.lmdb.reader import block_at, find_record
from omq.store.lmdb.staging import Stages

SWEEP_LIMIT: Final = 1024  # blocks, or rows of a deleted topic, that one transaction deletes
#: Ranges of ids that were passed over which are known on when nothing in front of them is kept any more.
MAX_JUMPS: Final = 32
ANOTHER_KIND: Final = "the stage {} belongs to a topic of another persistence"
APART: Final = (
    "the stage {} cannot go into one commit with the others: strong topics, weak and async ones, and transient ones "
    "are committed apart"
)
OF_TOPICS: Final = (b"b", b"n", b"d", b"p", b"w", b"s", b"r", b"o", b"q", b"j")  # the kinds of rows that a topic has


class Applier:
    """The topics of an environment.

    Args:
        catalog: The catalog, if it is in this environment.
        reserve: Has ids reserved: a topic's id, and the highest that it is about to give.
        clock: Measures ages.
        elsewhere: Whether another engine has a stage or a commit, by its key.

    Attributes:
        topics: By id.
        touched: The topics that the transaction at work has changed.
        behind: More is to be deleted.
        few: How many blocks or rows a transaction deletes at most, where each takes space that there hardly is: pages
            that change are written again before the old ones are free. `None`: as many as usual.
            While it is set, `ApplyRetention` looks at all topics: what found no space is tried again.
        unclean: There may be more to be forgotten of what is old.
        early: The transaction at work appends to an async topic, which is acknowledged before it is committed.
        pending_topics: Topics with pending appends, whose ids no other record may take.
    """

    def __init__(
        self,
        catalog: Catalog | None,
        reserve: Callable[[StoredTopic, int], None],
        clock: Clock,
        elsewhere: Callable[[bytes], bool] = lambda key: False,
    ) -> None:
        self.catalog = catalog
        self.topics: dict[int, StoredTopic] = {}
        self.touched: set[StoredTopic] = set()
        self.behind = self.unclean = False
        self.few: int | None = None
        self.pending_topics: set[int] = set()
        self.appended = 0  # records, in the transaction at work
        self.appended_bytes = 0
        self.duplicates = 0
        self.early = False
        self._settling: set[StoredTopic] = set()  # of which the transaction at work has settled something
        self._reserve = reserve
        self._elsewhere = elsewhere
        self._producers = Producers()
        self._stages = Stages()
        self._cleaned = b""  # where `ExpireState` goes on
        self._deleted: set[int] = set()  # topics whose rows are still there
        self._swept: set[int] = set()  # of them: are not, if the transaction at work is committed
        self._clock = clock
        self._now = 0  # by it
        self._wall = 0  # the timestamp of messages
        self._transaction: Any = None
        self._does: dict[type, Callable[[Any], None]] = {
            Append: self._append,
            MoveAppend: self._append,
            PendingAppend: self._append_pending,
            LoggedAppend: self._append_pending,
            MoveAck: self._settle,
            MakeTopic: self._make,
            DeleteTopic: self._delete,
            Acknowledge: self._settle,
            MoveToDeadLetter: self._move,
            SetCursor: self._set_position,
            DeleteCursor: self._drop_position,
            Stage: self._stage,
            CommitStages: self._commit,
            AbortStage: self._abort,
            Trim: self._trim,
            ReserveIds: self._reserve_ids,
            ReserveTransientIds: self._reserve_ids,
            ApplyRetention: self._retain_all,
            ExpireState: self._clean,
            Quarantine: self._quarantine,
            SkipIds: self._jump,
            Sweep: self._delete,
        }

    # The transaction

    def begin(self, transaction: Any) -> None:
        """A transaction begins."""
        self._transaction = transaction
        self._now = self._clock.now()
        self._wall = wall()
        self.touched.clear()
        self._settling.clear()
        self.appended = self.appended_bytes = self.duplicates = 0
        self.early = False

    def apply(self, write: Write) -> None:
        """Does one write. What raises `StoreError` has changed nothing."""
        self._does[type(write)](write)

    def finish(self) -> None:
        """Puts what is left to put, drops what is not kept."""
        left = SWEEP_LIMIT if self.few is None else min(SWEEP_LIMIT, self.few)
        for topic in self.touched:
            if topic.id not in self.topics:
                continue
            self._flush(topic)
            left = self._retain(topic, left)
            key = topic_key(b"n", topic.id)
            self._transaction.put(key, sealed(key, THREE.pack(topic.first, topic.last, topic.bytes)))
            if topic in self._settling and topic.settled is not None:
                consumer_rows.put_settled(self._transaction, topic.id, topic.settled)
        if self._deleted and left > 0:
            self._sweep(left)
        self.behind = left <= 0 or self._deleted > self._swept

    def committed(self) -> dict[int, int]:
        """The transaction is committed: topics that have grown, with their last ids."""
        self._deleted -= self._swept
        self._swept.clear()
        grown = {}
        for topic in self.touched:
            if topic.commit():
                grown[topic.id] = topic.last
        self._transaction = None
        return grown

    def rollback(self, transaction: Any) -> None:
        """The transaction is not committed; `transaction` reads what is."""
        self._transaction = None
        self._swept.clear()
        self.behind = False  # in a second again: where there is no space the next attempt would fail as well
        self.unclean = False  # in an hour again
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

    @property
    def has_deletions(self) -> bool:
        """Rows of deleted topics are left."""
        return bool(self._deleted)

    def load(self, transaction: Any, topic: StoredTopic) -> None:
        """Reads where a topic stands."""
        key = topic_key(b"n", topic.id)
        row = transaction.get(key)
        jumped = [(first, last) for _, first, last in id_ranges(transaction, topic_key(b"j", topic.id))]
        first, last, size = THREE.unpack(opened(key, row)) if row is not None else (1, 0, 0)
        topic.stand(first, last, size, jumped)

    def strangers(self, transaction: Any, known: set[int]) -> None:
        """Marks the rows of unknown topics for deletion."""
        cursor = transaction.cursor()
        for kind in OF_TOPICS:
            found = cursor.set_range(kind)
            while found and cursor.key()[:1] == kind:
                _, id = TOPIC.unpack_from(cursor.key())
                if id not in known:
                    self._deleted.add(id)
                if id == 2**32 - 1:
                    break
                found = cursor.set_range(topic_key(kind, id + 1))
        cursor.close()
        self.behind = bool(self._deleted)

    # Appending

    def _topic(self, id: int) -> StoredTopic:
        topic = self.topics.get(id)
        if topic is None:
            raise UnknownTopic(f"there is no topic {id}")
        return topic

    def _append(self, write: Append) -> None:
        topic = self._topic(write.topic_id)
        write.duplicate = False
        if topic.persistence == "async":
            self.early = True
        if not (write.producer and write.sequence):
            write.timestamp = self._wall
            write.first = self._grow(topic, write.records, write.count)
            return
        producer = self._producers.of(self._transaction, write)
        if self._producers.repeated(self._transaction, producer, write):
            self.duplicates += 1
        elif write.repeats_only:
            raise TopicFull(topic.id, write.count, len(write.records))
        else:
            write.timestamp = self._wall
            write.first = self._grow(topic, write.records, write.count)
        self._producers.note(self._transaction, producer, write, self._now)

    def assign_ids(self, write: Append, last: int) -> bool:
        """Gives an append its ids before the transaction does; returns whether that is possible.

        Args:
            write: The append.
            last: The last id that its topic has given; 0: as the topic has it.
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
            # What stood before it was not acknowledged, and is refused.
            self._jump(SkipIds(topic.id, write.answered_first - 1))
        if not self.appended:  # such writes come first, and what is in one transaction has one time
            self._wall = write.timestamp
        self._append(write)

    def _grow(self, topic: StoredTopic, records: Records, count: int) -> int:
        """Appends records; the first id."""
        first = topic.last + 1
        last = topic.last + count
        self._allow(topic, last)
        for piece, number in pieces(records, count):
            block = topic.open
            if block is not None and block.takes(piece):
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

    def _allow(self, topic: StoredTopic, last: int) -> None:
        """Makes sure that a topic may give ids up to `last`."""
        if last > MAX_ID:
            raise StoreError("all ids of the topic have been given")
        if topic.id in self.pending_topics:
            raise OutOfSpace("the disk is full: what was acknowledged before has to be written first")
        if topic.reserved is not None and last + RESERVED_IDS // 2 > topic.reserved:
            self._reserve(topic, last)

    def _jump(self, write: SkipIds) -> None:
        topic = self._topic(write.topic_id)
        if topic.delivery == "round_robin":
            self._settled(topic).add(topic.last + 1, write.last)
        if write.last > topic.last:
            self._flush(topic)
            key = TOPIC_NUMBER.pack(b"j", topic.id, topic.last + 1)
            self._transaction.put(key, sealed(key, NUMBER.pack(write.last)))
            topic.jumped.append((topic.last + 1, write.last))
        if topic.first > topic.last:
            topic.first = write.last + 1
        topic.last = max(topic.last, write.last)
        self.touched.add(topic)

    def _flush(self, topic: StoredTopic) -> None:
        """Puts the open block of a topic."""
        block, topic.open = topic.open, None
        if block is not None:
            header = blocks.header(block.first, block.count, self._wall, block.size)
            key = block_key(topic.id, block.first)
            self._transaction.put(key, b"".join((block_prefix(key, header, INLINE, self._now), *block.parts)))

    def _move(self, write: MoveToDeadLetter) -> None:
        topic, target = self._topic(write.topic_id), self.topics.get(write.target_id)
        if target is None:
            raise WrongEnvironment(f"there is no topic {write.target_id} here")
        settled = self._settled(topic)
        self._flush(topic)
        record = find_record(self._transaction, topic.id, write.id, topic.first)
        write.first, write.size = self._grow(target, record, 1), len(record)
        settled.add(write.id, write.id)
        self.touched.add(topic)

    # Topics

    def _make(self, write: MakeTopic) -> None:
        assert self.catalog is not None
        topic = self.catalog.make(self._transaction, write)
        if topic is not None and topic.persistence == "strong":
            self.topics[topic.id] = topic
            self.touched.add(topic)

    def _delete(self, write: DeleteTopic) -> None:
        if self.catalog is not None:
            topic = self.catalog.delete(self._transaction, write.topic_id)
            if topic.persistence != "strong":
                raise WrongEnvironment("its rows are in another environment")
        id = write.topic_id
        if id in self.topics:
            topic = self.topics.pop(id)
            topic.open = None
            self.touched.add(topic)
        # One that was refused is not among them; its rows go all the same.
        self._producers.forget_topic(id)
        self._stages.drop_topic(self._transaction, id)
        self._deleted.add(id)

    def _reserve_ids(self, write: ReserveIds) -> None:
        assert self.catalog is not None
        self.catalog.reserve(self._transaction, write)

    def _set_position(self, write: SetCursor) -> None:
        self._topic(write.topic_id)
        key = topic_key(b"o", write.topic_id) + write.name.encode()
        if len(key) > 500:
            raise StoreError("the name of a position is longer than 495 bytes")
        self._transaction.put(key, sealed(key, NUMBER.pack(write.id)))

    def _drop_position(self, write: DeleteCursor) -> None:
        self._topic(write.topic_id)
        write.found = self._transaction.delete(topic_key(b"o", write.topic_id) + write.name.encode())

    # Consumers

    def _settled(self, topic: StoredTopic) -> AckSet:
        """Returns the ack set of a topic, to be changed."""
        if topic.settled is None:
            topic.settled = consumer_rows.load_settled(self._transaction, topic.id)
        self._settling.add(topic)
        return topic.settled

    def _settle(self, write: Acknowledge) -> None:
        topic = self._topic(write.topic_id)
        if any(first < 1 or last > topic.last for first, last in write.ranges) or write.handed > topic.last:
            raise StoreError(f"topic {topic.name!r} has no ids above {topic.last} yet")
        settled = self._settled(topic)
        self.touched.add(topic)
        settled.handed = max(settled.handed, write.handed)
        settled.count(write.deliveries)
        for first, last in write.ranges:
            settled.add(first, last)

    # Stages

    def _stage(self, write: Stage) -> None:
        self._topic(write.topic_id)
        if self._stages.find(self._transaction, write.stage) is None and self._elsewhere(b"G" + write.stage):
            raise StageError(ANOTHER_KIND, write.stage)
        self._stages.put(self._transaction, write, self._now)

    def _commit(self, write: CommitStages) -> None:
        known = self._stages.known(self._transaction, write.commit)
        write.repeated, write.grown = False, {}
        if known is not None:
            (write.published, write.names), write.repeated = known, True
            return
        if self._elsewhere(b"c" + write.commit):
            raise WrongEnvironment("it was committed there")
        found = [self._stages.find(self._transaction, stage) for stage in write.stages]
        here = [one for one in found if one is not None]
        if not here:
            raise WrongEnvironment("there are no such stages")
        if len(here) < len(found):
            missing = [stage for stage, one in zip(write.stages, found, strict=True) if one is None]
            for stage in missing:
                if self._elsewhere(b"G" + stage):
                    raise StageError(APART, stage)
            raise StageError("there is no stage {} with the others of this commit", missing[0])
        if len(set(write.stages)) < len(write.stages):
            raise StageError("the commit names a stage twice")
        for stage in write.stages:
            if self._elsewhere(b"G" + stage):
                raise StageError("the stage {} is there twice, in topics of two kinds: abort it, once for each", stage)
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
            self._allow(topic, topic.last + count)
        before = {id: self.topics[id].bytes for id in counts}
        write.published = [
            self._publish(self.topics[topic_id], stage) for stage, (_, topic_id) in zip(write.stages, here, strict=True)
        ]
        write.names = {id: self.topics[id].name for id in counts}
        write.grown = {id: (count, self.topics[id].bytes - before[id]) for id, count in counts.items()}
        self._stages.note(self._transaction, write, self._now)

    def _publish(self, topic: StoredTopic, stage: bytes) -> tuple[bytes, int, int, int]:
        """Publishes a stage: a header for each piece, which stays where it is."""
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

    # What is not kept

    def _trim(self, write: Trim) -> None:
        topic = self._topic(write.topic_id)
        topic.first = max(topic.first, min(write.first, topic.last + 1))
        self.touched.add(topic)

    def _retain_all(self, write: ApplyRetention) -> None:
        """Marks the topics that may have something to drop, to be looked at when the transaction ends."""
        for topic in self.topics.values():
            if topic.settings.get("max_age") or self.behind or self.few is not None:
                self.touched.add(topic)
                if self.few is not None and topic.delivery == "round_robin" and topic.settled is None:
                    topic.settled = consumer_rows.load_settled(self._transaction, topic.id)

    def _retain(self, topic: StoredTopic, left: int) -> int:
        """Drops what a topic does not keep, at most `left` blocks; how many are left."""
        settings = topic.settings
        first = topic.first
        bounded = drops_oldest(topic.delivery, settings)
        if bounded and settings.get("max_messages"):
            first = max(first, topic.last - int(settings["max_messages"]) + 1)
        most = (settings.get("max_bytes") or 0) if bounded else 0
        oldest = self._now - int(settings["max_age"] * 1e6) if settings.get("max_age") else 0
        below = first
        if topic.delivery == "round_robin" and topic.settled is not None:
            below = max(below, topic.settled.watermark + 1)
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
        while len(topic.jumped) > MAX_JUMPS and topic.jumped[0][1] < first:
            self._transaction.delete(TOPIC_NUMBER.pack(b"j", topic.id, topic.jumped.pop(0)[0]))
        known = topic.settled
        if topic.delivery == "round_robin" and topic.first > 1 and (known is None or known.watermark < topic.first - 1):
            settled = self._settled(topic)
            settled.add(settled.watermark + 1, topic.first - 1)
        return left

    def _fitting(self, topic: StoredTopic, block: Oldest, excess: int) -> int:
        """The first id that is kept where the oldest block has some bytes too many; the newest one always is."""
        if excess >= block.size:
            return min(block.last + 1, topic.last)
        key = block_key(topic.id, block.first)
        try:
            records = block_at(self._transaction, key, self._transaction.get(key))[-1]
            return min(block.first + reaching(records, excess), topic.last)
        except (DamagedError, ValueError):
            return block.first  # where its records end is not known: it goes as a whole

    def _oldest(self, topic: StoredTopic) -> Oldest | None:
        """The oldest block of a topic; `None` if it has none."""
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
                # It goes when the next one does.
                last = topic.last
                size = max(len(cursor.value()) - BLOCK.size, 0)
                if cursor.next() and cursor.key()[:5] == prefix:
                    last = TOPIC_NUMBER.unpack(cursor.key())[2] - 1
                topic.oldest = Oldest(first, last, size, self._now)
        cursor.close()
        return topic.oldest

    def _drop(self, topic: StoredTopic, block: Oldest) -> None:
        """Drops the oldest block."""
        key = block_key(topic.id, block.first)
        self._drop_block(key, self._transaction.get(key))
        topic.bytes = max(topic.bytes - block.size, 0)
        topic.oldest = None

    def _drop_block(self, key: bytes, value: Any) -> None:
        """Deletes a block, and the piece that it stands for."""
        if value is not None and len(value) > BLOCK.size and value[0] == STAGED:
            self._transaction.delete(bytes(value[BLOCK.size :]))
        self._transaction.delete(key)

    def _sweep(self, left: int) -> None:
        """Deletes rows of deleted topics, at most `left`."""
        for id in self._deleted - self._swept:
            for kind in OF_TOPICS:
                keys = [key for key, _ in islice(rows(self._transaction, topic_key(kind, id)), left)]
                for key in keys:
                    if kind == b"b":
                        self._drop_block(key, self._transaction.get(key))
                    else:
                        self._transaction.delete(key)
                left -= len(keys)
                if left <= 0:
                    return
            self._swept.add(id)

    def _clean(self, write: ExpireState) -> None:
        self._cleaned = self._producers.drop_silent(self._transaction, self._now, SWEEP_LIMIT, self._cleaned)
        more = self._stages.drop_old(self._transaction, self._now, SWEEP_LIMIT) >= SWEEP_LIMIT
        self.unclean = more or bool(self._cleaned)

    def _quarantine(self, write: Quarantine) -> None:
        key = TOPIC_NUMBER.pack(b"q", write.topic_id, write.first)
        self._transaction.put(key, sealed(key, NUMBER.pack(write.last)))
