"""The roles of a node of a cluster: it applies the entries of the leader, or leads while it has the lease.

`RoleMachine` belongs to one event loop. It reaches the journal, the local store, the time and other threads through
objects that tests replace.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol, TypeVar

from omq.executor import in_thread
from omq.store.clock import wall
from omq.store.errors import InDoubt, NotLeader, StoreError, StoreFailed, without_traceback
from omq.store.interface import Append, Notify, Stage, Write
from omq.store.replication.codec import Entry, Kind, Lease, decode, encode, encode_large, seal
from omq.store.replication.journal import (
    RESTORE,
    SERVERS_NEEDED,
    Fenced,
    Journal,
    JournalEntry,
    JournalUnavailable,
    Truncated,
)
from omq.store.replication.lease import ElectionTimer, HeldLease

log = logging.getLogger("omq.store")

MAX_ENTRY_WRITES: Final = 4096
#: Bytes of an entry, from which no further writes are added to it. With them, it is one message of a NATS server with
#: the default `max_payload` of 1 MiB.
ENTRY_BYTES: Final = 768 * 1024
WRITE_OVERHEAD_BYTES: Final = 64
#: Bytes of an entry, from which it is encoded in another thread.
LARGE_ENTRY_BYTES: Final = 4 * 1024 * 1024
#: Entries that are in the journal, and not applied here. Beyond that nothing is appended, or read.
MAX_UNAPPLIED_BY_LEADER: Final = 2
MAX_UNAPPLIED_BY_FOLLOWER: Final = 64
#: The same, beyond which a leader does not renew its lease: its store has applied nothing for ten times the lease.
MAX_UNAPPLIED_RENEWALS: Final = 30
RETRY_DELAY_S: Final = 0.05
MAX_RETRY_DELAY_S: Final = 1.0
#: The seconds after which a snapshot that has failed is repeated: at first, and at most.
MIN_SNAPSHOT_DELAY_S: Final = 10.0
MAX_SNAPSHOT_DELAY_S: Final = 600.0
#: The interval at which the leader checks that a new node could load a snapshot.
CHECK_INTERVAL_S: Final = 60.0
#: Bytes that the servers add to an entry, about.
ENTRY_OVERHEAD_BYTES: Final = 128
SNAPSHOT_PREFIX: Final = "snapshot-"  # of the directories in which snapshots are made and received

NO_ANSWER: Final = f"the journal does not answer: {SERVERS_NEEDED}"
REPLACED: Final = (
    "its servers have lost entries, or the journal was replaced. If another node leads and has all messages, move the "
    f"directory of this node away, so that it loads a snapshot; otherwise {RESTORE}"
)

_T = TypeVar("_T")
#: Takes the writes of an entry once it is applied, or with the error for which it is not.
Applied = Callable[[list[Write], BaseException | None], None]


class Role(Enum):
    """The role of a node."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class LocalStore(Protocol):
    """The store of this node.

    Attributes:
        position: The sequence of the last entry that was applied, and the term then; zeros before the first one.
        timestamp: The timestamp of that entry.
        stalled: Entries wait for space on the disk.
    """

    @property
    def position(self) -> tuple[int, int]: ...

    @property
    def timestamp(self) -> int: ...

    @property
    def stalled(self) -> bool: ...

    def apply(self, sequence: int, entry: Entry, applied: Applied | None = None) -> Awaitable[None]:
        """Begins to apply an entry after all earlier ones; it is applied once the result is awaited.

        Args:
            sequence: The sequence of the entry.
            entry: The entry.
            applied: Called with its writes once they have their results, in any thread.

        Raises:
            StoreError: From the awaitable: the entry is not applied, and none will be.
        """
        ...

    def needs_check(self, write: Write) -> bool:
        """Returns whether `check` decides about a write."""
        ...

    def check(self, write: Write) -> None:
        """Decides whether a write may be proposed. All earlier entries are applied.

        Raises:
            StoreError: It may not.
        """
        ...

    def upkeep(self) -> list[Write]:
        """Returns the writes by which the leader drops what is too old."""
        ...

    async def snapshot(self, target: Path) -> int:
        """Copies the store to a new directory; returns the sequence of the last entry in the copy."""
        ...

    async def load(self, directory: Path) -> None:
        """Replaces the state of the store by a snapshot."""
        ...


class NodeClock:
    """The clock of a node: seconds that advance in sleep too, and no change of the system's time affects."""

    def now(self) -> float:
        """Returns its time in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def wait(self, tasks: Iterable[asyncio.Future[Any]], until: float) -> None:
        """Waits until one of these tasks is done, or until a time of this clock."""
        waiting = list(tasks)
        timeout = None if until == float("inf") else max(until - self.now(), 0.0)
        if waiting:
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout or 0.0)

    def call(self, function: Callable[..., _T], *arguments: object) -> asyncio.Future[_T]:
        """Makes a call that takes long, in another thread."""
        return in_thread(function, *arguments)


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """The settings of a node.

    Attributes:
        node: The id of the node, unique in the cluster.
        endpoints: Where clients reach the node.
        exclusive: No other node has one of these endpoints.
        upkeep_interval: The seconds between two checks for what is too old.
        snapshot_bytes: The bytes of entries after which a snapshot is made and the journal truncated; 0: never.
        directory: Where snapshots are made and received; `None`: the system's directory for temporary files.
    """

    node: str
    endpoints: tuple[str, ...] = ()
    _: KW_ONLY
    exclusive: bool = True
    upkeep_interval: float = 1.0
    snapshot_bytes: int = 0
    directory: Path | None = None


class _LeaseOver(Exception):
    """Raised where the leader waits, when its lease is over."""


class _Superseded(Exception):
    """Raised where the leader reads the journal, when another node has a later term."""


@dataclass(slots=True)
class _Proposal:
    """The entry in flight.

    Attributes:
        entry: The entry.
        payload: Its bytes.
        in_doubt: True while it may be in the journal without an ack.
    """

    entry: Entry
    payload: bytes | bytearray
    in_doubt: bool = field(default=False)


class RoleMachine:
    """A node of a cluster.

    Args:
        settings: The settings.
        journal: The journal.
        local: The store of this node.
        finished: Called with finished writes, in the thread of the loop or of the local store.
        role_changed: Called with the role, and the lease in force if it is known.
        clock: The clock of this node.

    Attributes:
        role: The role.
        term: The term of the last entry that was read.
        lease: The lease of that term; `None` if it is not known.
        position: The sequence of the last entry that was read, or appended by this node.
        trouble: The reason for which this node takes no part in the cluster now; empty if it does.
        snapshot_failure: The reason for which the last snapshot has failed; empty without one.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        journal: Journal,
        local: LocalStore,
        *,
        finished: Notify,
        role_changed: Callable[[Role, Lease | None], None] = lambda role, lease: None,
        clock: NodeClock | None = None,
    ) -> None:
        self.role = Role.FOLLOWER
        self.lease: Lease | None = None
        self.trouble = ""
        self.snapshot_failure = ""
        self.position, self.term = local.position
        self._settings = settings
        self._journal = journal
        self._local = local
        self._finished = finished
        self._role_changed = role_changed
        self._clock = clock or NodeClock()
        self._timestamp = local.timestamp
        self._timestamp_at = self._clock.now()  # when this node had it
        self._held = HeldLease(journal.lease)
        self._timer = ElectionTimer(self.position, self._clock.now())
        self._read = 0  # the sequence of the last chunk that was read, of an entry that may continue
        self._own_term = -1  # the last term that this node has won since it was started
        self._queue: deque[Write] = deque()
        self._wakeup = asyncio.Event()
        self._closing = asyncio.Event()
        self._proposal: _Proposal | None = None
        self._unapplied: deque[asyncio.Future[None]] = deque()
        self._checked: Write | None = None  # a write that `LocalStore.check` has permitted
        self._journal_bytes = 0  # of entries since the last snapshot, as the leader counts them
        self._snapshot: asyncio.Task[None] | None = None
        self._snapshot_delay = MIN_SNAPSHOT_DELAY_S
        self._next_snapshot = self._clock.now()
        self._next_upkeep = self._clock.now()

    # The interface of the store

    def is_leader_now(self) -> bool:
        """Returns whether this node leads, by its clock. Any thread may call it."""
        return self._clock.now() < self._held.end

    def submit(self, writes: Iterable[Write]) -> None:
        """Takes writes to replicate; fails them if this node does not lead."""
        self._queue.extend(writes)
        if self.role is Role.LEADER:
            self._wakeup.set()
        else:
            self._refuse_queued()

    def close(self) -> None:
        """Begins to close: a leader appends the submitted writes and resigns, and `run` returns."""
        self._closing.set()
        self._wakeup.set()

    async def run(self) -> None:
        """Takes part in the cluster until `close` is called.

        Raises:
            StoreError: This node cannot apply the journal.
        """
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while not self._closing.is_set():
                following = asyncio.ensure_future(self._follow())
                try:
                    await self._clock.wait([following, closing], float("inf"))
                    if not following.done():
                        break
                    since = following.result()
                finally:
                    await _cancel(following)
                await self._lead(since)
        finally:
            await _cancel(closing)
            if self._snapshot is not None:
                await _cancel(self._snapshot)
            self._step_down()
            for unapplied in self._unapplied:
                unapplied.cancel()  # the store still answers the writes

    # Both roles

    def _set_role(self, role: Role, *, new_lease: bool = False) -> None:
        if role is not self.role or new_lease:
            self.role = role
            log.info("node %s: %s in term %d", self._settings.node, role.value, self.term)
            self._role_changed(role, self.lease)

    async def _call(self, call: Coroutine[Any, Any, _T], until: float | None = None) -> _T:
        """Calls the journal; raises `_LeaseOver` if it has not answered until then, or to the end of the lease."""
        task = asyncio.ensure_future(call)
        try:
            while True:
                end = self._held.end if until is None else until
                await self._clock.wait([task], end)
                if task.done():
                    return task.result()
                if until is not None or self._held.end <= end:  # the call has not renewed the lease
                    raise _LeaseOver
        finally:
            await _cancel(task)

    def _absorb(self, read: JournalEntry) -> bool:
        """Begins to apply an entry that was read; returns whether it begins a term."""
        if read.payload == b"":
            self.position = read.sequence
            return False
        self._timer.received(read.sequence, self._clock.now())
        if read.payload is None:
            self._read = read.sequence
            return False
        proposal = self._proposal
        own = proposal is not None and proposal.payload == read.payload
        if proposal is not None and own:
            entry, self._proposal = proposal.entry, None
        else:
            entry = decode(read.payload)
        if entry.previous != self._timestamp:
            raise StoreFailed(
                f"the entry {read.sequence} of the journal follows another one than {self.position}, which this node "
                f"has applied: {REPLACED}"
            )
        is_lease, lease = entry.kind is Kind.LEASE, self.lease
        begins = is_lease and entry.term > self.term
        if not begins and (entry.term != self.term or (is_lease and lease and lease.node != _node_of(entry))):
            raise StoreFailed(
                f"the entry {read.sequence} of the journal has the term {entry.term}, and an earlier one has begun the "
                f"term {self.term}: another program has written to the journal"
            )
        if is_lease:
            self.term, self.lease = entry.term, entry.lease
        self._apply(read.sequence, entry, len(read.payload), answers=own)
        return begins

    def _apply(self, sequence: int, entry: Entry, size: int, *, answers: bool) -> None:
        """Begins to apply an entry that is in the journal.

        Args:
            sequence: Its sequence.
            entry: The entry.
            size: Its bytes.
            answers: Its writes are returned once that is done.
        """
        self.position = sequence
        self._timestamp = entry.timestamp = max(self._timestamp, entry.timestamp)
        self._timestamp_at = self._clock.now()
        entry.term = self.term
        self._journal_bytes += size + ENTRY_OVERHEAD_BYTES
        done = asyncio.ensure_future(self._local.apply(sequence, entry, self._answer if answers else None))
        done.add_done_callback(_handled)
        self._unapplied.append(done)

    def _answer(self, writes: list[Write], error: BaseException | None) -> None:
        """Returns the writes of an entry of this node."""
        if error is None:
            self._return(writes)
        else:
            self._fail(writes, InDoubt(f"the write is replicated, but this node could not apply it: {error}"))

    def _return(self, writes: list[Write]) -> None:
        for write in writes:
            write.done = True
        if writes:
            self._finished(writes)

    async def _applied(self, left: int) -> None:
        """Waits until at most `left` entries are to be applied.

        Raises:
            StoreError: One cannot be applied.
        """
        while self._unapplied and (self._unapplied[0].done() or len(self._unapplied) > left):
            first = self._unapplied[0]
            if not first.done():
                await self._clock.wait([first], float("inf"))
            first.result()
            self._unapplied.popleft()

    def _lease_entry(self, term: int, duration: float) -> Entry:
        lease = Lease(self._settings.node, self._settings.endpoints, int(duration * 1e6))
        return Entry(Kind.LEASE, term, self._next_timestamp(), lease=lease, previous=self._timestamp)

    def _next_timestamp(self) -> int:
        """Returns the time of the cluster's clock, which ages follow: no change of a system's time affects them.

        It begins at the time of a system, advances with the clock of the leader, and stands still without one.
        """
        if not self._timestamp:
            return wall()
        return self._timestamp + max(int((self._clock.now() - self._timestamp_at) * 1e6), 1)

    def _check_end(self, last: int) -> int:
        """Returns a result of `Journal.last`; raises `StoreFailed` unless it is above what this node has applied."""
        if last <= self.position:
            raise StoreFailed(
                f"the journal ends with the entry {last}, and this node has applied the entry {self.position}: "
                f"{REPLACED}"
            )
        return last

    async def _check_applied(self) -> None:
        """Raises `StoreFailed` if the journal has another entry in place of the last one that this node has applied.

        A journal that was replaced, or restored from a backup, may have grown beyond it again.
        """
        await self._applied(0)
        sequence, _ = self._local.position
        if not sequence:
            return
        payload = await self._journal.entry(sequence)  # a large one takes longer than a lease
        if payload is None:
            return
        if payload:
            entry = decode(payload)
            if max(entry.timestamp, entry.previous) == self._local.timestamp:
                return
        raise StoreFailed(f"the journal has another entry {sequence} than this node has applied: {REPLACED}")

    # The follower

    async def _follow(self) -> float:
        """Applies the entries of the journal until this node has the lease; returns the time from which it counts."""
        self._set_role(Role.FOLLOWER)
        claims: dict[bytes, float] = {}  # the times at which they were sent
        delay = RETRY_DELAY_S
        while True:
            entries = _EntryReader(self._journal.read(self.position), self._clock)
            try:
                self._check_end(await self._call(self._journal.last(), self._clock.now() + self._journal.lease))
                await self._check_applied()
                while True:
                    read = await entries.next(self._claim_at())
                    if read is None:
                        await self._applied(0)  # a node that cannot apply must not lead
                        if self._claim_at() <= self._clock.now():
                            await self._claim(claims)
                        continue
                    delay, self.trouble = RETRY_DELAY_S, ""
                    if self._absorb(read):
                        if (sent := claims.get(read.payload or b"")) is not None:
                            self._own_term = self.term
                            await self._applied(0)
                            return sent
                        claims.clear()
                        self._set_role(Role.FOLLOWER, new_lease=True)
                    elif read.payload != b"":
                        self._set_role(Role.FOLLOWER)  # another node leads, and has fenced a claim of this one
                    await self._applied(MAX_UNAPPLIED_BY_FOLLOWER)
            except Truncated as error:
                if not await self._load_snapshot(error.first):
                    await self._pause(delay)
            except (JournalUnavailable, _LeaseOver) as error:
                self._report(str(error) or self._journal.failure or NO_ANSWER)
                await self._pause(delay)
            finally:
                await entries.close()
            delay = min(2 * delay, MAX_RETRY_DELAY_S)

    def _claim_at(self) -> float:
        """Returns the time at which this node claims the lease, if no entry arrives before."""
        if max(self.position, self._read) < self._timer.base:
            return float("inf")  # there are entries that it has not read
        if self._own_term == self.term:
            return self._timer.due(0)  # the lease in force was its own, so no other node answers
        lease = self.lease
        return self._timer.due(self._journal.lease if lease is None else lease.duration_us / 1e6)

    async def _claim(self, claims: dict[bytes, float]) -> None:
        """Appends a lease of this node, unless the journal has another entry meanwhile, or a chunk of one.

        This node has read all chunks up to `ElectionTimer.base`, so no other one has begun the term. An entry that is
        not finished there never will be.
        """
        self._set_role(Role.CANDIDATE)
        lease, timer, now = self._journal.lease, self._timer, self._clock.now()
        payload = encode(self._lease_entry(self.term + 1, lease))
        claims[payload] = now
        timer.claimed(now, lease)
        until = now + lease
        try:
            last = await self._call(self._journal.append(payload, timer.base), until)
        except Fenced as fenced:
            del claims[payload]
            last = fenced.last
            if last <= timer.base:
                try:
                    # This interrupts an entry in chunks.
                    last = self._check_end(await self._call(self._journal.last(), until))
                except (JournalUnavailable, _LeaseOver):
                    return
        except (JournalUnavailable, _LeaseOver) as error:
            self._report(str(error) or self._journal.failure or NO_ANSWER)
            return  # if it was stored, it will be read
        timer.learn(last, self._clock.now())

    async def _load_snapshot(self, first: int) -> bool:
        """Loads the newest snapshot, as the journal begins at `first`; returns whether that was possible."""
        await self._applied(0)
        with TemporaryDirectory(dir=self._settings.directory, prefix=SNAPSHOT_PREFIX) as directory:
            target = Path(directory) / "snapshot"
            try:
                position = await self._journal.get_snapshot(target)
            except JournalUnavailable as error:
                self._report(str(error))
                return False
            if position is None or position <= self.position or position + 1 < first:
                self._report(
                    f"the journal begins with the entry {first}, this node has applied {self.position}, and the newest "
                    f"snapshot reaches {'nothing' if position is None else position}"
                )
                return False
            await self._local.load(target)
        self.position, self.term = self._local.position
        self._timestamp, self.lease = self._local.timestamp, None
        self._timestamp_at = self._clock.now()
        self._timer.learn(self.position, self._clock.now())
        log.warning("node %s: loaded a snapshot up to the entry %d", self._settings.node, self.position)
        return True

    async def _pause(self, seconds: float) -> None:
        await self._clock.wait([], self._clock.now() + seconds)

    def _report(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            log.warning("node %s: %s", self._settings.node, trouble)

    # The leader

    async def _lead(self, since: float) -> None:
        """Appends writes until the lease is over, or another node has it.

        Args:
            since: The time from which the lease counts.
        """
        held, clock = self._held, self._clock
        held.renew(since)
        self._next_upkeep = clock.now()
        self._journal_bytes = 0
        watching = asyncio.ensure_future(self._watch_journal())
        try:
            if clock.now() < held.end:
                self._set_role(Role.LEADER)
            while True:
                await self._applied_by_leader(MAX_UNAPPLIED_BY_LEADER)
                if clock.now() >= held.end:
                    raise _LeaseOver
                if clock.now() >= self._next_upkeep:
                    self._next_upkeep = clock.now() + self._settings.upkeep_interval
                    self._queue.extend(self._local.upkeep())
                if self._queue:
                    if (entry := await self._gather()) is not None:
                        await self._append(entry)
                elif self._closing.is_set():
                    await self._resign()
                    return
                elif clock.now() >= held.renew_at:
                    await self._append(self._lease_entry(self.term, held.duration))
                else:
                    await self._idle(min(held.renew_at, self._next_upkeep))
                self._make_snapshot()
        except (_LeaseOver, _Superseded):
            pass
        finally:
            self._step_down()
            await _cancel(watching)

    async def _applied_by_leader(self, left: int) -> None:
        """Waits until at most `left` of the entries are to be applied, and renews the lease meanwhile.

        A large entry may take long. A store that does not apply it has to leave the lead to another node.
        """
        if len(self._unapplied) > left:
            await self._renewing_until(self._unapplied[-1 - left])
        await self._applied(len(self._unapplied))

    async def _renewing_until(self, awaited: asyncio.Future[Any]) -> None:
        """Waits for something that takes long, and renews the lease meanwhile."""
        held, clock = self._held, self._clock
        while not awaited.done():
            if clock.now() >= held.end:
                raise _LeaseOver
            if self._local.stalled or len(self._unapplied) > MAX_UNAPPLIED_RENEWALS:
                await clock.wait([awaited], held.end)
            elif clock.now() >= held.renew_at:
                await self._append(self._lease_entry(self.term, held.duration))
            else:
                await clock.wait([awaited], held.renew_at)

    async def _idle(self, until: float) -> None:
        """Waits for writes."""
        self._wakeup.clear()
        if self._queue or self._closing.is_set():
            return
        waiting = asyncio.ensure_future(self._wakeup.wait())
        try:
            await self._clock.wait([waiting], until)
        finally:
            await _cancel(waiting)

    async def _gather(self) -> Entry | None:
        """Returns an entry of queued writes; `None` if they have failed."""
        entry = Entry(Kind.WRITES, self.term, self._next_timestamp())
        size = 0
        while self._queue and size < ENTRY_BYTES and len(entry.writes) < MAX_ENTRY_WRITES:
            write = self._queue[0]
            if write is not self._checked and self._local.needs_check(write):
                if entry.writes:
                    break  # it is checked once these are applied
                await self._applied_by_leader(0)
                try:
                    self._local.check(write)
                except StoreError as error:
                    self._fail([self._queue.popleft()], error)
                    continue
                self._checked = write
            entry.writes.append(self._queue.popleft())
            size += _size_of(write)
        return entry if entry.writes else None

    async def _append(self, entry: Entry) -> None:
        """Appends an entry, and begins to apply it.

        Raises:
            _LeaseOver: The lease is over, and it is not known whether the entry is in the journal.
            _Superseded: Another node has the lease, and the entry is not in the journal.
        """
        sequence = 0
        large = sum(map(_size_of, entry.writes)) >= LARGE_ENTRY_BYTES
        encoded = await self._encode_large(entry) if large else None
        while not sequence:
            entry.previous, entry.timestamp, entry.wall = self._timestamp, self._next_timestamp(), wall()
            payload: bytes | bytearray
            try:
                if encoded is None:
                    payload = encode(entry)
                else:
                    seal(payload := encoded, entry)
            except StoreError as error:
                self._drop_invalid(entry, error)
                return
            proposal = self._proposal = _Proposal(entry, payload, in_doubt=True)
            sent = self._clock.now()
            try:
                sequence = await self._call(self._journal.append(payload, self.position, self._sending))
            except (Fenced, JournalUnavailable) as error:
                proposal.in_doubt = isinstance(error, JournalUnavailable)
                await self._resolve()
                if self._proposal is None:
                    self._held.renew(sent)
                    return  # it was read
        self._proposal = None
        self._timer.learn(sequence, self._clock.now())
        self._apply(sequence, entry, len(payload), answers=True)

    async def _encode_large(self, entry: Entry) -> bytearray | None:
        """Encodes an entry in another thread, and renews the lease meanwhile; returns `None` if it is not valid."""
        encoding = self._clock.call(encode_large, entry)
        encoding.add_done_callback(_handled)
        try:
            await self._renewing_until(encoding)
        except BaseException:
            self._queue.extendleft(reversed(entry.writes))  # they are refused
            raise
        return None if encoding.exception() else encoding.result()

    def _sending(self) -> Callable[[], None]:
        """Returns what renews the lease once a chunk is stored that is sent after this call.

        A claim that follows the chunk waits from a time at which its node knew the chunk.
        """
        return partial(self._held.renew, self._clock.now())

    async def _resign(self) -> None:
        """Ends the lease, and lets another node claim it at once."""
        self._held.drop()
        try:
            payload = encode(self._lease_entry(self.term, 0))
            await self._call(self._journal.append(payload, self.position), self._clock.now() + self._journal.lease)
        except (Fenced, JournalUnavailable, _LeaseOver):
            pass  # the others wait for the end of the lease

    async def _resolve(self) -> None:
        """Reads the journal up to its end, so that it is known whether the entry in flight is there.

        `Journal.last` takes a sequence. So an entry that expected an earlier one cannot be stored later any more.
        """
        while True:
            try:
                await self._read_to(self._check_end(await self._call(self._journal.last())))
            except JournalUnavailable as error:
                self._report(str(error))
                await self._pause(RETRY_DELAY_S)
                if self._clock.now() >= self._held.end:
                    raise _LeaseOver from None
            else:
                break
        self.trouble = ""
        if self._proposal is not None:
            self._proposal.in_doubt = False

    async def _read_to(self, sequence: int) -> None:
        """Applies the entries up to this one."""
        entries = _EntryReader(self._journal.read(self.position), self._clock)
        try:
            while self.position < sequence:
                read = await entries.next(self._held.end)
                if read is None:
                    raise _LeaseOver
                if self._absorb(read):
                    if self._proposal is not None:
                        self._proposal.in_doubt = False  # another entry has its sequence
                    raise _Superseded
        except Truncated:
            raise _Superseded from None
        finally:
            await entries.close()

    def _drop_invalid(self, entry: Entry, error: StoreError) -> None:
        """Fails the writes that cannot be part of an entry, and queues the others again."""
        valid = []
        for write in entry.writes:
            try:
                encode(Entry(Kind.WRITES, 0, 0, [write]))
            except StoreError as own:
                self._fail([write], own)
            else:
                valid.append(write)
        if len(valid) == len(entry.writes):
            raise error
        self._queue.extendleft(reversed(valid))

    def _fail(self, writes: list[Write], error: StoreError) -> None:
        for write in writes:
            write.error = without_traceback(error)
        self._return(writes)

    def _step_down(self) -> None:
        """Ends the lease here, and fails the writes that are not in the journal."""
        self._held.drop()
        proposal, self._proposal = self._proposal, None
        if proposal is not None and proposal.entry.writes:
            doubt = InDoubt("it is unknown whether the write is replicated, as this node has lost its lease: repeat it")
            self._fail(proposal.entry.writes, doubt if proposal.in_doubt else self._not_leader())
        self._checked = None
        self._set_role(Role.FOLLOWER)
        self._refuse_queued()

    def _not_leader(self) -> NotLeader:
        lease = self.lease
        if lease is None or lease.node == self._settings.node:
            return NotLeader()
        return NotLeader(lease.node, lease.endpoints)

    def _refuse_queued(self) -> None:
        queued, self._queue = list(self._queue), deque()
        if queued:
            self._fail(queued, self._not_leader())

    # Snapshots

    async def _watch_journal(self) -> None:
        """Counts what the journal keeps, and checks it again and again."""
        if not self._settings.snapshot_bytes:
            return
        await self._count_kept()
        while True:
            await self._check_complete()
            await self._pause(CHECK_INTERVAL_S)

    async def _count_kept(self) -> None:
        """Adds the entries of earlier leaders since the last snapshot.

        They have truncated the journal up to the snapshot before that one, so it keeps `snapshot_bytes` more.
        """
        limit = self._settings.snapshot_bytes
        while True:
            try:
                size = await self._journal.size()
            except StoreError:
                await self._pause(MAX_RETRY_DELAY_S)
                continue
            if self._snapshot is None:
                self._journal_bytes += size if size < limit else size - limit
            return

    async def _check_complete(self) -> None:
        """Demands a snapshot if a new node could not come to the state of this one."""
        try:
            complete = await self._journal.is_complete()
        except StoreError:
            return
        if not complete and self._snapshot is None:
            log.warning(
                "node %s: entries of the journal are gone that no snapshot contains: its stream was purged, or the "
                "snapshot was deleted; this node stores a snapshot",
                self._settings.node,
            )
            self._journal_bytes = max(self._journal_bytes, self._settings.snapshot_bytes)

    def _make_snapshot(self) -> None:
        """Begins a snapshot if the journal has grown enough, or repeats one that has failed."""
        limit, now = self._settings.snapshot_bytes, self._clock.now()
        if self._snapshot is not None and self._snapshot.done():
            task, self._snapshot = self._snapshot, None
            if (error := task.exception()) is None:
                self.snapshot_failure, self._snapshot_delay = "", MIN_SNAPSHOT_DELAY_S
            else:
                self.snapshot_failure = f"the snapshot has failed, and the journal grows: {error}"
                log.warning("node %s: %s", self._settings.node, self.snapshot_failure)
                self._journal_bytes = max(self._journal_bytes, limit)
                self._next_snapshot = now + self._snapshot_delay
                self._snapshot_delay = min(2 * self._snapshot_delay, MAX_SNAPSHOT_DELAY_S)
        if limit and self._journal_bytes >= limit and self._snapshot is None and now >= self._next_snapshot:
            self._journal_bytes = 0
            self._snapshot = asyncio.ensure_future(self._store_snapshot())

    async def _store_snapshot(self) -> None:
        """Makes a snapshot, and truncates the journal up to the one before it."""
        with TemporaryDirectory(dir=self._settings.directory, prefix=SNAPSHOT_PREFIX) as directory:
            target = Path(directory) / "snapshot"
            position = await self._local.snapshot(target)
            if not self.is_leader_now():
                return
            replaced = await self._journal.put_snapshot(position, target)
        if replaced and self.is_leader_now():
            await self._journal.truncate(replaced + 1)


class _EntryReader:
    """Reads entries of the journal, with a limit of the time of each wait."""

    def __init__(self, entries: AsyncIterator[JournalEntry], clock: NodeClock) -> None:
        self._entries = entries
        self._clock = clock
        self._task: asyncio.Future[JournalEntry] | None = None

    async def next(self, until: float) -> JournalEntry | None:
        """Returns the next entry; `None` if there is none until then."""
        if self._task is None:
            self._task = asyncio.ensure_future(anext(self._entries))
        await self._clock.wait([self._task], until)
        if not self._task.done():
            return None
        task, self._task = self._task, None
        try:
            return task.result()
        except StopAsyncIteration:
            raise JournalUnavailable("the journal was closed") from None

    async def close(self) -> None:
        """Ends the read."""
        if self._task is not None:
            await _cancel(self._task)
        close = getattr(self._entries, "aclose", None)
        if close is not None:
            await close()


def _size_of(write: Write) -> int:
    """Returns the bytes that a write takes of an entry, about."""
    return WRITE_OVERHEAD_BYTES + (len(write.records) if isinstance(write, Append | Stage) else 0)


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancels a task, and waits until it has ended."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    else:
        _handled(task)


def _handled(task: asyncio.Future[Any]) -> None:
    """Takes the error of a task, which asyncio would log: it is handled, or nothing depends on it."""
    if not task.cancelled():
        task.exception()


def _node_of(entry: Entry) -> str:
    return "" if entry.lease is None else entry.lease.node
