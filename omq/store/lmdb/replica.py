"""The store of a node of a cluster: its topics change by the entries of the journal alone.

All nodes apply the same entries in the same order and come to the same state, whatever entries each of them commits
together. So the state after an entry depends only on that before it: the timestamp of the entry is the clock, blocks
end with the entry, and it drops what its writes have made too old or too large.

All topics of the journal are in the strong environment, next to the position of the last applied entry. It syncs
periodically, as the journal has all entries: after a power failure the node continues at the position of the last sync.

A transient topic is in the catalog of all nodes, but each of them has its own messages in memory. Their ids are not
reserved: each leader gives higher ones than all before it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Final

import lmdb

from omq.store.clock import EntryClock
from omq.store.errors import (
    DamagedError,
    OutOfSpace,
    StageError,
    StoreClosed,
    StoreError,
    UnknownTopic,
    without_traceback,
)
from omq.store.interface import (
    MAX_MEMORY_BYTES,
    AbortStage,
    AlterTopic,
    Appended,
    CommitStages,
    DeleteTopic,
    MakeTopic,
    MoveToDeadLetter,
    Notify,
    Persistence,
    Requeue,
    Write,
)
from omq.store.internal import (
    ApplyEntry,
    ApplyRetention,
    ExpireState,
    PurgeRows,
    Quarantine,
    ReserveIds,
    WrongEnvironment,
)
from omq.store.lmdb import consumer_rows, opening
from omq.store.lmdb.applier import MAX_DELETIONS, Applier
from omq.store.lmdb.catalog import REPLICA_ENGINES, Catalog, Engine, StoredTopic
from omq.store.lmdb.layout import APPLIED, APPLIED_ENTRY, Applied, with_checksum
from omq.store.lmdb.producers import Producers
from omq.store.lmdb.staging import Stages
from omq.store.lmdb.store import MOVES, LmdbStore
from omq.store.lmdb.writer import MIN_DELETIONS, SPACE_TAKING, Writer
from omq.unpatched import queue, threading

log = logging.getLogger("omq.store")

SPACE_RETRY_DELAY_S: Final = 0.1
WRITE_BYTES: Final = 256  # what a write counts in the size of a commit, without its records
ENTRIES_ONLY: Final = "the topics of a replica change by the entries of its journal alone: submit an `ApplyEntry`"
MOVE_BETWEEN_KINDS: Final = (
    "a record cannot be moved between a transient topic, which each node has its own of, and a replicated one"
)
#: The context of writes to the memory engine that follow from an entry, whose results are not returned.
FOLLOW_UP: Final = object()


class _EntryFailed(Exception):
    """Raised when this node cannot apply an entry, which others may be able to. Its argument is the reason."""


class EntryApplier(Applier):
    """Applies entries, and the writes about this node alone.

    Args:
        catalog: The catalog.
        reserve: Never called, since ids follow from the entries.
        clock: Gets the time of the last applied entry.

    Attributes:
        applied: The last applied entry that is committed.
    """

    def __init__(self, catalog: Catalog, reserve: Callable[[StoredTopic, int], None], clock: EntryClock) -> None:
        super().__init__(catalog, reserve, clock)
        self.applied = self._last = Applied()
        self._entry_clock = clock
        self._producers = Producers(exact=True)
        self._entry_handlers = self._handlers
        self._handlers = {
            ApplyEntry: self._apply_entry,
            PurgeRows: lambda write: None,  # `finish` does it
            ReserveIds: self._reserve_ids,
            Quarantine: self._quarantine,
        }

    def load_applied(self, transaction: Any) -> None:
        """Reads the row about the last applied entry. Raises `DamagedError`."""
        self._set_applied(Applied.load(transaction))

    def _set_applied(self, applied: Applied) -> None:
        self.applied = self._last = applied
        self._entry_clock.time = applied.time

    def load(self, transaction: Any, topic: StoredTopic) -> None:
        """Reads the committed state of a topic, with the ack set that retention looks at."""
        super().load(transaction, topic)
        if topic.delivery == "round_robin":
            topic.ack_sets[""] = consumer_rows.load_ack_set(transaction, topic.id)

    def finish(self) -> None:
        """Stores the position, and deletes rows of deleted topics: no node reads these, so each has its own pace."""
        if self._last is not self.applied:
            self._transaction.put(APPLIED, with_checksum(APPLIED, APPLIED_ENTRY.pack(*self._last)))
        if self._deleted:
            self._purge(self.deletion_limit or MAX_DELETIONS)
        self.has_backlog = self._deleted > self._purged

    def committed(self) -> dict[int, int]:
        self._set_applied(self._last)
        return super().committed()

    def rollback(self, transaction: Any) -> None:
        self._last = self.applied
        super().rollback(transaction)

    def _apply_entry(self, entry: ApplyEntry) -> None:
        last = self._last
        if entry.position <= last.position:
            raise StoreError(
                f"entry {entry.position} of the journal is not after {last.position}, the last one applied"
            )
        if entry.term < last.term:
            raise _EntryFailed(
                DamagedError(f"the journal has entry {entry.position} of term {entry.term} after one of {last.term}")
            )
        self._now = max(entry.timestamp, last.time)
        self._wall = entry.wall or self._now
        before, self.touched = self.touched, set()
        self._acked.clear()
        try:
            for write in entry.writes:
                self._apply_write(write)
            left = self._put_topics(sorted(self.touched, key=lambda topic: topic.id), MAX_DELETIONS)
        finally:
            self.touched |= before
        self._last = Applied(entry.position, entry.term, self._now, left <= 0)

    def _apply_write(self, write: Write) -> None:
        """Applies a write of an entry. Its error is a result, unless another node would not have it."""
        write.error = None
        try:
            self._entry_handlers[type(write)](write)
        except (OutOfSpace, DamagedError) as error:
            raise _EntryFailed(error) from None
        except WrongEnvironment as error:
            # There is no other one: the topic or stage is in memory, or does not exist.
            if isinstance(write, CommitStages) and write.stages:
                write.error = StageError("there is no stage {}", write.stages[0])
            elif not isinstance(write, CommitStages | AbortStage | DeleteTopic):
                write.error = UnknownTopic(str(error))
        except StoreError as error:
            write.error = without_traceback(error)

    def _move_to_dead_letter(self, write: MoveToDeadLetter) -> None:
        self._check_move(write)
        super()._move_to_dead_letter(write)

    def _requeue(self, write: Requeue) -> None:
        self._check_move(write)
        super()._requeue(write)

    def _check_move(self, write: MoveToDeadLetter | Requeue) -> None:
        assert self.catalog is not None
        topics = [self.catalog.topics[id] for id in topics_of(write) if id in self.catalog.topics]
        if len({topic.engine for topic in topics}) > 1:
            raise StoreError(MOVE_BETWEEN_KINDS)

    def _apply_retention(self, write: ApplyRetention) -> None:
        backlog = self._last.backlog
        self.touched.update(topic for topic in self.topics.values() if backlog or topic.settings.get("max_age"))

    def _expire_state(self, write: ExpireState) -> None:
        super()._expire_state(write)
        self.next_expiry = None  # the leader proposes it


class EntryWriter(Writer):
    """Writes entries in the order of the journal, and none before the last one is applied.

    Without space it retries the entry until there is some, and other writes wait for it. After any other trouble it
    takes no writes, since the next entry cannot be applied without this one.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._closing = threading.Event()

    @property
    def shortage(self) -> str:
        """The reason for which the next entry waits for space; empty if none does."""
        return self._full_reason

    def stop_waiting(self) -> None:
        """Fails the entries that wait for space, since the store is being closed."""
        self._closing.set()

    def _gather(self) -> list[Write]:
        """Waits for a write; returns it with the queued ones. A commit delay is left to the journal."""
        group: list[Write] = []
        size = 0
        with contextlib.suppress(queue.Empty):
            while size < self._group_bytes:
                write = self._queue.get(block=not group)
                if write is None:
                    self._ended = True
                    break
                group.append(write)
                size += _size(write)
        return group

    def _write(self, group: list[Write]) -> None:
        """Writes a group, in parts if it cannot be written as a whole."""
        while self.broken is None:
            try:
                self._try(group)
                self._end_shortage()
                return
            except lmdb.MapFullError:
                if not (reason := self._grow()):
                    continue
            except lmdb.Error as error:
                reason = self._shortage(error)
                if not reason and not (isinstance(error, lmdb.TxnFullError) and len(group) > 1):
                    self._break(group, error)
                    return
            except _EntryFailed as error:
                if not isinstance(error.args[0], OutOfSpace):
                    self._break(group, without_traceback(error.args[0]))
                    return
                reason = str(error.args[0])
            except Exception as error:
                log.exception("an entry of the journal failed")
                self._break(group, error)
                return
            if len(group) > 1:
                self._halve(group)
                return
            if not isinstance(group[0], ApplyEntry):
                self._fail_writes(group, OutOfSpace(reason))
                return
            self._wait_for_space(reason)
        self._fail_writes(group, self._refusal())

    def _grow(self) -> str:
        """Makes the map larger; returns the reason if that is not possible now."""
        try:
            self.environment.grow()
        except (lmdb.Error, OSError, MemoryError) as error:
            return f"{self.environment.path}: the map cannot grow: {error}"
        return ""

    def _wait_for_space(self, reason: str) -> None:
        """Waits a moment, in which space may become free; frees what this environment can."""
        self.full += 1
        if not self._full_reason:
            log.error("no entry of the journal is applied until there is space: %s", reason)
        self._full_reason, self.out_of_space = reason, True
        self.environment.release_reserve()
        self.applier.deletion_limit = MIN_DELETIONS
        with contextlib.suppress(lmdb.Error, OSError):
            while self.applier.has_deletions:
                self._try([])
        assert self._sync is not None
        self._sync()  # pages that were freed since the last sync can be reused
        if self._closing.wait(SPACE_RETRY_DELAY_S):
            # The writer ends, but nothing is wrong with the store.
            self.broken = StoreClosed(f"the store was closed before there was space: {reason}")

    def _refusal(self) -> StoreError:
        return self.broken if isinstance(self.broken, StoreClosed) else super()._refusal()

    def _end_shortage(self) -> None:
        if self._full_reason:
            log.warning("%s: there is space again: entries of the journal are applied", self.environment.path)
            self._full_reason, self.out_of_space = "", False
            self.applier.deletion_limit = None

    def _submit_upkeep(self) -> None:
        if self.applier.has_backlog and self.broken is None:
            self._queue.put(PurgeRows())


class LmdbReplica(LmdbStore):
    """The store of a node of a cluster, in a directory. Implements `Store`.

    It applies entries (`ApplyEntry`) in the order in which they are submitted, and refuses other writes unless
    `is_local` returns true. A directory that was opened as a replica cannot be opened as another store.

    Args:
        directory: The directory; created if it is missing.
        cluster_id: The id of the cluster, 16 bytes in hex, which is the id of all its stores. A new directory takes it,
            and one of another cluster is refused. Empty: the directory's own.
        cluster: The name of the cluster, for messages.
        notify: Called with finished writes.
        appended: Called with the last ids of the topics that have grown.
        flush_interval: The seconds between two syncs.
        max_memory: The bytes that a transient topic keeps if it has no setting.
        kind: The program of the store, such as `broker`; empty: any.

    Raises:
        StoreLocked: Another process, or another store of this process, has it open.
        StoreError: The directory belongs to another program or cluster, or is not a replica.
        DamagedError: The files are damaged. The text explains the damage and what to do.
    """

    _engine_of_persistence: Mapping[Persistence, Engine] = REPLICA_ENGINES
    _strong_writer = EntryWriter
    _changed = opening.CHANGED_REPLICA
    _flushed = "strong"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        notify: Notify,
        appended: Appended = lambda grown: None,
        cluster_id: str = "",
        cluster: str = "",
        flush_interval: float = 1.0,
        max_memory: int = MAX_MEMORY_BYTES,
        kind: str = "",
    ) -> None:
        self._cluster_id = cluster_id
        self._cluster = cluster
        self._stages = Stages()
        super().__init__(
            directory,
            notify=notify,
            appended=appended,
            flush_interval=flush_interval,
            max_memory=max_memory,
            kind=kind,
        )

    # The journal

    @property
    def position(self) -> tuple[int, int]:
        """The sequence and the term of the last applied entry; zeros before the first."""
        return self._entries.applied[:2]

    @property
    def timestamp(self) -> int:
        """The timestamp of the last applied entry, which is the store's clock. The next one must not be lower."""
        return self._entries.applied.time

    @property
    def needs_retention(self) -> bool:
        """Returns whether an `ApplyRetention` may drop records. The leader proposes one then, about every second."""
        return self._entries.applied.backlog or self._entries.has_ages()

    @property
    def shortage(self) -> str:
        """The reason for which the next entry waits for space on the disk; empty if none does."""
        return self._entry_writer.shortage

    def is_local(self, write: Write) -> bool:
        """Returns whether a write is about the transient topics of this node, so that it is submitted directly.

        Any other write belongs into an entry. That includes those that create, alter and delete transient topics, whose
        names and ids are the same on all nodes.
        """
        if isinstance(write, CommitStages | AbortStage):
            return not getattr(write, "prefix", False) and self._in_memory(write)
        if isinstance(write, MakeTopic | AlterTopic | DeleteTopic) or not hasattr(write, "topic_id"):
            return False
        return all(self._engines.get(id, self._memory) is self._memory for id in topics_of(write))

    def staged(self, write: CommitStages) -> dict[int, tuple[int, int]]:
        """Returns the messages and bytes that a commit publishes, by topic id. Raises `DamagedError`.

        It is empty if the commit is a repetition, or fails for a stage.
        """
        counts: dict[int, tuple[int, int]] = {}
        with self._strong.read() as reading:
            found = [self._stages.find(reading, stage) for stage in write.stages]
            if self._stages.known(reading, write.commit) is not None or None in found:
                return {}
            for one in found:
                assert one is not None
                number, topic_id = one
                count, size = self._stages.measure(reading, number)
                records, total = counts.get(topic_id, (0, 0))
                counts[topic_id] = records + count, total + size
        return counts

    # Opening

    def _open(self, flush_interval: float, max_memory: int) -> None:
        super()._open(flush_interval, max_memory)
        for damage in self._catalog.damaged.values():
            # Entries about this topic would have other results than on the other nodes.
            self._fail(DamagedError(f"{self._strong.path}: {damage}; the node needs a snapshot of another one"))

    def _strong_applier(self) -> Applier:
        self._clock = clock = EntryClock()
        self._entries = EntryApplier(self._catalog, self._reserve, clock)
        return self._entries

    def _load(self, strong: Applier, weak: Applier) -> None:
        super()._load(strong, weak)
        try:
            with self._strong.read() as reading:
                self._entries.load_applied(reading)
        except DamagedError as error:
            raise DamagedError(f"{self._strong.path}: {error}; the node needs a snapshot of another one") from None

    def _next_ids(self, lost: bool, older: bool) -> opening.NextIds:
        # What an older copy does not have comes from the journal, with the same ids.
        return opening.NextIds({}, {}, 0)

    @property
    def _entry_writer(self) -> EntryWriter:
        writer = self._writers["strong"]
        assert isinstance(writer, EntryWriter)
        return writer

    # Writes

    def _writer_of(self, write: Write) -> Writer | None:
        return self._entry_writer if isinstance(write, ApplyEntry) else None

    def _apply_here(self, writes: list[Write]) -> None:
        for of_stages, group in groupby(writes, lambda write: isinstance(write, CommitStages | AbortStage)):
            local = [write for write in group if self.is_local(write) or self._refuse(write)]
            if of_stages:
                self._return_done(*self._memory.apply(local))
            elif local:
                super()._apply_here(local)

    def _refuse(self, write: Write) -> bool:
        """Fails a write that is not local; returns false."""
        mixed = isinstance(write, MOVES) and self._spans_engines(write)
        self._return_write(write, StoreError(MOVE_BETWEEN_KINDS if mixed else ENTRIES_ONLY))
        return False

    def _finished(self, writes: list[Write]) -> None:
        for write in writes:
            if isinstance(write, ApplyEntry) and write.error is None:
                for one in write.writes:
                    one.done = True
                    if one.error is None:
                        self._follow_up(one)
        super()._finished([write for write in writes if write.context is not FOLLOW_UP])

    def _follow_up(self, write: Write) -> None:
        """Opens and closes topics after a write of an entry, and does in memory what it asks for there."""
        if isinstance(write, MakeTopic):
            if not write.found:
                self._open_new(write.topic_id)
        elif isinstance(write, AlterTopic):
            write.stored = True
            if self._engines.get(write.topic_id) is self._memory:
                self._apply_to_memory(AlterTopic(write.topic_id, write.settings, context=FOLLOW_UP))
        elif isinstance(write, DeleteTopic):
            if self._engines.pop(write.topic_id, None) is self._memory:
                self._apply_to_memory(DeleteTopic(write.topic_id, context=FOLLOW_UP))
        elif isinstance(write, AbortStage) and write.prefix:
            self._apply_to_memory(AbortStage(write.stage, prefix=True, context=FOLLOW_UP))

    def _apply_to_memory(self, write: Write) -> None:
        self._return_done(*self._memory.apply([write]))

    def restart_transient(self, last: int) -> None:
        """Drops what transient topics have, and continues with ids above `last`."""
        self._memory.restart(last)

    # Periodic work

    def _submit_upkeep(self, writer: Writer, hour: bool) -> None:
        if writer.applier.has_deletions:
            writer.submit(PurgeRows())

    def close(self) -> None:
        self._entry_writer.stop_waiting()
        super().close()


def topics_of(write: Any) -> list[int]:
    """Returns the ids of the topics of a write about topics."""
    if isinstance(write, MoveToDeadLetter):
        return [write.topic_id, write.target_id]
    if isinstance(write, Requeue):
        return [write.topic_id, *(target_id for _, target_id in write.moves)]
    return [write.topic_id]


def _size(write: Write) -> int:
    """Returns the approximate bytes of a write in a commit."""
    writes = write.writes if isinstance(write, ApplyEntry) else []
    return WRITE_BYTES * (1 + len(writes)) + sum(len(one.records) for one in writes if isinstance(one, SPACE_TAKING))
