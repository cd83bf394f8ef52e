"""The store on disk: `DIR/strong` and `DIR/weak` in LMDB, transient topics in memory."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Final

import lmdb

from omq.store.ack_set import AckSet
from omq.store.errors import DamagedError, StageError, StoreClosed, StoreError, UnknownTopic, bare
from omq.store.interface import (
    MAX_MEMORY_BYTES,
    AbortStage,
    Acknowledge,
    Append,
    Appended,
    CommitStages,
    DeleteCursor,
    DeleteTopic,
    MakeTopic,
    MoveToDeadLetter,
    Notify,
    Reader,
    SetCursor,
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
    Quarantine,
    ReserveIds,
    ReserveTransientIds,
    SkipIds,
    Sweep,
    WrongEnvironment,
)
from omq.store.lmdb import consumer_rows, opening
from omq.store.lmdb.applier import ANOTHER_KIND, Applier
from omq.store.lmdb.catalog import RESERVED_IDS, Catalog, StoredTopic
from omq.store.lmdb.data_file import checksum
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.flusher import Flusher
from omq.store.lmdb.layout import id_ranges
from omq.store.lmdb.reader import LmdbReader, find_record, keep_aside
from omq.store.lmdb.store_directory import StoreDirectory
from omq.store.lmdb.wal import WriteAheadLog
from omq.store.lmdb.writer import Writer
from omq.store.memory import MemoryTopic, MemoryTopics
from omq.unpatched import threading

log = logging.getLogger("omq.store")

DEAD_LETTERS: Final = b"\0dead letters of "  # the producer, as which a topic appends to its dead letters elsewhere
#: What is simply handed back.
PLAIN: Final = frozenset({Append, Acknowledge, SetCursor, DeleteCursor, Stage, Trim})
#: What needs nothing of elsewhere.
AT_ONCE: Final = frozenset({Append, Acknowledge})
OURS: Final = (ReserveIds, SkipIds, ApplyRetention, ExpireState, Quarantine, Sweep)


class Store:
    """A store in a directory, which is made where it is missing. See `Log`, which it is.

    Args:
        directory: Where.
        notify: Gets the writes that are done.
        appended: Gets the topics that have grown.
        flush_interval: Seconds between two syncs of weak and async topics.
        max_memory: Bytes that a transient topic keeps without a setting.
        kind: Which program has the directory, such as `broker`; empty: any.

    Raises:
        StoreLocked: It is open elsewhere.
        StoreError: The directory is another program's.
        DamagedError: It cannot be opened: the text has what is wrong, and what to do.
    """

    id: str
    findings: list[str]
    refused: dict[str, DamagedError]

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
        self._reserving: dict[int, int] = {}  # what is asked for, by topic
        self._unswept: set[int] = set()  # deleted topics whose rows could not be deleted
        self._session = StoreDirectory(directory, kind)
        self.id = self._session.id
        try:
            self._open(flush_interval, max_memory)
        except BaseException:
            self._session.end()
            raise

    # Opening

    def _open(self, flush_interval: float, max_memory: int) -> None:
        session = self._session
        strong, weak = session.directory / "strong", session.directory / "weak"
        if not session.orderly:
            self.findings.append("the store was not closed in order")
        self._flusher = Flusher(weak, flush_interval, self._tick, self._flush_failed)
        left = opening.look(session, self._flusher, strong, weak)
        lost, older = left.lost, left.older
        self.findings += left.findings
        self._strong = Environment(strong, sync=True)
        try:
            self._weak = Environment(weak, sync=False)
        except BaseException:
            self._strong.close()
            raise
        self._wal = WriteAheadLog(weak, self.id)
        try:
            self._catalog = Catalog()
            strong_applier = Applier(
                self._catalog, self._reserve, session.clock, lambda key: self._has(key, self._weak)
            )
            weak_applier = Applier(None, self._reserve, session.clock, lambda key: self._has(key, self._strong))
            self._load(strong_applier, weak_applier)
            if left.missing and weak_applier.topics:
                self.findings.append(f"{weak}: it is missing: weak and async topics start over")
            tails: list[StoreError] = []
            if not session.orderly:
                tails += opening.check_tails(self._strong, strong_applier.topics.values())
                tails += opening.check_tails(self._weak, weak_applier.topics.values())
            self._note_damage()
            older = older or opening.is_behind(session, self._catalog, self._sound())
            if older:
                self.findings.append(f"{strong}: {opening.ANOTHER}")
            self._replay(weak_applier.topics, lost)
            self._noted = opening.note(self._session, self._catalog, orderly=False)
        except BaseException:
            self._wal.close()
            self._weak.close()
            self._strong.close()
            raise
        self._writers: dict[str, Writer] = {
            "strong": self._writer("strong", self._strong, strong_applier),
            "weak": self._writer("weak", self._weak, weak_applier),
        }
        self._memory = MemoryTopics(max_memory, self._allowed, self._allow)
        self._where: dict[int, Writer | MemoryTopics] = {}
        for topic in self._sound():
            self._place(topic)
        self.findings += [
            f"topic {self._catalog.topics[id].name!r}: the position of {name!r} is damaged: it is refused until it "
            "starts over"
            for id, names in sorted(self.all_cursors().items())
            for name, position in names.items()
            if position < 0
        ]
        # The first sync comes before the first write: until then nothing holds the pages of the last one.
        self._flusher.start(self._weak, self._writers["weak"].latency, self._writers["weak"].catch_up)
        for writer in self._writers.values():
            writer.start()
        for error in tails:
            self.findings.append(str(error))
            if isinstance(error, DamagedError):
                self._damage(error)
        self._begin_ids(lost, older)
        self._writers["weak"].catch_up()

    def _writer(self, name: str, environment: Environment, applier: Applier) -> Writer:
        return Writer(
            f"omq-store-{name}",
            environment,
            applier,
            strong=name == "strong",
            wal=None if name == "strong" else self._wal,
            notify=self._done,
            appended=self._appended,
            committed=(lambda: None) if name == "strong" else self._flusher.committed,
            failed=self._fail,
            sync=None if name == "strong" else self._flusher.flush,
        )

    def _load(self, strong: Applier, weak: Applier) -> None:
        """Reads the catalog, and where topics stand."""
        with self._strong.read() as reading, self._weak.read() as other:
            self._catalog.load(reading)
            damaged = self._catalog.damaged
            for topic in self._catalog.topics.values():
                applier, transaction = (strong, reading) if topic.persistence == "strong" else (weak, other)
                if topic.persistence != "transient" and topic.id not in damaged:
                    try:
                        applier.load(transaction, topic)
                        if topic.delivery == "round_robin":
                            consumer_rows.load_settled(transaction, topic.id)
                        applier.topics[topic.id] = topic
                    except (DamagedError, struct.error) as error:
                        damaged[topic.id] = DamagedError(f"topic {topic.name!r}: {error}", topic.id)
            for id, why in sorted(damaged.items()):
                self.findings.append(f"{why}; nothing is done with it until a copy of the directory is put in place")
                if id in self._catalog.topics:
                    self.refused[self._catalog.topics[id].name] = why
            strong.strangers(reading, {*strong.topics, *damaged})
            weak.strangers(other, {*weak.topics, *damaged})

    def _sound(self) -> list[StoredTopic]:
        """The topics that are opened."""
        return [topic for id, topic in self._catalog.topics.items() if id not in self._catalog.damaged]

    def _place(self, topic: StoredTopic, last: int = 0) -> None:
        """Notes where a topic lives; from then on it is there."""
        if topic.persistence == "transient":
            self._memory.topics[topic.id] = MemoryTopic(
                topic.id, topic.name, topic.delivery, topic.persistence, topic.settings, last
            )
            self._where[topic.id] = self._memory
        elif topic.persistence == "strong":
            self._where[topic.id] = self._writers["strong"]
        else:
            self._writers["weak"].applier.topics.setdefault(topic.id, topic)
            self._where[topic.id] = self._writers["weak"]

    def _begin_ids(self, lost: bool, older: bool) -> None:
        """Begins new ids after those that may have been given and are not in the environment."""
        go_on = opening.beginning(self._session, self._catalog, self._sound(), lost=lost, older=older)
        jumps: list[SkipIds] = []
        for id, last in go_on.jumps.items():
            topic = self._catalog.topics[id]
            if topic.persistence == "transient":
                self._place(topic, last)
                continue
            jumps.append(SkipIds(id, last, context=threading.Event()))
            self._writers["strong" if topic.persistence == "strong" else "weak"].submit(jumps[-1])
        for jump in jumps:
            jump.context.wait()
            if jump.error is not None:  # for want of space, for example: ids would be given again
                log.critical("the store takes no writes: %s", jump.error)
                self._fail(jump.error)
        if go_on.reserved or go_on.next_topic:
            # Without space it is asked for again when ids are opening.
            with contextlib.suppress(StoreError):
                self._reserve_now(go_on.reserved, go_on.next_topic)

    def _replay(self, topics: dict[int, StoredTopic], lost: bool) -> None:
        """Writes what was acknowledged and only noted when the last process died."""
        for write in self._wal.replay():
            topic = topics.get(write.topic_id)
            if topic is not None and write.first > topic.last and not lost:
                self._wal.waiting.append(write)
        if not self._wal.waiting:
            self._wal.clear()

    def _note_damage(self) -> None:
        """Reports what was found damaged before."""
        self._damaged: set[tuple[int, int, int]] = set()
        for environment in (self._strong, self._weak):
            with environment.read() as reading:
                self._damaged.update(id_ranges(reading, b"q"))
        known = [damage for damage in self._damaged if damage[0] in self._catalog.topics]
        for topic_id, first, last in sorted(known):
            name = self._catalog.topics[topic_id].name
            self.findings.append(f"topic {name!r}: ids {first} to {last} are damaged, see DIR/quarantine")

    # Ids that are allowed

    def _reserve(self, topic: StoredTopic, last: int) -> None:
        """Reserves more ids for a topic; its writer calls it near the end of what the topic may give."""
        assert topic.reserved is not None
        upto = max(topic.reserved, last) + RESERVED_IDS
        if last > topic.reserved:
            self._reserve_now({topic.id: upto})
        elif self._reserving.get(topic.id, 0) < upto:
            self._reserving[topic.id] = upto
            self._writers["strong"].submit(ReserveIds({topic.id: upto}))

    def _allowed(self, topic_id: int, last: int) -> bool:
        """Returns whether a transient topic may give ids up to `last`; reserves more when it comes near to the end."""
        topic = self._catalog.topics.get(topic_id)
        if topic is None or topic.reserved is None or last + RESERVED_IDS // 2 <= topic.reserved:
            return True
        if last > topic.reserved:
            return False
        self._reserve(topic, last)
        return True

    def _allow(self, topic_id: int, last: int) -> None:
        """Has ids of a transient topic reserved, for which only its writes wait."""
        self._writers["strong"].submit(ReserveTransientIds({topic_id: last + RESERVED_IDS}))

    def _reserve_now(self, highest: dict[int, int], next_topic: int = 0) -> None:
        """Reserves ids, and waits until that is durable."""
        durable = threading.Event()
        write = ReserveIds(highest, next_topic, context=durable)
        self._writers["strong"].submit(write)
        durable.wait()
        if write.error is not None:
            raise write.error

    # What writers hand back

    def _done(self, writes: list[Write]) -> None:
        """Sorts out writes that are the store's own, or have to go on elsewhere; each writer calls it."""
        rest = writes if PLAIN.issuperset(map(type, writes)) else [write for write in writes if not self._take(write)]
        if rest:
            self._notify(rest)

    def _take(self, write: Write) -> bool:
        """Returns whether a write is not to be handed back, or not yet."""
        if isinstance(write, OURS):
            if isinstance(write, ReserveIds) and write.error is None:
                for id, highest in write.highest.items():
                    topic = self._catalog.topics.get(id)
                    if topic is not None:
                        topic.reserved = max(topic.reserved or 0, highest)
            if isinstance(write, Quarantine):
                self._keep_aside(write)
            elif isinstance(write, Sweep):
                if write.error is not None and not isinstance(write.error, UnknownTopic):
                    self._unswept.add(write.topic_id)
            elif isinstance(write, ReserveTransientIds):
                self._tell(*self._memory.go_on(write.error))
            elif write.context is not None:
                write.context.set()
            return True
        if isinstance(write, MoveAppend):
            move: MoveToDeadLetter = write.context
            if write.error is not None:
                return self._hand_back(move, write.error)
            move.first = write.first
            move.size = 0 if write.duplicate else len(write.records)
            self._to(move.topic_id, MoveAck(move.topic_id, [(move.id, move.id)], context=move))
            return True
        if isinstance(write, MoveAck):
            return self._hand_back(write.context, write.error)
        if isinstance(write, MakeTopic) and write.error is None and not write.found:
            self._catalog.next = max(self._catalog.next, write.topic_id + 1)
            self._place(self._catalog.topics[write.topic_id])
        elif isinstance(write, DeleteTopic):
            if write.error is not None and threading.current_thread().name.endswith("weak"):
                # The catalog does not have it any more, so it is deleted; what it leaves goes as soon as it can.
                self._unswept.add(write.topic_id)
                write.error = None
            if write.error is None or isinstance(write.error, WrongEnvironment):
                where = self._where.pop(write.topic_id, self._writers["weak"])  # one that was refused is in no place
                if write.error is not None:
                    return self._pass_on(write, where)
            if write.error is None and self.refused:
                self.refused = {name: why for name, why in self.refused.items() if why.topic_id != write.topic_id}
        elif isinstance(write, AbortStage) and write.prefix and write.error is None and write.places < 2:
            write.places += 1
            return self._pass_on(write, self._writers["weak"] if write.places == 1 else self._memory)
        elif isinstance(write, CommitStages | AbortStage) and isinstance(write.error, WrongEnvironment):
            # From the strong environment to the weak one, then to memory.
            if threading.current_thread().name.endswith("strong"):
                return self._pass_on(write, self._writers["weak"])
            if self._in_memory(write):
                return self._pass_on(write, self._memory)
            write.error = None
            if isinstance(write, CommitStages) and write.stages:
                write.error = StageError("there is no stage {}", write.stages[0])
        elif isinstance(write.error, WrongEnvironment):
            write.error = UnknownTopic(str(write.error))
        return False

    def _has(self, key: bytes, *environments: Environment) -> bool:
        """Returns whether a stage or a commit is in some environments, or in memory."""
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

    def _pass_on(self, write: Write, where: Writer | MemoryTopics) -> bool:
        write.error, write.done = None, False
        if isinstance(where, Writer):
            where.submit(write)
            return True
        self._tell(*where.apply((write,)))
        return True

    def _tell(self, writes: list[Write], grown: dict[int, int]) -> None:
        """Hands back what was done in memory."""
        if writes:
            self._done(writes)
        if grown:
            self._appended(grown)

    def _hand_back(self, write: Write, error: BaseException | None) -> bool:
        write.error, write.done = error and bare(error), True
        self._notify([write])
        return True

    def _fail(self, error: BaseException) -> None:
        """An environment takes no more writes: so does the other."""
        with self._lock:
            if self._broken is not None:
                return
            self._broken = error
        for writer in self._writers.values():
            writer.break_off(error)

    # Log

    @property
    def broken(self) -> BaseException | None:
        return self._broken

    @property
    def full(self) -> bool:
        return self._writers["weak"].has_pending or any(writer.short for writer in self._writers.values())

    def submit(self, write: Write) -> None:
        with self._submitting:
            if self._closed:
                raise StoreClosed("the store is closed")
            writer = self._writer_of(write)
            if writer is not None:
                writer.submit(write)
                return
        self._do_here([write])

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
            self._do_here(here)

    def write_at_once(self, writes: list[Write], *, note: bool = False) -> bool:
        writer = self._writers["weak"]
        with self._submitting:
            if self._closed:
                raise StoreClosed("the store is closed")
            for write in writes:
                if type(write) not in AT_ONCE or self._where.get(write.topic_id) is not writer:  # type: ignore[attr-defined]
                    return False
            return writer.write_at_once(writes, note=note)

    def catch_up(self) -> None:
        self._writers["weak"].catch_up()

    def _writer_of(self, write: Write) -> Writer | None:
        """The writer that a write is for; `None`: the store itself."""
        if isinstance(write, MakeTopic | DeleteTopic | CommitStages | AbortStage):
            return self._writers["strong"]
        where = self._where.get(write.topic_id)  # type: ignore[attr-defined]
        if isinstance(write, MoveToDeadLetter) and self._where.get(write.target_id, where) is not where:
            return None
        return where if isinstance(where, Writer) else None

    def _do_here(self, writes: list[Write]) -> None:
        """Does what concerns memory, hands back what is impossible, and begins what concerns two engines."""
        mine: list[Write] = []
        lost: list[Write] = []
        for write in writes:
            topic_id = write.topic_id  # type: ignore[attr-defined]
            where = self._where.get(topic_id)
            if where is None:
                write.error, write.done = UnknownTopic(f"there is no topic {topic_id}"), True
                lost.append(write)
            elif isinstance(write, MoveToDeadLetter) and self._where.get(write.target_id, where) is not where:
                self._carry(write)
            else:
                mine.append(write)
                if isinstance(write, Stage) and not self._memory.has_stage(write.stage):
                    try:
                        if self._has(b"G" + write.stage, self._strong, self._weak):
                            write.error = StageError(ANOTHER_KIND, write.stage)
                    except StoreError as error:
                        write.error = bare(error)
        done, grown = self._memory.apply(mine) if mine else ([], {})
        self._tell(lost + done, grown)

    def _carry(self, write: MoveToDeadLetter) -> None:
        """Begins to move a dead letter to another environment: there it is appended once, then it is settled here."""
        try:
            first = self.topic(write.topic_id).first
            record = self._record(write.topic_id, write.id)
        except (StoreError, lmdb.Error) as error:
            self._hand_back(write, error if isinstance(error, StoreError) else StoreError(f"LMDB: {error}"))
            return
        # What its topic has dropped comes here no more.
        producer = DEAD_LETTERS + write.topic_id.to_bytes(4, "big")
        settled = min(first, write.id)
        self._to(write.target_id, MoveAppend(write.target_id, record, 1, producer, write.id, settled, context=write))

    def _record(self, topic_id: int, id: int) -> bytes:
        where = self._where[topic_id]
        if isinstance(where, MemoryTopics):
            with where.lock:
                return where.record(where.topic(topic_id), id)
        with where.environment.read() as reading:
            return find_record(reading, topic_id, id, self.topic(topic_id).first)

    def _to(self, topic_id: int, write: Append | Acknowledge) -> None:
        """Submits half of something."""
        where = self._where.get(topic_id)
        if isinstance(where, Writer):
            where.submit(write)
            return
        if where is None:
            write.error = UnknownTopic(f"there is no topic {topic_id}")
            self._tell([write], {})
        else:
            self._tell(*where.apply((write,)))

    def topics(self) -> list[TopicState]:
        found = []
        for id in sorted(self._where):
            with contextlib.suppress(UnknownTopic):  # deleted meanwhile
                found.append(self.topic(id))
        return found

    def topic(self, topic_id: int) -> TopicState:
        where = self._at(topic_id)
        if isinstance(where, MemoryTopics):
            return where.state(topic_id)
        try:
            return where.applier.topics[topic_id].state
        except KeyError:
            raise UnknownTopic(f"there is no topic {topic_id}") from None

    def _at(self, topic_id: int) -> Writer | MemoryTopics:
        where = self._where.get(topic_id)
        if where is None:
            raise UnknownTopic(f"there is no topic {topic_id}")
        return where

    def read(self, topic_id: int) -> AbstractContextManager[Reader]:
        where = self._at(topic_id)
        if isinstance(where, MemoryTopics):
            return where.read(topic_id)
        return LmdbReader(where.environment, topic_id, where.strong, self._damage)

    def cursors(self, topic_id: int) -> dict[str, int]:
        where = self._at(topic_id)
        if isinstance(where, MemoryTopics):
            with where.lock:
                return dict(where.topic(topic_id).cursors)
        with where.environment.read() as reading:
            return consumer_rows.load_positions(reading, topic_id)

    def all_cursors(self) -> dict[int, dict[str, int]]:
        found = self._memory.all_cursors()
        for writer in self._writers.values():
            with writer.environment.read() as reading:
                found |= consumer_rows.load_all_positions(reading, writer.applier.topics)
        return found

    def settled(self, topic_id: int) -> AckSet:
        where = self._at(topic_id)
        if isinstance(where, MemoryTopics):
            with where.lock:
                return where.topic(topic_id).settled.copy()
        with where.environment.read() as reading:
            return consumer_rows.load_settled(reading, topic_id)

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
        # Each may pass something on to the other: the strong one is emptied first, and ends last.
        with contextlib.suppress(StoreError):
            self._reserve_now({})
        self._flusher.stop()
        self._check_place()
        self._writers["weak"].end()
        kept = self._wal.close()
        synced = self._flusher.finish() and kept
        self._writers["strong"].end()
        closed = [self._weak.close(), self._strong.close()]
        # Where acknowledged messages are lost their ids must not be given again.
        if synced and all(closed) and self._broken is None and not self._writers["weak"].lost:
            directories = self._weak.directory, self._strong.directory
            left = {directory.name: checksum(directory / "data.mdb") for directory in directories}
            if not opening.note(self._session, self._catalog, orderly=True, left=left):
                self._weak.give_reserve()
                opening.note(self._session, self._catalog, orderly=True, left=left)
        self._session.end()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # Now and then

    def _tick(self, hour: bool) -> None:
        """Does the periodic work; called every second."""
        self._check_place()
        if self._broken is not None:
            return
        while self._unswept:
            self._writers["weak"].submit(Sweep(self._unswept.pop()))
        for writer in self._writers.values():
            writer.environment.take_reserve()
            applier = writer.applier
            ages = any(topic.settings.get("max_age") for topic in list(applier.topics.values()))
            if writer.has_pending or writer.short or applier.has_deletions or ages:
                writer.submit(ApplyRetention())
            if hour:
                writer.submit(ExpireState())
        if hour or not self._noted:
            # Where the power is lost the clock goes on from here. Where nothing is noted a kill is taken for that.
            self._noted = opening.note(self._session, self._catalog, orderly=False)

    def _check_place(self) -> None:
        """Gives the store up where its files are not on their paths any more, also without a write."""
        if self._broken is not None:
            return
        try:
            self._session.check_place()
            self._strong.check_place()
            self._weak.check_place()
        except OSError as error:
            log.critical("the store takes no more writes: %s", error)
            self._fail(error)

    def _keep_aside(self, write: Quarantine) -> None:
        """Copies what is damaged, in the writer's thread: the reader that found it may not begin a second read."""
        where = self._where.get(write.topic_id)
        if isinstance(where, Writer):
            with contextlib.suppress(OSError, StoreError, lmdb.Error), where.environment.read() as reading:
                keep_aside(self._session.directory / "quarantine", reading, (write.topic_id, write.first, write.last))

    def _flush_failed(self, error: BaseException) -> None:
        self._writers["weak"].break_off(error)

    def _damage(self, error: DamagedError) -> None:
        """Records damage that a reader has found."""
        damage = error.topic_id, error.first, error.last
        with self._lock:
            if damage in self._damaged:
                return
            self._damaged.add(damage)
        log.error("%s", error)
        where = self._where.get(error.topic_id)
        if isinstance(where, Writer):
            where.submit(Quarantine(*damage))
