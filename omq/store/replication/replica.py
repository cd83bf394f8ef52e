"""The store of a broker of a cluster: writes go through the journal, and reads to the store of this node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from omq.executor import in_thread
from omq.store.ack_set import AckSet
from omq.store.errors import DamagedError, NotAllowed, NotLeader, StoreClosed, StoreError, TopicFull, without_traceback
from omq.store.interface import (
    MAX_MEMORY_BYTES,
    AlterTopic,
    Appended,
    CommitStages,
    DeleteTopic,
    MakeTopic,
    Notify,
    Reader,
    Stats,
    TopicState,
    Write,
)
from omq.store.internal import ApplyEntry, ApplyRetention, ExpireState
from omq.store.lmdb.replica import LmdbReplica
from omq.store.lmdb.snapshot import restore_snapshot
from omq.store.lmdb.store_directory import REPLICA, StoreDirectory
from omq.store.replication.codec import Entry, Lease
from omq.store.replication.copying import copy_replica
from omq.store.replication.journal import Journal, JournalUnavailable
from omq.store.replication.members import Members
from omq.store.replication.role_machine import (
    MAX_RETRY_DELAY_S,
    SNAPSHOT_PREFIX,
    Applied,
    ReplicaSettings,
    Role,
    RoleMachine,
)
from omq.unpatched import threading

log = logging.getLogger("omq.store")

EXPIRY_INTERVAL_S: Final = 3600.0
#: The ids that a transient topic has in a term of the cluster.
TRANSIENT_IDS: Final = 1 << 40
UNSYNCED: Final = (
    'the topic {!r} cannot have persistence="strong": the servers of the journal do not sync each message. Set '
    "`sync_interval: always` in the section `jetstream` of all of them, and state it by --servers-sync (servers_sync = "
    'true in [cluster]); or use persistence="weak"'
)
NOT_CONNECTED: Final = "the journal is not connected"
#: The context of writes that this module submits, whose results are not returned.
UPKEEP: Final = object()


@dataclass(slots=True)
class _CheckedCommit:
    """The context of a commit that the leader proposes in place of one with functions.

    Attributes:
        original: The commit of the caller.
    """

    original: CommitStages


class _LocalReplica:
    """The store of this node, for the role machine.

    Args:
        directory: The directory of the store.
        opened: Opens the store.
        loaded: Called with the store once it is opened again after a snapshot.
        kind: The program of the store.
    """

    def __init__(
        self, directory: Path, opened: Callable[[], LmdbReplica], loaded: Callable[[LmdbReplica], None], kind: str
    ) -> None:
        self._directory = directory
        self._opened = opened
        self._loaded = loaded
        self._kind = kind
        self._new = directory.with_name(directory.name + ".new")
        self._old = directory.with_name(directory.name + ".old")
        # A process that was killed while it made or loaded a snapshot leaves files.
        if self._new.exists() and not directory.exists():
            self._new.rename(directory)
        partial = directory.with_name(directory.name + ".new.partial")
        for left in (self._new, partial, self._old, *directory.parent.glob(f"{SNAPSHOT_PREFIX}*")):
            shutil.rmtree(left, ignore_errors=True)
        self.store = opened()
        self._next_start: bytes | None = b""
        self._next_expiry = time.monotonic() + EXPIRY_INTERVAL_S
        self._expiry: ExpireState | None = None

    @property
    def position(self) -> tuple[int, int]:
        return self.store.position

    @property
    def timestamp(self) -> int:
        return self.store.timestamp

    @property
    def stalled(self) -> bool:
        return bool(self.store.shortage)

    def apply(self, sequence: int, entry: Entry, applied: Applied | None = None) -> Awaitable[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        context = applied, loop, done
        try:
            self.store.submit(
                ApplyEntry(sequence, entry.term, entry.timestamp, entry.writes, entry.wall, context=context)
            )
        except StoreError as error:
            if applied is not None:
                applied(entry.writes, error)
            done.set_exception(error)
        return done

    def needs_check(self, write: Write) -> bool:
        return isinstance(write.context, _CheckedCommit)

    def check(self, write: Write) -> None:
        assert isinstance(write, CommitStages)
        original = write.context.original
        for topic_id, (count, size) in self.store.staged(write).items():
            if original.may is not None and not original.may(topic_id):
                raise NotAllowed(topic_id)
            if original.has_room is not None and not original.has_room(topic_id, count, size):
                raise TopicFull(topic_id, count, size)

    def upkeep(self) -> list[Write]:
        writes: list[Write] = []
        if self.store.needs_retention:
            writes.append(ApplyRetention(context=UPKEEP))
        if self._expiry is not None and self._expiry.done:
            start = None if self._expiry.error is not None else self._expiry.next_start
            self._expiry = None if start is None else ExpireState(start, context=UPKEEP)
            writes += [] if self._expiry is None else [self._expiry]
        if self._expiry is None and time.monotonic() >= self._next_expiry:
            self._next_expiry = time.monotonic() + EXPIRY_INTERVAL_S
            self._expiry = ExpireState(context=UPKEEP)
            writes.append(self._expiry)
        return writes

    async def snapshot(self, target: Path) -> int:
        return await in_thread(copy_replica, self._directory, target, self._kind)

    async def load(self, directory: Path) -> None:
        await in_thread(self._load, directory)
        self._loaded(self.store)

    def _load(self, snapshot: Path) -> None:
        restore_snapshot(snapshot, self._new, kind=self._kind)
        self.store.close()
        self._directory.rename(self._old)
        self._new.rename(self._directory)
        shutil.rmtree(self._old, ignore_errors=True)
        self.store = self._opened()


class ReplicatedStore:
    """The store of a node of a cluster. Implements `Store`.

    Writes are replicated by the leader, and fail with `NotLeader` on the other nodes. Reads, and writes to transient
    topics, concern the store of this node. All topics but transient ones are answered once a majority of the journal's
    servers has the write: for a strong topic on disk, for the others in memory.

    Args:
        directory: The directory of this node: it has the store in `replica`, and snapshots that are copied. No store
            without a cluster can be opened in it.
        connect: Connects to the journal; called in the loop of this store, again if it raises `JournalUnavailable`. Its
            argument: create a journal if there is none.
        settings: The id of the node, its endpoints and its lease.
        notify: Called with finished writes.
        appended: Called with the last ids of the topics that have grown.
        role_changed: Called with the role of this node and the lease in force, in the thread of this store.
        catalog_changed: Called when topics were created, altered or deleted, on all nodes; before `appended` is called
            for their records.
        loaded: Called when a snapshot has replaced all topics and their records, in the thread of this store. Shortly
            before that, reads raise `StoreClosed`.
        cluster_id: The id of the cluster, 16 bytes in hex, which is the id of the store.
        cluster: The name of the cluster, for messages.
        servers_sync: The servers of the journal sync each message. Otherwise strong topics are refused.
        flush_interval: The seconds between two syncs.
        max_memory: The bytes that a transient topic keeps if it has no setting.
        kind: The program of the store, such as `broker`; empty: any.

    Raises:
        StoreError: As in `LmdbReplica`; or the directory has a store without a cluster.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        connect: Callable[[bool], Awaitable[Journal]],
        settings: ReplicaSettings,
        *,
        notify: Notify,
        appended: Appended = lambda grown: None,
        role_changed: Callable[[Role, Lease | None], None] = lambda role, lease: None,
        catalog_changed: Callable[[], None] = lambda: None,
        loaded: Callable[[], None] = lambda: None,
        cluster_id: str = "",
        cluster: str = "",
        servers_sync: bool = False,
        flush_interval: float = 1.0,
        max_memory: int = MAX_MEMORY_BYTES,
        kind: str = "",
    ) -> None:
        path = Path(directory)
        self._directory = StoreDirectory(
            path, kind, cluster_id=cluster_id, cluster=cluster
        )  # no other program opens it
        self._notify = notify
        self._appended = appended
        self._role_changed = role_changed
        self._catalog_changed = catalog_changed
        self._loaded = loaded
        self._connect = connect
        self._settings = replace(settings, directory=settings.directory or path)
        self._servers_sync = servers_sync
        self._broken: BaseException | None = None
        self._unconnected = NOT_CONNECTED  # while there is no role machine
        self._others_led = True  # since this node led, so that they have assigned ids of transient topics
        self._closed = False
        self._inbox: deque[Write] = deque()
        self._scheduled = False
        self._machine: RoleMachine | None = None
        self._members = Members(settings.node, settings.endpoints, exclusive=settings.exclusive)
        self._ending = asyncio.Event()
        self._tried = threading.Event()  # the first attempt to connect has ended

        def opened() -> LmdbReplica:
            return LmdbReplica(
                path / REPLICA,
                notify=self._finished,
                appended=appended,
                cluster_id=cluster_id,
                cluster=cluster,
                flush_interval=flush_interval,
                max_memory=max_memory,
                kind=kind,
            )

        try:
            self._local = _LocalReplica(path / REPLICA, opened, self._report_loaded, kind)
        except BaseException:
            self._directory.release()
            raise
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="omq-store-replication", daemon=True)
        self._thread.start()

    # The cluster

    @property
    def leading(self) -> bool:
        """Returns whether this node has the role of the leader. Its lease may be over: see `is_leader_now`."""
        return self._machine is not None and self._machine.role is Role.LEADER

    def is_leader_now(self) -> bool:
        """Returns whether this node leads, by its clock. Call it before an answer that only the leader may give."""
        return self._machine is not None and self._machine.is_leader_now()

    @property
    def lease(self) -> Lease | None:
        """The lease in force, as far as this node knows."""
        return None if self._machine is None else self._machine.lease

    @property
    def position(self) -> int:
        """The sequence of the last entry of the journal that this node has applied."""
        return self._local.position[0]

    @property
    def members(self) -> dict[str, list[str]]:
        """The endpoints of the nodes that have announced themselves lately, and of this one."""
        return self._members.endpoints

    @property
    def conflict(self) -> str:
        """A sentence about other nodes with an endpoint of this one; empty without one."""
        return self._members.conflict

    @property
    def trouble(self) -> str:
        """The reason for which this node takes no part in the cluster now; empty if it does."""
        store = self._local.store
        if (broken := self._broken or store.broken) is not None:
            return str(broken) or type(broken).__name__
        return store.shortage or (self._unconnected if self._machine is None else self._machine.trouble)

    @property
    def stalled(self) -> bool:
        """Returns whether entries, and the answers to their writes, wait for space on the disk."""
        return self._local.stalled

    def check_journal(self, seconds: float) -> None:
        """Waits for the first attempt to connect to the journal.

        Args:
            seconds: The longest wait.

        Raises:
            StoreError: The journal needs an operator. That it is not available now is not an error.
        """
        self._tried.wait(seconds)
        if self._broken is not None:
            raise self._broken

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._take_part())
        except StoreError as error:
            log.critical(
                "node %s takes no part in the cluster, and has applied the entries up to %d: %s",
                self._settings.node,
                self.position,
                error,
            )
            self._broken = without_traceback(error)
        except BaseException as error:
            log.exception("node %s takes no part in the cluster", self._settings.node)
            self._broken = without_traceback(error)
        finally:
            self._machine = None
            self._tried.set()
            self._loop.close()
            self._take_inbox()

    async def _take_part(self) -> None:
        journal = await self._connected()
        if journal is None:
            return
        announcing = asyncio.ensure_future(self._members.run(journal))
        try:
            self._machine = RoleMachine(
                self._settings, journal, self._local, finished=self._return, role_changed=self._take_role
            )
            if self._closed:
                return
            await self._machine.run()
        finally:
            announcing.cancel()
            await asyncio.wait([announcing])
            await journal.close()

    async def _connected(self) -> Journal | None:
        """Connects to the journal; returns `None` if the store is closed before."""
        while not self._closed:
            try:
                journal = await self._connect(not self.position)  # what this node has applied was in a journal
                self._tried.set()
                return journal
            except JournalUnavailable as error:
                if (reason := f"{NOT_CONNECTED}: {error}") != self._unconnected:
                    self._unconnected = reason
                    log.warning("node %s: %s", self._settings.node, error)
                self._tried.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), MAX_RETRY_DELAY_S)
        return None

    def _take_role(self, role: Role, lease: Lease | None) -> None:
        """Takes a new role or lease. A new leader gives no id of a transient topic that another one has given."""
        assert self._machine is not None
        if lease is not None and lease.node != self._settings.node:
            self._others_led = True
        if role is Role.LEADER and self._others_led:
            self._local.store.restart_transient(self._machine.term * TRANSIENT_IDS)
            self._others_led = False
        self._role_changed(role, lease)

    def _report_loaded(self, store: LmdbReplica) -> None:
        """Reports the state that a snapshot has brought."""
        self._others_led = True
        self._loaded()
        self._appended({topic.id: topic.last for topic in store.topics()})

    # Results

    def _finished(self, writes: list[Write]) -> None:
        """Takes finished writes of the local store, in its thread."""
        rest = []
        changed = False
        for write in writes:
            if isinstance(write, ApplyEntry):
                changed = changed or any(_changes_catalog(one) for one in write.writes)
                applied, loop, done = write.context
                if applied is not None:
                    applied(write.writes, write.error)
                with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for it
                    loop.call_soon_threadsafe(_resolve, done, write.error)
            else:
                rest.append(write)
        if rest:
            self._notify(rest)
        if changed:
            self._catalog_changed()

    def _return(self, writes: list[Write]) -> None:
        """Returns finished writes to the caller."""
        returned = [_original(write) for write in writes if write.context is not UPKEEP]
        if returned:
            self._notify(returned)

    # Store

    @property
    def id(self) -> str:
        return self._local.store.id

    @property
    def findings(self) -> list[str]:
        machine = self._machine
        failure = "" if machine is None else machine.snapshot_failure
        return [*self._local.store.findings, *([failure] if failure else [])]

    @property
    def refused(self) -> dict[str, DamagedError]:
        return self._local.store.refused

    @property
    def broken(self) -> BaseException | None:
        return self._broken or self._local.store.broken

    @property
    def full(self) -> bool:
        return self._local.store.full

    def submit(self, write: Write) -> None:
        self.submit_many([write])

    def submit_many(self, writes: Iterable[Write]) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        local = []
        for write in writes:
            if self._local.store.is_local(write):
                local.append(write)
            else:
                self._inbox.append(_proposed(write))
        if local:
            self._local.store.submit_many(local)
        if self._inbox and not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._take_inbox)
            except RuntimeError:  # the loop has ended
                self._take_inbox()

    def _take_inbox(self) -> None:
        """Passes the submitted writes to the role machine."""
        self._scheduled = False  # a write that is submitted from here on schedules a call again
        writes = []
        while self._inbox:
            writes.append(self._inbox.popleft())
        machine = self._machine
        accepted: list[Write] = []
        refused: list[Write] = []
        for write in writes:
            write.error = self._refusal(write, machine)
            (accepted if write.error is None else refused).append(write)
        if machine is not None:
            machine.submit(accepted)
        for write in refused:
            write.done = True
        self._return(refused)

    def _refusal(self, write: Write, machine: RoleMachine | None) -> BaseException | None:
        """Returns the error of a write that is not passed to the role machine; `None` if it is."""
        if machine is None:
            return self._broken or (StoreClosed("the store is closed") if self._closed else NotLeader())
        if not isinstance(write, MakeTopic) or write.persistence != "strong" or self._servers_sync:
            return None
        if any(topic.name == write.name for topic in self._local.store.topics()):
            return None  # it is found
        return StoreError(UNSYNCED.format(write.name))

    def write_at_once(self, writes: list[Write], *, allow_wal: bool = False) -> bool:
        return False

    def catch_up(self) -> None:
        pass

    def topics(self) -> list[TopicState]:
        return self._local.store.topics()

    def topic(self, topic_id: int) -> TopicState:
        return self._local.store.topic(topic_id)

    def read(self, topic_id: int) -> AbstractContextManager[Reader]:
        return self._local.store.read(topic_id)

    def cursors(self, topic_id: int) -> dict[str, int]:
        return self._local.store.cursors(topic_id)

    def all_cursors(self) -> dict[int, dict[str, int]]:
        return self._local.store.all_cursors()

    def ack_set(self, topic_id: int, group: str = "") -> AckSet:
        return self._local.store.ack_set(topic_id, group)

    def ack_floors(self, topic_id: int) -> dict[str, int]:
        return self._local.store.ack_floors(topic_id)

    def all_ack_floors(self) -> dict[int, dict[str, int]]:
        return self._local.store.all_ack_floors()

    def age(self, topic_id: int, id: int) -> float:
        return self._local.store.age(topic_id, id)

    def stats(self) -> Stats:
        return self._local.store.stats()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._begin_to_close)
        self._thread.join()
        self._local.store.close()
        self._directory.release()

    def _begin_to_close(self) -> None:
        self._ending.set()
        self._take_inbox()
        if self._machine is not None:
            self._machine.close()

    def __enter__(self) -> ReplicatedStore:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def _changes_catalog(write: Write) -> bool:
    return isinstance(write, MakeTopic | AlterTopic | DeleteTopic) and write.error is None


def _resolve(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _proposed(write: Write) -> Write:
    """Returns the write that is proposed for one: an entry has no functions."""
    if isinstance(write, CommitStages) and (write.may is not None or write.has_room is not None):
        return CommitStages(write.commit, write.stages, context=_CheckedCommit(write))
    return write


def _original(write: Write) -> Write:
    """Returns the write of the caller for one that was proposed, with its results."""
    if not isinstance(write.context, _CheckedCommit):
        return write
    assert isinstance(write, CommitStages)
    original = write.context.original
    for name in ("published", "names", "grown", "repeated", "error", "done"):
        setattr(original, name, getattr(write, name))
    return original
