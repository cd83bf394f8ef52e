"""The thread that writes an environment. It commits the writes that have gathered as one transaction."""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable
from typing import Final

import lmdb

from omq.store.errors import OutOfSpace, StoreClosed, StoreError, StoreFailed, UnknownTopic, without_traceback
from omq.store.interface import Append, Appended, Notify, Stage, Stats, Write
from omq.store.internal import ApplyRetention, LoggedAppend, PendingAppend
from omq.store.lmdb.applier import Applier
from omq.store.lmdb.environment import NO_SPACE, Environment
from omq.store.lmdb.wal import MAX_WRITE_BYTES, WriteAheadLog
from omq.unpatched import queue, threading

log = logging.getLogger("omq.store")

MAX_GROUP_WRITES: Final = 4096
#: Bytes of a group. One that fits in the processor's cache is written at twice the rate. Slow syncs get larger groups.
GROUP_BYTES: Final = 1024 * 1024
MAX_GROUP_BYTES: Final = 16 * GROUP_BYTES
QUICK_SYNC_S: Final = 0.002  # commits of one group that take longer have larger groups
#: Groups of this many bytes are committed without a delay, as writing them costs more than the sync.
MAX_DELAYED_BYTES: Final = 128 * 1024
MIN_DELETIONS: Final = 4  # the number of deletions for which a full disk must have space
PENDING_RETRY_DELAY_S: Final = 0.1
SYNC_RETRY_DELAY_S: Final = 1.0  # after a sync that has not freed enough pages
SYNC_BUCKETS_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
)
#: Writes that need space. On a full disk only these are refused.
SPACE_TAKING: Final = (Append, Stage)

#: The longest commit delay, as a part of the last commit's duration. One commit more costs all of that.
MAX_DELAY_RATIO: Final = 1.0
MAX_COMMIT_DELAY_S: Final = 0.005
#: Commits without a delay after a delay that was useless. The number doubles each time, up to this.
MAX_SKIPPED_COMMITS: Final = 64


class Latency:
    """The histogram of the durations of syncs."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * len(SYNC_BUCKETS_S)  # not cumulative

    def record(self, seconds: float) -> None:
        """Counts a sync that took `seconds`."""
        self.count += 1
        self.seconds += seconds
        for i, limit in enumerate(SYNC_BUCKETS_S):
            if seconds <= limit:
                self.buckets[i] += 1
                break

    def put(self, stats: Stats) -> None:
        """Adds the histogram to statistics, where buckets are cumulative."""
        stats.syncs += self.count
        stats.sync_seconds += self.seconds
        total = 0
        for limit, number in zip(SYNC_BUCKETS_S, self.buckets, strict=True):
            total += number
            stats.sync_buckets[limit] = stats.sync_buckets.get(limit, 0) + total


class _Group:
    """The writes that become one transaction.

    Args:
        room: The approximate limit of its size.

    Attributes:
        writes: The writes.
        records: The number of their messages.
        size: The bytes of these.
        last: True if the writer ends after this group.
    """

    def __init__(self, room: int) -> None:
        self.writes: list[Write] = []
        self.records = 0
        self.size = 0
        self.last = False
        self._room = room

    def add(self, write: Write | None) -> bool:
        """Adds a write, or the end (`None`); returns whether there is room for another write."""
        if write is None:
            self.last = True
            return False
        self.writes.append(write)
        if isinstance(write, SPACE_TAKING):
            self.size += len(write.records)
            self.records += write.count
        return self.size < self._room and len(self.writes) < MAX_GROUP_WRITES


class CommitDelay:
    """Estimates the commit delay, as producers that waited for the last commit are about to write again.

    A producer with 64 messages in flight sends one more for each answer. While a commit writes the first 16, the other
    48 arrive. Without a delay, the next commit has these 48, the one after it the next 16, and so on, and each costs a
    sync. So a commit waits for the number of records of the last commit plus those that arrived during it. If they do
    not arrive in time, the next commits have no delay.
    """

    def __init__(self) -> None:
        self._records = 0
        self._until = 0.0
        self._skips = 0
        self._skipped = 0

    def committed(self, records: int, seconds: float, now: float) -> None:
        """Takes the measurements of a finished commit.

        Args:
            records: The number of its records.
            seconds: Its duration.
            now: The time of its end.
        """
        self._records = records
        self._until = now + min(MAX_DELAY_RATIO * seconds, MAX_COMMIT_DELAY_S)

    def next_wait(self, came: int, now: float) -> tuple[int, float]:
        """Returns the number of records that the next commit waits for, and the longest wait in seconds.

        Args:
            came: The number of records that were there at the end of the last commit.
            now: The time.
        """
        if now >= self._until or not self._records:
            return came, 0.0
        if self._skipped < self._skips:
            self._skipped += 1
            return came, 0.0
        self._skipped = 0
        return self._records + came, self._until - now

    def record_wait(self, paid: bool) -> None:
        """Records whether the expected number of records arrived within the delay."""
        self._skips = 0 if paid else min(2 * self._skips + 1, MAX_SKIPPED_COMMITS)


class Writer:
    """Writes an environment, in a thread of its own.

    Args:
        name: The name of the thread.
        environment: The environment.
        applier: Applies writes to a transaction.
        wal: The write-ahead log of small appends, if the environment has one.
        notify: Called with finished writes.
        appended: Called with the last ids of the topics that have grown.
        committed: Called after each commit.
        failed: Called once, when the environment takes no more writes.
        sync: Syncs the environment, so that pages freed since the last sync can be reused. `None`: each commit syncs,
            and its writes are answered after that.

    Attributes:
        broken: The error after which it takes no writes; `None` while it takes them.
        pending: Appends to async topics that were answered, but found no space. They are tried before other writes,
            under the ids of their answers. There is at most one group: while there are any, further appends are
            answered after their commit.
        has_pending: There are pending appends.
        out_of_space: True after messages were refused for want of space, until there is space again.
        lost: The number of answered appends that were never written.
    """

    def __init__(
        self,
        name: str,
        environment: Environment,
        applier: Applier,
        *,
        wal: WriteAheadLog | None,
        notify: Notify,
        appended: Appended,
        committed: Callable[[], None],
        failed: Callable[[BaseException], None],
        sync: Callable[[], None] | None = None,
    ) -> None:
        self.environment = environment
        self.applier = applier
        self.broken: BaseException | None = None
        self.pending: list[PendingAppend] = []
        self.has_pending = self.out_of_space = False
        self.lost = 0
        self.latency = Latency()
        self.commits = self.full = self.appended = self.appended_bytes = self.duplicates = 0
        self.wal = wal
        self._notify = notify
        self._appended = appended
        self._committed = committed
        self._failed = failed
        self._sync = sync
        self._sync_next = 0.0  # the time from which the next sync for want of space is allowed
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._ended = False  # no more writes are taken
        self._group_bytes = GROUP_BYTES
        self._delay = CommitDelay()
        self._full_reason = ""  # the text of the error for want of space; empty while the data file can grow
        #: The measures taken for the current group on a full disk: 1: the reserve was released, 2: the environment was
        #: synced to free pages, 3: deletions are limited to `MIN_DELETIONS`.
        self._measures = 0
        self._pending_retry = 0.0  # when pending appends are retried
        self._writing = threading.Lock()  # held while this or a calling thread writes
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, write: Write) -> None:
        """Submits a write."""
        self._queue.put(write)

    def write_at_once(self, group: list[Write], *, allow_wal: bool = False) -> bool:
        """Writes a group in the calling thread and returns true, unless another write is in progress or queued.

        Args:
            group: The writes.
            allow_wal: Small appends may go to the write-ahead log alone. The caller calls `catch_up` once it is idle.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if self._ended or self.pending or not self._queue.empty():
                return False
            logged = self._log(group) if allow_wal else 0
            if logged < len(group):
                self._commit(group[logged:])
        finally:
            self._writing.release()
        return True

    def catch_up(self) -> None:
        """Commits the write-ahead log in the calling thread. If another thread commits, it includes the log already."""
        if self.wal is None or not self.wal.waiting or not self._writing.acquire(blocking=False):
            return
        try:
            if not self._ended:
                self._commit([])
        finally:
            self._writing.release()

    def end(self) -> None:
        """Waits until all submitted writes are applied, and ends the thread."""
        self._queue.put(None)
        self._thread.join()

    def abort(self, error: BaseException) -> None:
        """Refuses all further writes, after an error here or in another environment."""
        if self.broken is None:
            self.broken = error
            self._failed(error)

    def stats(self) -> Stats:
        """Returns the statistics so far."""
        sizes = self.environment.sizes()
        stats = Stats(*sizes, self.commits, self.appended, self.appended_bytes, self.duplicates, self.full)
        self.latency.put(stats)
        return stats

    def _run(self) -> None:
        while not self._ended:
            group = self._gather()
            with self._writing:
                if self.pending and (self._ended or time.monotonic() >= self._pending_retry):
                    self._write_pending()
                self._commit(group)
        left = []
        while True:
            try:
                write = self._queue.get_nowait()
            except queue.Empty:
                break
            if write is not None:
                left.append(write)
        self._fail_writes([*self.pending, *left], StoreClosed("the store is closed"))

    def _log(self, group: list[Write]) -> int:
        """Puts the leading small appends of a group into the write-ahead log and answers them; returns their number."""
        wal, logged = self.wal, 0
        if wal is None or self.broken is not None or self.out_of_space or self._full_reason:
            return 0
        for write in group:
            if type(write) is not Append or len(write.records) > MAX_WRITE_BYTES:
                break
            if not self.applier.assign_ids(write, wal.last.get(write.topic_id, 0)) or not wal.put(write):
                break
            logged += 1
        self._done(group[:logged])
        return logged

    def _commit(self, group: list[Write]) -> None:
        """Commits the write-ahead log and a group after it."""
        wal = self.wal
        if wal is not None and wal.waiting:
            group = [*wal.take(), *group]
        if group:
            self._write(group)
        if wal is not None and not self.pending and self.broken is None:
            wal.clear()
        self._submit_upkeep()

    def _submit_upkeep(self) -> None:
        """Submits the upkeep that a write has left: retention, and the end of old state."""
        if self.applier.has_backlog and self.broken is None:
            self._queue.put(ApplyRetention())
        if self.applier.next_expiry is not None and self.broken is None:
            self._queue.put(self.applier.next_expiry)
            self.applier.next_expiry = None

    def _gather(self) -> list[Write]:
        """Waits for a write; returns it with the writes that are queued or expected soon."""
        group = _Group(self._group_bytes)
        idle = self._queue.empty()
        more = group.add(self._queue.get())
        try:
            while more:
                more = group.add(self._queue.get(block=False))
        except queue.Empty:
            if self._sync is None:
                self._await_more(group, 0 if idle else group.records)
        self._ended = group.last
        return group.writes

    def _await_more(self, group: _Group, came: int) -> None:
        """Adds writes that arrive within the commit delay.

        Args:
            group: The group.
            came: The number of messages that were queued at the end of the last commit.
        """
        if group.size >= MAX_DELAYED_BYTES:
            return
        now = time.perf_counter()
        wanted, seconds = self._delay.next_wait(came, now)
        if wanted <= group.records:
            return
        more = True
        try:
            while more and group.records < wanted and group.size < MAX_DELAYED_BYTES:
                more = group.add(self._queue.get(timeout=max(0.0, now + seconds - time.perf_counter())))
        except queue.Empty:
            self._delay.record_wait(paid=False)
        else:
            self._delay.record_wait(paid=True)

    def _write(self, group: list[Write]) -> None:
        """Writes a group, in parts if it cannot be written as a whole."""
        if self.broken is not None:
            self._fail_writes(group, self._refusal())
            return
        size = sum(len(write.records) for write in group if isinstance(write, SPACE_TAKING))
        try:
            if not self._fits(size):
                if rest := self._refuse(group, OutOfSpace(self._full_reason)):
                    self._write(rest)
                return
            self._try(group)
            if not size:
                self._sync_next = 0.0  # the group may have freed pages
            if self.out_of_space and (size or (not self.applier.has_backlog and self._fits(GROUP_BYTES // 16))):
                self.out_of_space = False
        except lmdb.MapFullError:
            try:
                self.environment.grow()
            except (lmdb.Error, OSError, MemoryError) as error:
                self._without_space(group, OutOfSpace(f"{self.environment.path}: the map cannot grow: {error}"))
            else:
                self._write(group)
        except lmdb.Error as error:
            if reason := self._shortage(error):
                self._without_space(group, OutOfSpace(reason))
            elif isinstance(error, lmdb.TxnFullError) and len(group) > 1:
                self._halve(group)
            else:
                self._break(group, error)
        except OSError as error:
            self._break(group, error)
        except Exception as error:
            # A write that fails must not affect others.
            if len(group) > 1:
                self._halve(group)
            else:
                log.exception("a write failed")
                self._fail_writes(group, StoreError(f"{type(error).__name__}: {error}"))

    def _shortage(self, error: lmdb.Error) -> str:
        """Returns the text for an error for want of space; empty for another error."""
        code = getattr(error, "code", 0)
        if code not in NO_SPACE and not (code == errno.EIO and self.environment.is_full()):
            return ""
        return f"{NO_SPACE.get(code) or self.environment.shortage()}: {self.environment.path}"

    def _fits(self, size: int) -> bool:
        """Returns whether `size` bytes of messages leave room for deletions, if the data file cannot grow."""
        environment = self.environment
        if not self._full_reason:
            if not (size and environment.nears_limit(size)):
                return True
            self._full_reason = f"{NO_SPACE[errno.EFBIG]}: {environment.path}"
        spare = environment.free_bytes()
        # A deletion may change two pages, which LMDB copies before the old ones are free.
        self.applier.deletion_limit = MIN_DELETIONS if self._measures == 3 else max(MIN_DELETIONS, spare // (8 * 4096))
        if not size or spare >= environment.required_bytes(size):
            return True
        if not environment.has_room(environment.required_bytes(size)):
            return False
        self._full_reason = ""
        self.applier.deletion_limit = None
        return True

    def _halve(self, group: list[Write]) -> None:
        """Writes the halves of a group. Finding one bad write takes a logarithmic number of commits."""
        middle = len(group) // 2
        self._write(group[:middle])
        self._write(group[middle:])

    def _try(self, group: list[Write]) -> None:
        """Writes a group in one transaction. If this raises, nothing of the group is written."""
        applier, syncs = self.applier, self._sync is None
        transaction = self.environment.begin()
        try:
            applier.begin(transaction)
            for write in group:
                write.error = None
                try:
                    applier.apply(write)
                except StoreError as error:
                    write.error = without_traceback(error)
            applier.finish()
            if syncs:
                self.environment.check_path_cheaply()
                began = time.perf_counter()
            elif applier.has_async_appends and not self.pending:
                self._done(self._async_appends(group))
            transaction.commit()
        except BaseException:
            with contextlib.suppress(lmdb.Error):
                transaction.abort()
            self._rollback()
            raise
        if syncs:
            now = time.perf_counter()
            seconds = now - began
            self.latency.record(seconds)
            self._delay.committed(applier.appended, seconds, now)
            if applier.appended_bytes <= GROUP_BYTES:
                self._group_bytes = min(MAX_GROUP_BYTES, int(GROUP_BYTES * max(1.0, seconds / QUICK_SYNC_S)))
        self.commits += 1
        self._committed()
        self.appended += applier.appended
        self.appended_bytes += applier.appended_bytes
        self.duplicates += applier.duplicates
        grown = applier.committed()
        left = [write for write in group if not write.done]
        if len(left) < len(group) and not syncs:
            failed = [write for write in group if write.done and write.error is not None]
            self._keep_pending([write for write in failed if isinstance(write.error, OutOfSpace)])
            self._report_lost([write for write in failed if not isinstance(write.error, OutOfSpace | UnknownTopic)])
        if left:
            self._done(left)
        if grown:
            try:
                self._appended(grown)
            except Exception:
                log.exception("the callback for appended messages failed")

    def _rollback(self) -> None:
        """Rolls the applier back to the committed state, as it was before the transaction."""
        try:
            with self.environment.read() as reading:
                self.applier.rollback(reading)
        except Exception as error:
            self.abort(error)  # LMDB cannot read its file any more

    def _async_appends(self, group: list[Write]) -> list[Write]:
        """Returns the appends to async topics that have succeeded: they are answered before the commit."""
        topics = self.applier.topics
        return [
            write
            for write in group
            if isinstance(write, Append)
            and not write.done
            and write.error is None
            and topics[write.topic_id].persistence == "async"
        ]

    def _keep_pending(self, writes: list[Write]) -> None:
        """Keeps appends that were answered, but found no space."""
        if writes and not self.has_pending:
            log.error(
                "%s: no space for %d acknowledged writes; they are kept in memory until there is",
                self.environment.directory,
                len(writes),
            )
        for write in writes:
            if isinstance(write, Append):
                self.pending.append(write if isinstance(write, PendingAppend) else PendingAppend(write))
                self.applier.pending_topics.add(write.topic_id)
                self.has_pending = True
        self._pending_retry = time.monotonic() + PENDING_RETRY_DELAY_S

    def _write_pending(self) -> None:
        """Retries the pending appends."""
        pending, self.pending = self.pending, []
        self.applier.pending_topics.clear()
        self._write(list(pending))
        self.has_pending = bool(self.pending)
        if not self.has_pending and self.broken is None:
            log.warning("%s: %d acknowledged writes were written late", self.environment.directory, len(pending))

    def _done(self, group: list[Write]) -> None:
        """Returns writes to the caller."""
        for write in group:
            write.done = True
        if group:
            try:
                self._notify(group)
            except Exception:
                log.exception("the callback for finished writes failed")

    def _fail_writes(self, group: list[Write], error: BaseException) -> None:
        """Fails the writes of a group, and returns to the caller those that were not answered."""
        for write in group:
            write.error = error
        # The next opening of the store replays logged appends, so that they are not lost.
        self._report_lost([write for write in group if write.done and type(write) is not LoggedAppend])
        self._done([write for write in group if not write.done])

    def _report_lost(self, writes: list[Write]) -> None:
        """Reports that acknowledged writes are lost."""
        if writes:
            self.lost += len(writes)
            log.error(
                "%s: %d acknowledged writes are lost: %s", self.environment.directory, len(writes), writes[0].error
            )

    def _refusal(self) -> StoreError:
        return StoreFailed(f"the store takes no more writes after an error: {self.broken}")

    def _without_space(self, group: list[Write], error: OutOfSpace) -> None:
        """Retries a group after a sync that may free pages, or else only its writes that need no space."""
        now = time.monotonic()
        if self._sync is not None and now >= self._sync_next:
            self._sync_next = now + SYNC_RETRY_DELAY_S
            full = self.full
            self._sync()
            self._write(group)
            if self.full == full:
                self._sync_next = 0.0
            return
        rest = self._refuse(group, error)
        if rest and self._measures == 3:
            self._fail_writes(rest, error)
        elif rest:
            self._measures += 2 if self._measures and self._sync is None else 1
            if self._measures == 1:
                self.environment.release_reserve()
            elif self._measures == 2 and self._sync is not None:
                self._sync()
            self._write(rest)
            self._group_bytes = GROUP_BYTES
        self._measures = 0

    def _refuse(self, group: list[Write], error: OutOfSpace) -> list[Write]:
        """Fails the writes of a group that need space, and keeps the answered ones pending; returns the others."""
        self.full += 1
        self._full_reason = str(error)
        growing = [write for write in group if isinstance(write, SPACE_TAKING)]
        self._keep_pending([write for write in growing if write.done])
        self._fail_writes([write for write in growing if not write.done], error)
        self.out_of_space = self.out_of_space or bool(growing)
        return [write for write in group if not isinstance(write, SPACE_TAKING)]

    def _break(self, group: list[Write], error: BaseException) -> None:
        """Stops all writes after a failed write or sync: the state of the disk is unknown, so it is never retried."""
        log.critical("%s: a write failed, the store takes no more: %s", self.environment.directory, error)
        self.abort(error)
        self._fail_writes(group, self._refusal())
