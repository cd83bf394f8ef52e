"""The handle of a store in an event loop: batches writes, and returns their results in one call for each commit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from omq.executor import in_thread
from omq.store.errors import OutOfSpace, StagesFull, StoreError, StoreFailed
from omq.store.interface import Acknowledge, Appended, Notify, Store, Write
from omq.store.memory import MemoryStore
from omq.unpatched import queue, threading

#: Seconds between two looks whether the store can answer.
STALLED_INTERVAL_S: Final = 0.5

#: Seconds without a refusal after which a successful write means that there is space again.
_RECOVERY_DELAY_S = 10.0

_Write = TypeVar("_Write", bound=Write)


class AsyncStore:
    """Passes writes to the store, and their results to the callers. Belongs to one event loop.

    Writes of one turn of the loop are submitted together at its end. The store's thread returns the results of a commit
    with one `call_soon_threadsafe`.

    Args:
        grown: Called with the last ids of the topics that have grown, by topic id.
        log: Logs when the disk is full, has space again, or fails.
        server: The word for the server in the log, as in "until the broker is started again".
        error: Converts a store's error to the one that `do` raises.

    Attributes:
        grown: As the argument.
        store: The store, once it is open.
        waiting: Bytes that were submitted and are not answered.
    """

    store: Store

    def __init__(
        self,
        grown: Callable[[dict[int, int]], None],
        log: logging.Logger,
        server: str,
        error: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        self.waiting = 0
        self._full = False  # as the log has it
        self._refusing = False  # the last result was a refusal for want of space
        self._refused = 0.0  # when a write was last refused for want of space
        self._failed = False  # the store has failed, and that was logged
        self.grown = grown
        self._log = log
        self._server = server
        self._error = error
        self._unsubmitted: list[Write] = []
        self._outstanding = 0
        self._results: deque[list[Write] | dict[int, int]] = deque()
        self._scheduled = False
        self._thread = 0
        self._idle: list[asyncio.Future[None]] = []
        self._polls = False  # this thread reads `_results` next, so the loop need not be called
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes a thread in `wait_results`
        self._in_wait = False  # the thread is in `wait_results`

    async def open(self, opened: Callable[[Notify, Appended], Store]) -> None:
        """Opens the store in a thread, as it may have much to verify."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        opening = in_thread(opened, self._notify, self._appended)
        try:
            self.store = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread continues, and the store that it opens stays locked until it is closed.
            store = await opening
            await in_thread(store.close)
            raise

    async def close(self, stalled: Callable[[], bool] = lambda: False) -> None:
        """Waits for the answers to all submitted writes, and closes the store.

        Args:
            stalled: As in `drained`. The writes that are left fail.
        """
        await self.drained(stalled)
        if hasattr(self, "store"):
            await in_thread(self.store.close)
            self._handle_results()  # writes that failed because the store was closed

    async def drained(self, stalled: Callable[[], bool] = lambda: False) -> None:
        """Waits until every submitted write is answered.

        Args:
            stalled: Returns true when the store cannot answer them now; that ends the wait, too.
        """
        while self._outstanding and not stalled():
            idle = self._loop.create_future()
            self._idle.append(idle)
            try:
                await asyncio.wait([idle], timeout=STALLED_INTERVAL_S)
            finally:
                if not idle.done():
                    self._idle.remove(idle)

    # ------------------------------------------------------------------ out

    def in_memory(self, persistence: str) -> bool:
        """Returns whether topics of this persistence are kept in memory."""
        return persistence == "transient" or isinstance(self.store, MemoryStore)

    def submit(self, write: Write, done: Callable[[Any], None]) -> None:
        """Submits a write at the end of this turn. The loop calls *done* with the write once that is finished."""
        if not self._unsubmitted:
            self._loop.call_soon(self._end_turn)
        self.add(write, done)

    def add(self, write: Write, done: Callable[[Any], None]) -> None:
        """Adds a write to this turn's. The caller must call `flush` before it yields to the loop."""
        write.context = done
        self._outstanding += 1
        self._unsubmitted.append(write)

    def flush(self) -> None:
        """Submits this turn's writes."""
        out, self._unsubmitted = self._unsubmitted, []
        if not out:
            return
        try:
            self.store.submit_many(out)
        except StoreError as error:
            for write in out:
                write.error = error
            self._notify(out)

    def flush_at_once(self, seconds: float, *, allow_wal: bool = False) -> None:
        """Submits this turn's writes, and passes on their results.

        The store writes in this thread if it can; otherwise this thread waits for it (see `wait_results`).

        Args:
            seconds: The longest wait.
            allow_wal: Small appends may go to the write-ahead log alone, until `catch_up` is called.
        """
        if not self._write_here(allow_wal=allow_wal):
            self.flush()
            self.wait_results(seconds)

    def _end_turn(self) -> None:
        # A single ack takes less time here than its way to the store's thread, which would then compete for the GIL.
        if len(self._unsubmitted) != 1 or type(self._unsubmitted[0]) is not Acknowledge or not self._write_here():
            self.flush()

    def _write_here(self, *, allow_wal: bool = False) -> bool:
        """Writes this turn's writes in this thread; returns whether the store could."""
        out = self._unsubmitted
        if not out or self._outstanding != len(out):
            return False
        self._unsubmitted, self._polls = [], True
        try:
            done = self.store.write_at_once(out, allow_wal=allow_wal)
        except StoreError:
            done = False  # `flush` reports the error
        finally:
            self._polls = False
        if not done:
            self._unsubmitted = out
        if self._results:
            self._handle_results()
        return done

    def catch_up(self) -> None:
        """Applies the write-ahead log of the store in this thread, and passes on the results."""
        self._polls = True
        try:
            self.store.catch_up()
        finally:
            self._polls = False
        if self._results:
            self._handle_results()

    def wait_results(self, seconds: float) -> None:
        """Blocks this thread until the store returns results, and passes them on.

        An idle loop receives a commit sooner this way than through its selector.

        Args:
            seconds: The longest wait. The loop does not run meanwhile.
        """
        if not self._outstanding:
            return
        while not self._wakeups.empty():  # left from an earlier call
            self._wakeups.get()
        self._in_wait = self._polls = True
        try:
            if not self._results:
                with suppress(queue.Empty):
                    self._wakeups.get(timeout=seconds)
        finally:
            self._in_wait = self._polls = False
        if self._results:  # results that came while `_polls` was true have scheduled no call
            self._handle_results()

    async def do(self, write: _Write) -> _Write:
        """Submits a write and waits for it.

        Raises:
            StoreError: The write failed; the error as `error` converts it.
        """
        future: asyncio.Future[_Write] = self._loop.create_future()

        def done(write: _Write) -> None:
            if not future.done():
                future.set_result(write)

        self.submit(write, done)
        await future
        if write.error is not None:
            raise self._error(write.error)
        return write

    # ------------------------------------------------------------------ back

    def _notify(self, writes: list[Write]) -> None:
        """Handles finished writes. The store calls it, in any thread."""
        self._results.append(writes)
        self._schedule()

    def _appended(self, grown: dict[int, int]) -> None:
        """Handles appended records, their number by topic id. The store calls it, in any thread."""
        self._results.append(grown)
        self._schedule()

    def _schedule(self) -> None:
        if self._polls:
            if self._in_wait:
                self._wakeups.put(None)
            return
        # `_handle_results` clears the flag before it reads the results, so none stays unread.
        if self._scheduled:
            return
        self._scheduled = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._handle_results)
        else:
            self._loop.call_soon_threadsafe(self._handle_results)

    @property
    def full(self) -> bool:
        """Returns whether the disk is full."""
        if self._full:
            self._log_space(None)
        return self.store.full or (self._full and self._refusing)

    def _log_space(self, error: BaseException | None) -> None:
        """Logs once when the disk becomes full, has space again, or fails, however many writes are refused."""
        full = isinstance(error, OutOfSpace) and not isinstance(error, StagesFull)
        if isinstance(error, StoreFailed) and not self._failed:
            self._failed = True
            self._log.critical(
                "the store has failed and takes no writes until the %s is started again: %s",
                self._server,
                error,
                extra={"event": "store_failed", "reason": str(error)},
            )
        if full:
            self._refused, self._refusing = time.monotonic(), True
            if not self._full:
                self._log.error("publishes are refused: %s", error, extra={"event": "store_full", "reason": str(error)})
            self._full = True
        elif (
            self._full
            and error is None
            and not self.store.full
            and time.monotonic() >= self._refused + _RECOVERY_DELAY_S
        ):
            self._log.warning("the disk has space again: publishes are accepted", extra={"event": "store_has_space"})
            self._full = False

    def _handle_results(self) -> None:
        self._scheduled = False
        results = self._results
        while results:
            item = results.popleft()
            if isinstance(item, dict):
                self.grown(item)
                continue
            self._outstanding -= len(item)
            if self._full and item[-1].error is None:
                self._refusing = False
                self._log_space(None)
            for write in item:
                if write.error is not None:
                    self._log_space(write.error)
                try:
                    write.context(write)
                except Exception:
                    self._log.exception("the callback of %s failed", type(write).__name__)
        if not self._outstanding and self._idle:
            for idle in self._idle:
                if not idle.done():
                    idle.set_result(None)
            self._idle.clear()
