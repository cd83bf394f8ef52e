"""The store in memory: for `--memory`, and for the transient topics of a store on disk."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from omq._core import blocks
from omq.store.ack_set import AckSet
from omq.store.block_builder import BlockBuilder, Records, count_reaching, pieces
from omq.store.clock import uptime, wall
from omq.store.dead_letters import dead_letter, requeued
from omq.store.errors import (
    DamagedError,
    Gone,
    NotAllowed,
    StageError,
    StagesFull,
    StoreClosed,
    StoreError,
    TopicFull,
    UnknownGroup,
    UnknownTopic,
    without_traceback,
)
from omq.store.interface import (
    MAX_ANSWERS,
    MAX_MEMORY_BYTES,
    MAX_SEQUENCE,
    PRODUCER_TIMEOUT_US,
    AbortStage,
    Acknowledge,
    AlterTopic,
    Append,
    Appended,
    CommitStages,
    DeleteCursor,
    DeleteGroup,
    DeleteTopic,
    Delivery,
    MakeTopic,
    MoveToDeadLetter,
    Notify,
    Persistence,
    Reader,
    Requeue,
    SetCursor,
    SetGroup,
    Stage,
    Stats,
    TopicState,
    Trim,
    Write,
    check_reader_name,
    drops_oldest,
)
from omq.store.internal import MoveAck, MoveAppend, MoveTrim
from omq.unpatched import threading

MAX_PRODUCERS: Final = 65_536  # per topic
MAX_COMMITS: Final = 65_536  # names that are kept, to recognize repeated commits
COMPACTION_BLOCKS: Final = 256  # dropped blocks after which a topic's lists are rebuilt


class Block:
    """A block of records."""

    __slots__ = ("count", "first", "records", "stored_at", "timestamp")

    def __init__(self, first: int, count: int, records: Records) -> None:
        self.first = first
        self.count = count
        self.timestamp = wall()
        self.stored_at = uptime()
        self.records = records


class MemoryProducer:
    """The state of a producer in a topic.

    Attributes:
        floor: The producer has confirmed the answers of all lower sequences.
        answers: First id, count and timestamp of each append, by sequence.
        seen: The uptime of its last append, in microseconds.
    """

    __slots__ = ("answers", "floor", "seen")

    def __init__(self) -> None:
        self.floor = 0
        self.seen = 0
        self.answers: dict[int, tuple[int, int, int]] = {}

    def forget(self, first_outstanding: int) -> None:
        """Drops the answers of sequences below `first_outstanding`, and the oldest ones above `MAX_ANSWERS`."""
        if first_outstanding > self.floor:
            self.floor = first_outstanding
            for sequence in [sequence for sequence in self.answers if sequence < first_outstanding]:
                del self.answers[sequence]
        while len(self.answers) > MAX_ANSWERS:
            del self.answers[next(iter(self.answers))]


class MemoryTopic:
    """A topic in memory. Changes require the lock of `MemoryTopics`."""

    def __init__(
        self,
        id: int,
        name: str,
        delivery: Delivery,
        persistence: Persistence,
        settings: dict[str, Any],
        last: int,
        owner: str = "",
    ) -> None:
        self.id = id
        self.name = name
        self.delivery: Delivery = delivery
        self.persistence: Persistence = persistence
        self.settings = settings
        self.owner = owner
        self.first = last + 1
        self.last = last
        self.bytes = 0
        self.firsts: list[int] = []  # first ids of `blocks`, dropped ones included
        self.blocks: list[Block | None] = []
        self.dropped = 0  # dropped blocks at the head of both lists
        self.open: BlockBuilder | None = None
        self.producers: dict[bytes, MemoryProducer] = {}  # in the order of their last append
        self.cursors: dict[str, int] = {}
        self.staged = 0  # bytes in stages
        self.ack_set = AckSet(last, last)
        self.groups: dict[str, AckSet] = {}

    def producer(self, name: bytes) -> MemoryProducer:
        """Returns the state of a producer that appends now. Drops idle producers, and the oldest of too many."""
        now = uptime()
        producer = self.producers.pop(name, None) or MemoryProducer()
        producer.seen = now
        self.producers[name] = producer
        while (
            len(self.producers) > MAX_PRODUCERS or next(iter(self.producers.values())).seen < now - PRODUCER_TIMEOUT_US
        ):
            del self.producers[next(iter(self.producers))]
        return producer

    def acks_of(self, group: str) -> AckSet:
        """Returns the ack set of a group; of the work queue with an empty name. Raises `UnknownGroup`."""
        if not group:
            return self.ack_set
        check_reader_name(group, "group")
        acks = self.groups.get(group)
        if acks is None:
            raise UnknownGroup(self.id, group)
        return acks

    def ack_floors(self) -> dict[str, int]:
        """Returns the ack floors of its consumer groups by name."""
        return {name: acks.floor for name, acks in self.groups.items()}

    def state(self) -> TopicState:
        return TopicState(
            self.id,
            self.name,
            self.delivery,
            self.persistence,
            dict(self.settings),
            self.first,
            self.last,
            self.bytes,
            owner=self.owner,
        )

    def append(self, records: Records, count: int) -> int:
        """Appends records and returns the first id. They can be read after `seal`."""
        first = self.last + 1
        for piece, number in pieces(records, count):
            if self.open is not None and self.open.has_room(piece):
                self.open.add(piece, number)
            else:
                self.seal()
                self.open = BlockBuilder(self.last + 1, piece, number)
            self.last += number
            self.bytes += len(piece)
        return first

    def seal(self) -> None:
        """Closes the open block, so that it can be read."""
        block, self.open = self.open, None
        if block is not None:
            one = block.parts[0]
            records = b"".join(block.parts) if len(block.parts) > 1 or not isinstance(one, bytes) else one
            self.firsts.append(block.first)
            self.blocks.append(Block(block.first, block.count, records))

    def drop_oldest(self) -> None:
        """Drops the oldest block."""
        block = self.blocks[self.dropped]
        assert block is not None
        self.blocks[self.dropped] = None
        self.dropped += 1
        self.bytes -= len(block.records)
        self.first = max(self.first, block.first + block.count)
        if self.dropped >= COMPACTION_BLOCKS and self.dropped * 2 >= len(self.blocks):
            del self.blocks[: self.dropped], self.firsts[: self.dropped]
            self.dropped = 0

    def retain(self, max_memory: int) -> None:
        """Drops the records that the topic's settings do not retain."""
        settings = self.settings
        bounded = drops_oldest(self.delivery, settings)
        if bounded and settings.get("max_messages"):
            self.first = max(self.first, self.last - settings["max_messages"] + 1)
        if self.delivery == "round_robin" and self.ack_set.floor < self.first - 1:
            self.ack_set.add(self.ack_set.floor + 1, self.first - 1)
        most = settings.get("max_bytes") if bounded else None
        oldest = uptime() - int(settings["max_age"] * 1e6) if settings.get("max_age") else 0
        below = self.ack_set.floor + 1 if self.delivery == "round_robin" else 0
        while self.dropped < len(self.blocks):
            block = self.blocks[self.dropped]
            assert block is not None
            if most and self.bytes > most:
                excess = self.bytes - most
                number = block.count if excess >= len(block.records) else count_reaching(block.records, excess)
                self.first = max(self.first, min(block.first + number, self.last))
            too_much = bounded and not most and self.bytes > max_memory and self.dropped < len(self.blocks) - 1
            if not (too_much or block.stored_at < oldest or block.first + block.count <= max(self.first, below)):
                break
            self.drop_oldest()
        if self.delivery == "round_robin":
            self.ack_set.add(self.ack_set.floor + 1, self.first - 1)

    def block_of(self, id: int) -> Block | None:
        """Returns the block that holds an id, or the first one after it."""
        index = max(bisect_right(self.firsts, id) - 1, self.dropped)
        while index < len(self.blocks):
            block = self.blocks[index]
            if block is not None and block.first + block.count > id:
                return block
            index += 1
        return None


class MemoryReader:
    """Reads a topic in memory. Unlike on disk, records that are dropped meanwhile are gone."""

    def __init__(self, topic: MemoryTopic, lock: threading.RLock) -> None:
        self._topic = topic
        self._lock = lock
        self.first = topic.first
        self.last = topic.last

    def blocks(self, start: int, stop: int = 0) -> Iterator[tuple[bytes, memoryview]]:
        stop = min(stop or self.last + 1, self.last + 1)
        while start < stop:
            with self._lock:
                if start < self._topic.first:
                    raise Gone(f"id {start} is not kept; the oldest is {self._topic.first}", self._topic.first)
                block = self._topic.block_of(start)
            if block is None or block.first >= stop:
                return
            begin = max(start - block.first, 0)
            end = min(block.count, stop - block.first)
            records = memoryview(block.records)
            if begin or end < block.count:
                records = blocks.slice(records, begin, end)
            header = blocks.header(block.first + begin, end - begin, block.timestamp, len(records))
            yield header, records
            start = block.first + end

    def first_at(self, timestamp: int) -> tuple[int, int]:
        with self._lock:
            some = self._topic.blocks
            index = bisect_left(some, timestamp, self._topic.dropped, key=attrgetter("timestamp"))
            block = some[index] if index < len(some) else None
        if block is None or block.first > self.last:
            return self.last + 1, 0
        return max(block.first, self.first), block.timestamp


class MemoryTopics:
    """The engine of topics in memory. Public methods acquire the lock; `topic` and `record` need it held.

    Args:
        max_memory: The bytes that a topic without `max_bytes` keeps.
        may_assign: Called with a topic id and an id of a record; returns whether ids up to that are reserved. It does
            not wait.
        request_ids: Called with the same to reserve ids; `resume` follows once they are reserved.
    """

    def __init__(
        self,
        max_memory: int,
        may_assign: Callable[[int, int], bool] = lambda topic_id, last: True,
        request_ids: Callable[[int, int], None] = lambda topic_id, last: None,
    ) -> None:
        self.lock = threading.RLock()
        self.topics: dict[int, MemoryTopic] = {}
        self.stats = Stats()
        self._max_memory = max_memory
        self._may_assign = may_assign
        self._request_ids = request_ids
        self._last_generation = 0  # of a group; the time makes it higher than those of an earlier process
        self._waiting: list[Write] = []  # writes that wait for reserved ids, and those submitted after them
        #: Uptime of its creation, topic id, and records with their count by sequence, of each stage.
        self._stages: dict[bytes, tuple[int, int, dict[int, tuple[Records, int]]]] = {}
        #: `CommitStages.published` and `names` of each commit.
        self._commits: dict[bytes, tuple[list[tuple[bytes, int, int, int]], dict[int, str]]] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            Append: self._append,
            MoveAppend: self._append,
            MoveAck: self._acknowledge,
            AlterTopic: self._alter,
            DeleteTopic: self._delete,
            Acknowledge: self._acknowledge,
            MoveToDeadLetter: self._move,
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
        }

    def apply(self, writes: Iterable[Write]) -> tuple[list[Write], dict[int, int]]:
        """Applies writes; returns the finished ones, and the last ids of the topics that have grown.

        It does not wait for ids to be reserved, as the broker's event loop and the writer that reserves them call it.
        The writes that need these ids, and all after them, are applied by `resume`.
        """
        with self.lock:
            if self._waiting:
                self._waiting += writes
                return [], {}
            return self._apply(list(writes), None)

    def resume(self, error: BaseException | None) -> tuple[list[Write], dict[int, int]]:
        """Applies the writes that waited for ids. With an `error`, those that still have none fail with it."""
        with self.lock:
            waiting, self._waiting = self._waiting, []
            return self._apply(waiting, error)

    def restart(self, last: int) -> None:
        """Drops all that the topics have, and all stages and commits; continues with ids above `last`."""
        with self.lock:
            self._stages.clear()
            self._commits.clear()
            for id, old in self.topics.items():
                highest = max(old.last, last)
                self.topics[id] = MemoryTopic(
                    id, old.name, old.delivery, old.persistence, old.settings, highest, old.owner
                )

    def _apply(self, writes: list[Write], refusal: BaseException | None) -> tuple[list[Write], dict[int, int]]:
        before: dict[int, int] = {}
        made: set[int] = set()
        for index, write in enumerate(writes):
            for id, count in self._grows(write):
                topic = self.topics.get(id)
                if topic is None:
                    continue
                before.setdefault(id, topic.last)
                if count and not self._may_assign(id, topic.last + count):
                    if refusal is not None:
                        write.error = refusal
                        break
                    self._waiting = writes[index:]
                    writes = writes[:index]
                    self._request_ids(id, topic.last + count)
                    break
            if self._waiting:
                break
            if write.error is None:
                try:
                    self._handlers[type(write)](write)
                except StoreError as error:
                    write.error = without_traceback(error)
            write.done = True
            if type(write) is MakeTopic:
                made.add(write.topic_id)
        grown: dict[int, int] = {}
        for id in made.union(before):
            topic = self.topics.get(id)
            if topic is not None:
                topic.seal()
                topic.retain(self._max_memory)
                if topic.last != before.get(id):
                    grown[id] = topic.last
        self.stats.commits += 1
        return writes, grown

    def _grows(self, write: Write) -> Iterable[tuple[int, int]]:
        """Returns the ids of the topics that a write changes, and the maximum number of ids that it needs in each."""
        if isinstance(write, Append):
            return ((write.topic_id, write.count),)
        if isinstance(write, MoveToDeadLetter):
            return (write.topic_id, 0), (write.target_id, 1)
        if isinstance(write, Requeue):
            return (write.topic_id, 0), *Counter(target_id for _, target_id in write.moves).items()
        if isinstance(write, CommitStages):
            counts: dict[int, int] = {}
            for stage in write.stages:
                if stage in self._stages:
                    _, id, kept = self._stages[stage]
                    counts[id] = counts.get(id, 0) + sum(count for _, count in kept.values())
            return counts.items()
        return ((getattr(write, "topic_id", 0), 0),)

    def has_stage(self, stage: bytes) -> bool:
        """Returns whether there is a stage of this name."""
        with self.lock:
            return stage in self._stages

    def has_commit(self, commit: bytes) -> bool:
        """Returns whether there was a commit of this name."""
        with self.lock:
            return commit in self._commits

    def topic(self, id: int) -> MemoryTopic:
        """Returns a topic. Raises `UnknownTopic`."""
        try:
            return self.topics[id]
        except KeyError:
            raise UnknownTopic(f"there is no topic with the id {id}") from None

    def state(self, id: int) -> TopicState:
        """Returns the state of a topic."""
        with self.lock:
            topic = self.topic(id)
            if topic.settings.get("max_age"):
                topic.retain(self._max_memory)
            return topic.state()

    def age(self, topic_id: int, id: int) -> float:
        """Returns the age of a message; see `Store.age`."""
        with self.lock:
            block = self.topic(topic_id).block_of(id)
            return 0.0 if block is None else (uptime() - block.stored_at) / 1e6

    def stats_now(self) -> Stats:
        """Returns the statistics so far."""
        with self.lock:
            return replace(self.stats, used_bytes=sum(topic.bytes for topic in self.topics.values()))

    def all_cursors(self) -> dict[int, dict[str, int]]:
        """Returns the cursors of each topic that has any, by topic id."""
        with self.lock:
            return {id: dict(topic.cursors) for id, topic in self.topics.items() if topic.cursors}

    def ack_floors(self, topic_id: int) -> dict[str, int]:
        """Returns the ack floors of the consumer groups of a topic by name."""
        with self.lock:
            return self.topic(topic_id).ack_floors()

    def all_ack_floors(self) -> dict[int, dict[str, int]]:
        """Returns the ack floors of the consumer groups of each topic that has any, by topic id."""
        with self.lock:
            return {id: topic.ack_floors() for id, topic in self.topics.items() if topic.groups}

    @contextmanager
    def read(self, id: int) -> Iterator[Reader]:
        """Opens a reader of a topic."""
        with self.lock:
            topic = self.topic(id)
            if topic.settings.get("max_age"):
                topic.retain(self._max_memory)
            reader = MemoryReader(topic, self.lock)
        yield reader

    def _grow(self, topic: MemoryTopic, records: Records, count: int) -> int:
        """Appends and counts records; returns the first id."""
        self.stats.appended += count
        self.stats.appended_bytes += len(records)
        return topic.append(records, count)

    def _append(self, write: Append) -> None:
        topic = self.topic(write.topic_id)
        write.timestamp = wall()
        if not (write.producer and write.sequence):
            write.first = self._grow(topic, write.records, write.count)
            return
        producer = topic.producer(write.producer)
        answer = producer.answers.get(write.sequence)
        if answer is not None or write.sequence < producer.floor:
            write.first, _, write.timestamp = answer or (0, 0, 0)
            write.duplicate = True
            self.stats.duplicates += 1
        elif write.repeats_only:
            raise TopicFull(topic.id, write.count, len(write.records))
        else:
            write.first = self._grow(topic, write.records, write.count)
            producer.answers[write.sequence] = write.first, write.count, write.timestamp
        producer.forget(write.first_outstanding)

    def _alter(self, write: AlterTopic) -> None:
        self.topic(write.topic_id).settings = write.settings
        write.stored = True

    def _delete(self, write: DeleteTopic) -> None:
        self.topic(write.topic_id)
        for stage in [stage for stage, (_, id, _) in self._stages.items() if id == write.topic_id]:
            self._drop_stage(stage)
        del self.topics[write.topic_id]

    def _acknowledge(self, write: Acknowledge) -> None:
        topic = self.topic(write.topic_id)
        if any(first < 1 or last > topic.last for first, last in write.ranges) or write.last_delivered > topic.last:
            raise StoreError(f"topic {topic.name!r} has no ids above {topic.last} yet")
        acks = topic.acks_of(write.group)
        if acks.is_of(write.generation):
            dropped = topic.first - 1 if write.group else 0
            write.floor = acks.record(write.ranges, write.last_delivered, write.deliveries, dropped)

    def _move(self, write: MoveToDeadLetter) -> None:
        topic, target = self.topic(write.topic_id), self.topic(write.target_id)
        acks = topic.acks_of(write.group)
        record = dead_letter(self.record(topic, write.id), topic.name, write, wall())
        write.first, write.size = self._grow(target, record, 1), len(record)
        if acks.is_of(write.generation):
            dropped = topic.first - 1 if write.group else 0
            write.floor = acks.record([(write.id, write.id)], 0, {}, dropped)

    def _requeue(self, write: Requeue) -> None:
        topic = self.topic(write.topic_id)
        moves = [(self.topic(target_id), requeued(self.record(topic, id))) for id, target_id in write.moves]
        for target, record in moves:
            self._grow(target, record, 1)
            write.record_growth(target.id, len(record))
        write.moved = len(moves)
        topic.first = write.moves[-1][0] + 1

    def record(self, topic: MemoryTopic, id: int) -> bytes:
        """Returns one record. Raises `Gone` if it was dropped."""
        topic.seal()
        block = topic.block_of(id)
        if block is None or block.first > id or id < topic.first:
            raise Gone(f"id {id} is not kept", topic.first)
        return bytes(blocks.slice(block.records, id - block.first, id - block.first + 1))

    def _set_cursor(self, write: SetCursor) -> None:
        topic = self.topic(write.topic_id)
        check_reader_name(write.name, "cursor")
        topic.cursors[write.name] = write.id

    def _delete_cursor(self, write: DeleteCursor) -> None:
        check_reader_name(write.name, "cursor")
        write.found = self.topic(write.topic_id).cursors.pop(write.name, None) is not None

    def _set_group(self, write: SetGroup) -> None:
        topic = self.topic(write.topic_id)
        if write.position > topic.last:
            raise StoreError(f"topic {topic.name!r} has no id {write.position} yet")
        check_reader_name(write.name, "group")
        self._last_generation = write.generation = max(self._last_generation + 1, wall())
        topic.groups[write.name] = AckSet(write.position, write.position, generation=write.generation)

    def _delete_group(self, write: DeleteGroup) -> None:
        check_reader_name(write.name, "group")
        write.found = self.topic(write.topic_id).groups.pop(write.name, None) is not None

    def _stage(self, write: Stage) -> None:
        topic = self.topic(write.topic_id)
        if write.sequence > MAX_SEQUENCE:
            raise StageError(f"sequence={write.sequence} is above {MAX_SEQUENCE}, the highest in a stage")
        day_ago = uptime() - 86_400_000_000
        for stage in [stage for stage, (made, _, _) in self._stages.items() if made < day_ago]:
            self._drop_stage(stage)
        made, topic_id, kept = self._stages.get(write.stage) or (uptime(), write.topic_id, {})
        if topic_id == write.topic_id and not write.sequence and MAX_SEQUENCE in kept:
            raise StageError("the stage {} has used all sequences", write.stage)
        if topic_id != write.topic_id:
            raise StageError("the stage {} belongs to another topic", write.stage)
        sequence = write.sequence or max(kept, default=0) + 1
        if sequence not in kept:
            most = topic.settings.get("max_bytes") or self._max_memory
            if topic.staged + len(write.records) > most:
                raise StagesFull(f"the stages of topic {topic.name!r} exceed {most} bytes: commit or abort some")
            topic.staged += len(write.records)
            kept[sequence] = write.records, write.count
        self._stages[write.stage] = made, topic_id, kept

    def _drop_stage(self, stage: bytes) -> tuple[int, dict[int, tuple[Records, int]]]:
        """Drops a stage; returns its topic id and its records."""
        _, topic_id, kept = self._stages.pop(stage)
        topic = self.topics.get(topic_id)
        if topic is not None:
            topic.staged -= sum(len(records) for records, _ in kept.values())
        return topic_id, kept

    def _commit(self, write: CommitStages) -> None:
        known = self._commits.get(write.commit)
        if known is not None:
            (write.published, write.names), write.repeated = known, True
            return
        counts: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for stage in write.stages:
            if stage not in self._stages:
                raise StageError("there is no stage {}", stage)
            topic_id = self.topic(self._stages[stage][1]).id
            if write.may is not None and not write.may(topic_id):
                raise NotAllowed(topic_id)
            kept = self._stages[stage][2]
            counts[topic_id] = counts.get(topic_id, 0) + sum(count for _, count in kept.values())
            sizes[topic_id] = sizes.get(topic_id, 0) + sum(len(records) for records, _ in kept.values())
        for topic_id, count in counts.items():
            if write.has_room is not None and not write.has_room(topic_id, count, sizes[topic_id]):
                raise TopicFull(topic_id, count, sizes[topic_id])
        if len(set(write.stages)) < len(write.stages):
            raise StageError("the commit names a stage twice")
        for stage in write.stages:
            topic_id, kept = self._drop_stage(stage)
            topic = self.topic(topic_id)
            first, before = topic.last + 1, topic.bytes
            for _, (records, count) in sorted(kept.items()):
                self._grow(topic, records, count)
            total = topic.last + 1 - first
            write.published.append((stage, topic_id, first, total))
            write.names[topic_id] = topic.name
            grown, size = write.grown.get(topic_id, (0, 0))
            write.grown[topic_id] = grown + total, size + topic.bytes - before
        if write.published:
            self._commits[write.commit] = write.published, write.names
            if len(self._commits) > MAX_COMMITS:
                del self._commits[next(iter(self._commits))]

    def _abort(self, write: AbortStage) -> None:
        found = [name for name in self._stages if name.startswith(write.stage)] if write.prefix else [write.stage]
        for name in found:
            if name in self._stages:
                self._drop_stage(name)

    def _trim(self, write: Trim) -> None:
        topic = self.topic(write.topic_id)
        topic.seal()
        before = topic.state()
        topic.first = max(topic.first, min(write.first, topic.last + 1))
        write.dropped = before.messages(0) - before.messages(topic.first - 1)


class MemoryStore:
    """A store in memory; see `Store`. `submit` calls `notify` and `appended`.

    Args:
        notify: Called with finished writes.
        appended: Called with the last ids of the topics that have grown.
        max_memory: The bytes that a topic without `max_bytes` keeps.
    """

    def __init__(
        self,
        *,
        notify: Notify,
        appended: Appended = lambda grown: None,
        max_memory: int = MAX_MEMORY_BYTES,
    ) -> None:
        self.id = os.urandom(16).hex()
        self.findings: list[str] = []
        self.refused: dict[str, DamagedError] = {}
        self._notify = notify
        self._appended = appended
        self._engine = MemoryTopics(max_memory)
        self._engine._handlers |= {MakeTopic: self._make, DeleteTopic: self._delete}
        self._ids: dict[str, int] = {}  # of the topics by name
        self._next_id = 1
        self._closed = False

    @property
    def broken(self) -> BaseException | None:
        return None

    @property
    def full(self) -> bool:
        return False

    def submit(self, write: Write) -> None:
        self.submit_many((write,))

    def submit_many(self, writes: Iterable[Write]) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        some = list(writes)
        _, grown = self._engine.apply(some)
        self._notify(some)
        if grown:
            self._appended(grown)

    def write_at_once(self, writes: list[Write], *, allow_wal: bool = False) -> bool:
        self.submit_many(writes)
        return True

    def catch_up(self) -> None:
        pass  # there is no write-ahead log

    def _make(self, write: MakeTopic) -> None:
        if (id := self._ids.get(write.name)) is not None:
            write.topic_id, write.found = id, True
            return
        if write.persistence == "strong":
            raise StoreError("a store in memory has no strong topics")
        write.topic_id, self._next_id = self._next_id, self._next_id + 1
        self._ids[write.name] = write.topic_id
        self._engine.topics[write.topic_id] = MemoryTopic(
            write.topic_id, write.name, write.delivery, write.persistence, dict(write.settings), 0, write.owner
        )

    def _delete(self, write: DeleteTopic) -> None:
        name = self._engine.topic(write.topic_id).name
        self._engine._delete(write)
        del self._ids[name]

    def topics(self) -> list[TopicState]:
        with self._engine.lock:
            return [self._engine.state(id) for id in self._engine.topics]

    def topic(self, topic_id: int) -> TopicState:
        return self._engine.state(topic_id)

    def read(self, topic_id: int) -> AbstractContextManager[Reader]:
        return self._engine.read(topic_id)

    def cursors(self, topic_id: int) -> dict[str, int]:
        with self._engine.lock:
            return dict(self._engine.topic(topic_id).cursors)

    def all_cursors(self) -> dict[int, dict[str, int]]:
        return self._engine.all_cursors()

    def ack_set(self, topic_id: int, group: str = "") -> AckSet:
        with self._engine.lock:
            return self._engine.topic(topic_id).acks_of(group).copy()

    def ack_floors(self, topic_id: int) -> dict[str, int]:
        return self._engine.ack_floors(topic_id)

    def all_ack_floors(self) -> dict[int, dict[str, int]]:
        return self._engine.all_ack_floors()

    def age(self, topic_id: int, id: int) -> float:
        return self._engine.age(topic_id, id)

    def stats(self) -> Stats:
        return self._engine.stats_now()

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
