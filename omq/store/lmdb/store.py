"""The store on disk: `DIR/strong` and `DIR/weak` in LMDB, transient topics in memory."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Literal

import lmdb

from omq.store.ack_set import AckSet
from omq.store.clock import wall
from omq.store.dead_letters import dead_letter, requeued
from omq.store.errors import DamagedError, StageError, StoreClosed, StoreError, UnknownTopic, without_traceback
from omq.store.interface import (
    MAX_MEMORY_BYTES,
    UNCLEAN_SHUTDOWN,
    AbortStage,
    Acknowledge,
    AlterTopic,
    Append,
    Appended,
    CommitStages,
    DeleteCursor,
    DeleteGroup,
    DeleteTopic,
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
)
from omq.store.internal import (
    ApplyRetention,
    ExpireState,
    MoveAck,
    MoveAppend,
    MoveTrim,
    PurgeRows,
    PurgeTopic,
    Quarantine,
    ReserveIds,
    ReserveTransientIds,
    SkipIds,
    WrongEnvironment,
)
from omq.store.lmdb import consumer_rows, opening
from omq.store.lmdb.applier import ANOTHER_KIND, Applier
from omq.store.lmdb.catalog import ENGINES, RESERVED_IDS, Catalog, Engine, StoredTopic
from omq.store.lmdb.data_file import DATA_FILE, checksum
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.flusher import Flusher
from omq.store.lmdb.layout import id_ranges
from omq.store.lmdb.reader import LmdbReader, find_record, save_damaged_block, stored_at
from omq.store.lmdb.store_directory import StoreDirectory
from omq.store.lmdb.wal import WriteAheadLog
from omq.store.lmdb.writer import Writer
from omq.store.memory import MemoryTopic, MemoryTopics
from omq.unpatched import threading

log = logging.getLogger("omq.store")

#: The producer ids with which a topic moves records to another engine.
DEAD_LETTERS: Final = b"\0dead letters of "
REQUEUED: Final = b"\0requeued from "
#: Writes that writers return to the caller without further steps.
RETURNED_UNCHANGED: Final = frozenset(
    {Append, Acknowledge, SetCursor, DeleteCursor, SetGroup, DeleteGroup, Stage, Trim}
)
#: Writes that begin in the strong environment. A tuple, since `isinstance` with `A | B` makes the union at each call.
STRONG_FIRST: Final = (MakeTopic, AlterTopic, DeleteTopic, CommitStages, AbortStage)
#: Writes that move records to other topics.
MOVES: Final = (MoveToDeadLetter, Requeue)
#: Writes that need only one engine.
WRITABLE_AT_ONCE: Final = frozenset({Append, Acknowledge})
INTERNAL: Final = (ReserveIds, SkipIds, ApplyRetention, ExpireState, Quarantine, PurgeTopic, PurgeRows)


class LmdbStore:
    """A store in a directory. Implements `Store`.

    Args:
        directory: The directory; created if it is missing.
        notify: Called with finished writes.
        appended: Called with the last ids of the topics that have grown.
        flush_interval: The seconds between two syncs of weak and async topics.
        max_memory: The bytes that a transient topic keeps if it has no setting.
        kind: The program of the store, such as `broker`; empty: any.

    Raises:
        StoreLocked: Another process, or another store of this process, has it open.
        StoreError: The directory belongs to another program.
        DamagedError: The files are damaged. The text explains the damage and what to do.
    """

    id: str
    findings: list[str]
    refused: dict[str, DamagedError]

    # What a replica has instead.
    _cluster_id: str | None = None
    _cluster = ""
    _engine_of_persistence: Mapping[Persistence, Engine] = ENGINES
    _strong_writer: type[Writer] = Writer
    _changed = opening.CHANGED
    _flushed: Literal["strong", "weak"] = "weak"  # the environment that does not sync each commit

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        notify: Notify,
        appended: Appended = lambda grown: None,
        flush_interval: float = 1.0,
        max_memory: int = MAX_MEMORY_BYTES,
        kind: str = "",
    ) -> None:
        self.findings = []
        self.refused = {}
        self._notify = notify
        self._appended = appended
        self._broken: BaseException | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._submitting = threading.Lock()
        self._reserving: dict[int, int] = {}  # the highest ids that were requested, by topic
        self._unpurged: set[int] = set()  # deleted topics whose rows could not be deleted
        self._directory = StoreDirectory(directory, kind, cluster_id=self._cluster_id, cluster=self._cluster)
        self._clock = self._directory.clock
        self.id = self._directory.id
        try:
            self._open(flush_interval, max_memory)
        except BaseException:
            self._directory.release()
            raise

    # Opening

    def _open(self, flush_interval: float, max_memory: int) -> None:
        session = self._directory
        strong, weak = session.directory / "strong", session.directory / "weak"
        if not session.clean_shutdown:
            self.findings.append(UNCLEAN_SHUTDOWN)
        self._flusher = Flusher(session.directory / self._flushed, flush_interval, self._tick, self._fail)
        left = opening.examine(session, self._flusher, strong, weak)
        lost, older = left.lost, left.older
        self.findings += left.findings
        self._strong = Environment(strong, sync=self._flushed != "strong")
        try:
            self._weak = Environment(weak, sync=self._flushed != "weak")
        except BaseException:
            self._strong.close()
            raise
        self._wal = WriteAheadLog(weak, self.id)
        try:
            self._catalog = Catalog(self._engine_of_persistence)
            strong_applier = self._strong_applier()
            weak_applier = Applier(None, self._reserve, self._clock, lambda key: self._has(key, self._strong))
            self._load(strong_applier, weak_applier)
            if left.missing and weak_applier.topics:
                self.findings.append(f"{weak}: it is missing: weak and async topics start over")
            tails: list[StoreError] = []
            if not session.clean_shutdown:
                tails += opening.check_tails(self._strong, strong_applier.topics.values())
                tails += opening.check_tails(self._weak, weak_applier.topics.values())
            self._report_earlier_damage()
            older = older or opening.is_behind(session, self._catalog, self._usable_topics())
            if older:
                self.findings.append(f"{strong}: {self._changed}")
            self._replay(weak_applier.topics, lost)
            self._session_saved = opening.save_session(self._directory, self._catalog, clean=False)
        except BaseException:
            self._wal.close()
            self._weak.close()
            self._strong.close()
            raise
        self._writers: dict[str, Writer] = {
            "strong": self._writer("strong", self._strong, strong_applier),
            "weak": self._writer("weak", self._weak, weak_applier),
        }
        self._memory = MemoryTopics(max_memory, self._may_give, self._reserve_transient)
        self._engines: dict[int, Writer | MemoryTopics] = {}
        for topic in self._usable_topics():
            self._open_topic(topic)
        self.findings += [
            f"topic {self._catalog.topics[id].name!r}: the cursor {name!r} is damaged: it is refused until a "
            "subscription resets it"
            for id, names in sorted(self.all_cursors().items())
            for name, position in names.items()
            if position < 0
        ]
        # The first sync has to come before the first write: until then no pin holds the pages of the last sync.
        flushed = self._writers[self._flushed]
        self._flusher.start(flushed.environment, flushed.latency, self.catch_up)
        for writer in self._writers.values():
            writer.start()
        for error in tails:
            self.findings.append(str(error))
            if isinstance(error, DamagedError):
                self._record_damage(error)
        self._skip_lost_ids(lost, older)
        self._writers["weak"].catch_up()

    def _strong_applier(self) -> Applier:
        return Applier(self._catalog, self._reserve, self._clock, lambda key: self._has(key, self._weak))

    def _writer(self, name: str, environment: Environment, applier: Applier) -> Writer:
        make = self._strong_writer if name == "strong" else Writer
        return make(
            f"omq-store-{name}",
            environment,
            applier,
            wal=self._wal if name == "weak" else None,
            notify=self._finished,
            appended=self._appended,
            committed=self._flusher.committed if name == self._flushed else lambda: None,
            failed=self._fail,
            sync=self._flusher.flush if name == self._flushed else None,
        )

    def _load(self, strong: Applier, weak: Applier) -> None:
        """Reads the catalog and the committed state of the topics."""
        with self._strong.read() as reading, self._weak.read() as other:
            self._catalog.load(reading)
            damaged = self._catalog.damaged
            for topic in self._catalog.topics.values():
                applier, transaction = (strong, reading) if topic.engine == "strong" else (weak, other)
                if topic.engine != "memory" and topic.id not in damaged:
                    try:
                        applier.load(transaction, topic)
                        if topic.delivery == "round_robin":
                            consumer_rows.load_ack_set(transaction, topic.id)
                        applier.topics[topic.id] = topic
                    except (DamagedError, struct.error) as error:
                        damaged[topic.id] = DamagedError(f"topic {topic.name!r}: {error}", topic.id)
            for id, why in sorted(damaged.items()):
                self.findings.append(f"{why}; it is refused until the store is restored from a copy")
                if id in self._catalog.topics:
                    self.refused[self._catalog.topics[id].name] = why
            strong.purge_unknown(reading, {*strong.topics, *damaged})
            weak.purge_unknown(other, {*weak.topics, *damaged})

    def _usable_topics(self) -> list[StoredTopic]:
        """Returns the topics that are not damaged."""
        return [topic for id, topic in self._catalog.topics.items() if id not in self._catalog.damaged]

    def _open_topic(self, topic: StoredTopic, last: int = 0) -> None:
        """Adds a topic to its engine, which makes it available."""
        if topic.engine == "memory":
            self._memory.topics[topic.id] = MemoryTopic(
                topic.id, topic.name, topic.delivery, topic.persistence, topic.settings, last, topic.owner
            )
            self._engines[topic.id] = self._memory
        else:
            writer = self._engines[topic.id] = self._writers[topic.engine]
            writer.applier.topics.setdefault(topic.id, topic)

    def _open_new(self, topic_id: int) -> None:
        """Opens a topic that was created, unless a later write of the same commit has deleted it."""
        self._catalog.next = max(self._catalog.next, topic_id + 1)
        topic = self._catalog.topics.get(topic_id)
        if topic is not None:
            self._open_topic(topic)

    def _next_ids(self, lost: bool, older: bool) -> opening.NextIds:
        return opening.next_ids(self._directory, self._catalog, self._usable_topics(), lost=lost, older=older)

    def _skip_lost_ids(self, lost: bool, older: bool) -> None:
        """Skips the ids that may have been assigned and are not in the environment."""
        next_ids = self._next_ids(lost, older)
        skips: list[SkipIds] = []
        for id, last in next_ids.skips.items():
            topic = self._catalog.topics[id]
            if topic.engine == "memory":
                self._open_topic(topic, last)
                continue
            skips.append(SkipIds(id, last, context=threading.Event()))
            self._writers[topic.engine].submit(skips[-1])
        for skip in skips:
            skip.context.wait()
            if skip.error is not None:  # for want of space, for example: ids would be assigned again
                log.critical("the store takes no writes: %s", skip.error)
                self._fail(skip.error)
        if next_ids.reserved or next_ids.next_topic:
            # Without space, the topics' next appends reserve ids.
            with contextlib.suppress(StoreError):
                self._reserve_now(next_ids.reserved, next_ids.next_topic)

    def _replay(self, topics: dict[int, StoredTopic], lost: bool) -> None:
        """Replays the write-ahead log that a crashed process has left."""
        for write in self._wal.replay():
            topic = topics.get(write.topic_id)
            if topic is not None and write.first > topic.last and not lost:
                self._wal.waiting.append(write)
        if not self._wal.waiting:
            self._wal.clear()

    def _report_earlier_damage(self) -> None:
        """Adds the damage that was found earlier to the findings."""
        self._damaged: set[tuple[int, int, int]] = set()
        for environment in (self._strong, self._weak):
            with environment.read() as reading:
                self._damaged.update(id_ranges(reading, b"q"))
        known = [damage for damage in self._damaged if damage[0] in self._catalog.topics]
        quarantine = self._directory.directory / "quarantine"
        for topic_id, first, last in sorted(known):
            name = self._catalog.topics[topic_id].name
            self.findings.append(f"topic {name!r}: ids {first} to {last} are damaged; {quarantine} has copies")

    # Reserved ids

    def _reserve(self, topic: StoredTopic, last: int) -> None:
        """Reserves more ids for a topic. Its writer calls it when few are left."""
        assert topic.reserved is not None
        upto = max(topic.reserved, last) + RESERVED_IDS
        if last > topic.reserved:
            self._reserve_now({topic.id: upto})
        elif self._reserving.get(topic.id, 0) < upto:
            self._reserving[topic.id] = upto
            self._writers["strong"].submit(ReserveIds({topic.id: upto}))

    def _may_give(self, topic_id: int, last: int) -> bool:
        """Returns whether a transient topic may assign ids up to `last`; reserves more if few are left."""
        topic = self._catalog.topics.get(topic_id)
        if topic is None or topic.reserved is None or last + RESERVED_IDS // 2 <= topic.reserved:
            return True
        if last > topic.reserved:
            return False
        self._reserve(topic, last)
        return True

    def _reserve_transient(self, topic_id: int, last: int) -> None:
        """Requests more ids for a transient topic. Only its own writes wait for them."""
        self._writers["strong"].submit(ReserveTransientIds({topic_id: last + RESERVED_IDS}))

    def _reserve_now(self, highest: dict[int, int], next_topic: int = 0) -> None:
        """Reserves ids, and waits until the reservation is durable."""
        durable = threading.Event()
        write = ReserveIds(highest, next_topic, context=durable)
        self._writers["strong"].submit(write)
        durable.wait()
        if write.error is not None:
            raise write.error

    # Writes that engines have finished

    def _finished(self, writes: list[Write]) -> None:
        """Returns finished writes to the caller, except those that `_intercept` handles. Each writer calls it."""
        rest = (
            writes
            if RETURNED_UNCHANGED.issuperset(map(type, writes))
            else [write for write in writes if not self._intercept(write)]
        )
        if rest:
            self._notify(rest)

    def _intercept(self, write: Write) -> bool:
        """Handles internal writes and those that another engine continues; returns whether it has."""
        if isinstance(write, INTERNAL):
            if isinstance(write, ReserveIds) and write.error is None:
                for id, highest in write.highest.items():
                    topic = self._catalog.topics.get(id)
                    if topic is not None:
                        topic.reserved = max(topic.reserved or 0, highest)
            if isinstance(write, Quarantine):
                self._save_damaged_block(write)
            elif isinstance(write, PurgeTopic):
                if write.error is not None and not isinstance(write.error, UnknownTopic):
                    self._unpurged.add(write.topic_id)
            elif isinstance(write, ReserveTransientIds):
                self._return_done(*self._memory.resume(write.error))
            elif write.context is not None:
                write.context.set()
            return True
        if isinstance(write, MoveAppend):
            move: MoveToDeadLetter | Requeue = write.context
            if write.error is not None:
                return self._return_write(move, write.error)
            size = 0 if write.duplicate else len(write.records)
            if isinstance(move, Requeue):
                move.moved = 1
                if size:
                    move.record_growth(write.topic_id, size)
                self._submit_half(move.topic_id, MoveTrim(move.topic_id, move.moves[0][0] + 1, context=move))
            else:
                move.first, move.size = write.first, size
                ack = MoveAck(
                    move.topic_id, [(move.id, move.id)], group=move.group, generation=move.generation, context=move
                )
                self._submit_half(move.topic_id, ack)
            return True
        if isinstance(write, MoveAck):
            write.context.floor = write.floor
        if isinstance(write, MoveAck | MoveTrim):
            return self._return_write(write.context, write.error)
        if isinstance(write, MakeTopic) and write.error is None and not write.found:
            self._open_new(write.topic_id)
        elif isinstance(write, AlterTopic):
            if write.stored:
                write.error = None  # the catalog has the settings; the next write to the topic repeats the retention
            elif write.error is None:
                write.stored = True
                engine = self._engines.get(write.topic_id)
                if engine is not None and engine is not self._writers["strong"]:
                    return self._forward(write, engine)
        elif isinstance(write, DeleteTopic):
            if write.error is not None and threading.current_thread().name.endswith("weak"):
                # The catalog does not have the topic any more: it is deleted, and its rows are purged later.
                self._unpurged.add(write.topic_id)
                write.error = None
            if write.error is None or isinstance(write.error, WrongEnvironment):
                engine = self._engines.pop(write.topic_id, self._writers["weak"])  # a refused topic has no engine
                if write.error is not None:
                    return self._forward(write, engine)
            if write.error is None and self.refused:
                self.refused = {name: why for name, why in self.refused.items() if why.topic_id != write.topic_id}
        elif isinstance(write, AbortStage) and write.prefix and write.error is None and write.places < 2:
            write.places += 1
            return self._forward(write, self._writers["weak"] if write.places == 1 else self._memory)
        elif isinstance(write, CommitStages | AbortStage) and isinstance(write.error, WrongEnvironment):
            # The order of the engines is strong, weak, memory.
            if threading.current_thread().name.endswith("strong"):
                return self._forward(write, self._writers["weak"])
            if self._in_memory(write):
                return self._forward(write, self._memory)
            write.error = None
            if isinstance(write, CommitStages) and write.stages:
                write.error = StageError("there is no stage {}", write.stages[0])
        elif isinstance(write.error, WrongEnvironment):
            write.error = UnknownTopic(str(write.error))
        return False

    def _has(self, key: bytes, *environments: Environment) -> bool:
        """Returns whether the memory engine or one of these environments has a stage or a commit."""
        try:
            for environment in environments:
                with environment.read() as reading:
                    if reading.get(key) is not None:
                        return True
        except lmdb.Error as error:
            raise StoreError(f"LMDB: {error}") from error
        has = self._memory.has_stage if key[:1] == b"G" else self._memory.has_commit
        return has(key[1:])

    def _in_memory(self, write: CommitStages | AbortStage) -> bool:
        if isinstance(write, AbortStage):
            return self._memory.has_stage(write.stage)
        return self._memory.has_commit(write.commit) or any(map(self._memory.has_stage, write.stages))

    def _forward(self, write: Write, engine: Writer | MemoryTopics) -> bool:
        write.error, write.done = None, False
        if isinstance(engine, Writer):
            engine.submit(write)
            return True
        self._return_done(*engine.apply((write,)))
        return True

    def _return_done(self, writes: list[Write], grown: dict[int, int]) -> None:
        """Passes on the results of the memory engine."""
        if writes:
            self._finished(writes)
        if grown:
            self._appended(grown)

    def _return_write(self, write: Write, error: BaseException | None) -> bool:
        write.error, write.done = error and without_traceback(error), True
        self._notify([write])
        return True

    def _fail(self, error: BaseException) -> None:
        """Stops both writers after an environment has failed."""
        with self._lock:
            if self._broken is not None:
                return
            self._broken = error
        for writer in self._writers.values():
            writer.abort(error)

    # Store

    @property
    def broken(self) -> BaseException | None:
        return self._broken

    @property
    def full(self) -> bool:
        return self._writers["weak"].has_pending or any(writer.out_of_space for writer in self._writers.values())

    def submit(self, write: Write) -> None:
        with self._submitting:
            if self._closed:
                raise StoreClosed("the store is closed")
            writer = self._writer_of(write)
            if writer is not None:
                writer.submit(write)
                return
        self._apply_here([write])

    def submit_many(self, writes: Iterable[Write]) -> None:
        here = []
        with self._submitting:
            if self._closed:
                raise StoreClosed("the store is closed")
            for write in writes:
                writer = self._writer_of(write)
                if writer is not None:
                    writer.submit(write)
                else:
                    here.append(write)
        if here:
            self._apply_here(here)

    def write_at_once(self, writes: list[Write], *, allow_wal: bool = False) -> bool:
        writer = self._writers["weak"]
        with self._submitting:
            if self._closed:
                raise StoreClosed("the store is closed")
            for write in writes:
                if type(write) not in WRITABLE_AT_ONCE or self._engines.get(write.topic_id) is not writer:  # type: ignore[attr-defined]
                    return False
            return writer.write_at_once(writes, allow_wal=allow_wal)

    def catch_up(self) -> None:
        self._writers["weak"].catch_up()

    def _writer_of(self, write: Write) -> Writer | None:
        """Returns the writer of a write; `None` for one that `_apply_here` handles."""
        if isinstance(write, STRONG_FIRST):
            return self._writers["strong"]
        engine = self._engines.get(write.topic_id)  # type: ignore[attr-defined]
        if isinstance(write, MOVES) and self._spans_engines(write):
            return None
        return engine if isinstance(engine, Writer) else None

    def _apply_here(self, writes: list[Write]) -> None:
        """Applies writes to transient topics, fails writes to unknown topics, and starts moves between engines."""
        mine: list[Write] = []
        lost: list[Write] = []
        for write in writes:
            topic_id = write.topic_id  # type: ignore[attr-defined]
            engine = self._engines.get(topic_id)
            if engine is None:
                write.error, write.done = UnknownTopic(f"there is no topic with the id {topic_id}"), True
                lost.append(write)
            elif isinstance(write, MOVES) and self._spans_engines(write):
                self._move_between_engines(write)
            else:
                mine.append(write)
                if isinstance(write, Stage) and not self._memory.has_stage(write.stage):
                    try:
                        if self._has(b"G" + write.stage, self._strong, self._weak):
                            write.error = StageError(ANOTHER_KIND, write.stage)
                    except StoreError as error:
                        write.error = without_traceback(error)
        done, grown = self._memory.apply(mine) if mine else ([], {})
        self._return_done(lost + done, grown)

    def _spans_engines(self, write: MoveToDeadLetter | Requeue) -> bool:
        """Returns whether a move has topics in several engines."""
        engine = self._engines.get(write.topic_id)
        targets = [write.target_id] if isinstance(write, MoveToDeadLetter) else [id for _, id in write.moves]
        return any(self._engines.get(id, engine) is not engine for id in targets)

    def _move_between_engines(self, write: MoveToDeadLetter | Requeue) -> None:
        """Starts to move a record to another engine: appends it there exactly once, then removes it from its topic."""
        id, target_id = (write.id, write.target_id) if isinstance(write, MoveToDeadLetter) else write.moves[0]
        try:
            topic = self.topic(write.topic_id)
            record = self._record(write.topic_id, id, write.group if isinstance(write, MoveToDeadLetter) else "")
        except (StoreError, lmdb.Error) as error:
            self._return_write(write, error if isinstance(error, StoreError) else StoreError(f"LMDB: {error}"))
            return
        if isinstance(write, MoveToDeadLetter):
            record, producer = dead_letter(record, topic.name, write, wall()), DEAD_LETTERS
        else:
            record, producer = requeued(record), REQUEUED
        producer += write.topic_id.to_bytes(4, "big")
        if isinstance(write, MoveToDeadLetter) and write.group:
            # Each group may move the same record, and does so again after it was moved back.
            producer += hashlib.blake2b(write.group.encode(), digest_size=16).digest()
            producer += write.generation.to_bytes(8, "big")
        confirmed = min(topic.first, id)  # records that the topic has dropped are never moved again
        self._submit_half(target_id, MoveAppend(target_id, record, 1, producer, id, confirmed, context=write))

    def _record(self, topic_id: int, id: int, group: str) -> bytes:
        """Returns a record; raises `StoreError` if there is no such record, or no such group."""
        engine = self._engines[topic_id]
        if isinstance(engine, MemoryTopics):
            with engine.lock:
                topic = engine.topic(topic_id)
                topic.acks_of(group)
                return engine.record(topic, id)
        with engine.environment.read() as reading:
            if group:
                consumer_rows.check_group(reading, topic_id, group)
            return find_record(reading, topic_id, id, self.topic(topic_id).first)

    def _submit_half(self, topic_id: int, write: Append | Acknowledge | Trim) -> None:
        """Submits one of the two writes of a move between engines."""
        engine = self._engines.get(topic_id)
        if isinstance(engine, Writer):
            engine.submit(write)
            return
        if engine is None:
            write.error = UnknownTopic(f"there is no topic with the id {topic_id}")
            self._return_done([write], {})
        else:
            self._return_done(*engine.apply((write,)))

    def topics(self) -> list[TopicState]:
        found = []
        for id in sorted(self._engines):
            with contextlib.suppress(UnknownTopic):  # deleted meanwhile
                found.append(self.topic(id))
        return found

    def topic(self, topic_id: int) -> TopicState:
        engine = self._engine_of(topic_id)
        if isinstance(engine, MemoryTopics):
            return engine.state(topic_id)
        try:
            return engine.applier.topics[topic_id].state
        except KeyError:
            raise UnknownTopic(f"there is no topic with the id {topic_id}") from None

    def _engine_of(self, topic_id: int) -> Writer | MemoryTopics:
        engine = self._engines.get(topic_id)
        if engine is None:
            raise UnknownTopic(f"there is no topic with the id {topic_id}")
        return engine

    def read(self, topic_id: int) -> AbstractContextManager[Reader]:
        engine = self._engine_of(topic_id)
        if isinstance(engine, MemoryTopics):
            return engine.read(topic_id)
        dense = engine.environment is self._strong
        return LmdbReader(engine.environment, topic_id, dense, self._record_damage)

    def cursors(self, topic_id: int) -> dict[str, int]:
        engine = self._engine_of(topic_id)
        if isinstance(engine, MemoryTopics):
            with engine.lock:
                return dict(engine.topic(topic_id).cursors)
        with engine.environment.read() as reading:
            return consumer_rows.load_cursors(reading, topic_id)

    def all_cursors(self) -> dict[int, dict[str, int]]:
        found = self._memory.all_cursors()
        for writer in self._writers.values():
            with writer.environment.read() as reading:
                found |= consumer_rows.load_all_cursors(reading, writer.applier.topics)
        return found

    def ack_set(self, topic_id: int, group: str = "") -> AckSet:
        engine = self._engine_of(topic_id)
        if isinstance(engine, MemoryTopics):
            with engine.lock:
                return engine.topic(topic_id).acks_of(group).copy()
        with engine.environment.read() as reading:
            return consumer_rows.load_ack_set(reading, topic_id, group)

    def ack_floors(self, topic_id: int) -> dict[str, int]:
        engine = self._engine_of(topic_id)
        if isinstance(engine, MemoryTopics):
            return engine.ack_floors(topic_id)
        with engine.environment.read() as reading:
            return consumer_rows.load_ack_floors(reading, topic_id)

    def all_ack_floors(self) -> dict[int, dict[str, int]]:
        found = self._memory.all_ack_floors()
        for writer in self._writers.values():
            with writer.environment.read() as reading:
                found |= consumer_rows.load_all_ack_floors(reading, writer.applier.topics)
        return found

    def age(self, topic_id: int, id: int) -> float:
        engine = self._engine_of(topic_id)
        if isinstance(engine, MemoryTopics):
            return engine.age(topic_id, id)
        with engine.environment.read() as reading:
            when = stored_at(reading, topic_id, id)
        return 0.0 if when is None else max(self._clock.now() - when, 0) / 1e6

    def stats(self) -> Stats:
        total = Stats(damaged=sorted(self._damaged))
        for name, writer in self._writers.items():
            total.engines[name] = writer.stats()
        total.engines["memory"] = self._memory.stats_now()
        total.sum_up()
        return total

    def close(self) -> None:
        with self._submitting:
            if self._closed:
                return
            self._closed = True
        # Each writer may forward writes to the other: the strong one is drained first, and ends last.
        with contextlib.suppress(StoreError):
            self._reserve_now({})
        self._flusher.stop()
        self._check_path()
        self._writers["weak"].end()
        kept = self._wal.close()
        self._writers["strong"].end()
        synced = self._flusher.finish() and kept
        closed = [self._weak.close(), self._strong.close()]
        # If acknowledged messages are lost, this is not a clean shutdown: their ids must not be assigned again.
        if synced and all(closed) and self._broken is None and not self._writers["weak"].lost:
            directories = self._weak.directory, self._strong.directory
            left = {directory.name: checksum(directory / DATA_FILE) for directory in directories}
            if not opening.save_session(self._directory, self._catalog, clean=True, left=left):
                self._weak.release_reserve()
                opening.save_session(self._directory, self._catalog, clean=True, left=left)
        self._directory.release()

    def __enter__(self) -> LmdbStore:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # Periodic work

    def _tick(self, hour: bool) -> None:
        """Does the periodic work. Called every second."""
        self._check_path()
        if self._broken is not None:
            return
        while self._unpurged:
            self._writers["weak"].submit(PurgeTopic(self._unpurged.pop()))
        for writer in self._writers.values():
            writer.environment.allocate_reserve()
            writer.environment.clear_stale_readers()
            self._submit_upkeep(writer, hour)
        if hour or not self._session_saved:
            # After a power loss the clock continues from here. Without the file, a kill counts as a power loss.
            self._session_saved = opening.save_session(self._directory, self._catalog, clean=False)

    def _submit_upkeep(self, writer: Writer, hour: bool) -> None:
        """Submits the writes that drop what is too old, once a second and once an hour."""
        applier = writer.applier
        if writer.has_pending or writer.out_of_space or applier.has_deletions or applier.has_ages():
            writer.submit(ApplyRetention())
        if hour:
            writer.submit(ExpireState())

    def _check_path(self) -> None:
        """Stops all writes if the files of the store were moved, removed or replaced."""
        if self._broken is not None:
            return
        try:
            self._directory.check_path()
            self._strong.check_path()
            self._weak.check_path()
        except OSError as error:
            log.critical("the store takes no more writes: %s", error)
            self._fail(error)

    def _save_damaged_block(self, write: Quarantine) -> None:
        """Copies a damaged block, in the writer's thread: the reader that found it must not begin a second read."""
        engine = self._engines.get(write.topic_id)
        if isinstance(engine, Writer):
            with contextlib.suppress(OSError, StoreError, lmdb.Error), engine.environment.read() as reading:
                save_damaged_block(
                    self._directory.directory / "quarantine", reading, (write.topic_id, write.first, write.last)
                )

    def _record_damage(self, error: DamagedError) -> None:
        """Logs and quarantines damage that a reader has found."""
        damage = error.topic_id, error.first, error.last
        with self._lock:
            if damage in self._damaged:
                return
            self._damaged.add(damage)
        log.error("%s", error)
        engine = self._engines.get(error.topic_id)
        if isinstance(engine, Writer):
            engine.submit(Quarantine(*damage))
