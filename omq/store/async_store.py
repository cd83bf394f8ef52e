"""A store as an event loop sees it: writes go out, their results come back in one call a commit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from omq.executor import in_thread
from omq.store.errors import OutOfSpace, StagesFull, StoreError, StoreFailed
from omq.store.interface import Acknowledge, Appended, Log, Notify, Write
from omq.store.memory import MemoryStore
from omq.unpatched import queue, threading

#: Seconds without a refusal after which what is stored shows that there is room again.
_RECOVERY_DELAY_S = 10.0

_Write = TypeVar("_Write", bound=Write)


class AsyncStore:
    """Hands writes to the store, and their results to the callers; lives in one event loop.

    Writes of one turn of the loop are submitted together at its end. What the store's thread has done comes back by one
    `call_soon_threadsafe`, however many writes it were.

    Args:
        grown: Called with the topics that can be read further than before, by id, with their last ids.
        log: Logs when the disk is full, has room again, or fails.
        server: What the store serves, in words: it is to be started again once the store has failed.
        error: Makes the error that `do` raises of the store's.

    Attributes:
        store: The store, once it is open.
        waiting: Bytes that were submitted and are not answered.
    """

    store: Log

    def __init__(
        self,
        grown: Callable[[dict[int, int]], None],
        log: logging.Logger,
        server: str,
        error: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        self.waiting = 0
        self._full = False
        self._refused = 0.0  # when something was, for want of space
        self._failed = False  # and that was logged
        self._grown = grown
        self._log = log
        self._server = server
        self._error = error
        self._out: list[Write] = []
        self._outstanding = 0
        self._news: deque[list[Write] | dict[int, int]] = deque()
        self._called = False
        self._thread = 0
        self._idle: list[asyncio.Future[None]] = []
        self._attends = False  # the loop looks at the news next, without being called
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # rung for a loop that lingers
        self._lingers = False

    async def open(self, opened: Callable[[Notify, Appended], Log]) -> None:
        """Opens the store, in a thread: it may have much to verify."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        opening = in_thread(opened, self._notify, self._appended)
        try:
            self.store = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on, and what it opens is locked until it is closed.
            store = await opening
            await in_thread(store.close)
            raise

    async def close(self) -> None:
        """Waits for the answers to all that was submitted, and closes the store."""
        await self.drained()
        if hasattr(self, "store"):
            await in_thread(self.store.close)
            self._arrived()  # what failed because of the end

    async def drained(self) -> None:
        """Waits until nothing that was submitted waits for its answer."""
        while self._outstanding:
            idle = self._loop.create_future()
            self._idle.append(idle)
            await idle

    # ------------------------------------------------------------------ out

    def in_memory(self, persistence: str) -> bool:
        """Returns whether topics of this persistence are kept in memory."""
        return persistence == "transient" or isinstance(self.store, MemoryStore)

    def submit(self, write: Write, done: Callable[[Any], None]) -> None:
        """Submits a write at the end of this turn; *done* gets it back in the loop, with its result or its error."""
        if not self._out:
            self._loop.call_soon(self._end_turn)
        self.add(write, done)

    def add(self, write: Write, done: Callable[[Any], None]) -> None:
        """Does the same for a caller that flushes before it yields to the loop: nothing else does."""
        write.context = done
        self._outstanding += 1
        self._out.append(write)

    def flush(self) -> None:
        """Submits what this turn has gathered."""
        out, self._out = self._out, []
        if not out:
            return
        try:
            self.store.submit_many(out)
        except StoreError as error:
            for write in out:
                write.error = error
            self._notify(out)

    def flush_at_once(self, seconds: float, *, note: bool = False) -> None:
        """Submits what this turn has gathered, and hands on what has come of it.

        The store writes in this very thread where it can; else the loop waits for it (see `linger`).

        Args:
            seconds: For so long at most.
            note: Small appends need only be noted (see `Log.write_at_once`), until `catch_up` is called.
        """
        if not self._write_here(note=note):
            self.flush()
            self.linger(seconds)

    def _end_turn(self) -> None:
        # One that stands alone takes less time here than to be handed to a thread, which then wants this one's turn.
        if len(self._out) != 1 or type(self._out[0]) is not Acknowledge or not self._write_here():
            self.flush()

    def _write_here(self, *, note: bool = False) -> bool:
        """Has the store write what this turn has gathered in this very thread; whether it has."""
        out = self._out
        if not out or self._outstanding != len(out):
            return False
        self._out, self._attends = [], True
        try:
            done = self.store.write_at_once(out, note=note)
        except StoreError:
            done = False  # `flush` says so
        finally:
            self._attends = False
        if not done:
            self._out = out
        if self._news:
            self._arrived()
        return done

    def catch_up(self) -> None:
        """Has the store write what it has only noted, and hands on what has come of it."""
        self._attends = True
        try:
            self.store.catch_up()
        finally:
            self._attends = False
        if self._news:
            self._arrived()

    def linger(self, seconds: float) -> None:
        """Waits in this very thread for the store to give something back, and hands it on.

        A loop that has nothing else to do learns of a commit sooner than by its own way of waiting.

        Args:
            seconds: For so long at most; the loop stands still meanwhile.
        """
        if not self._outstanding:
            return
        while not self._bell.empty():  # rung for one that had seen it already
            self._bell.get()
        self._lingers = self._attends = True
        try:
            if not self._news:
                with suppress(queue.Empty):
                    self._bell.get(timeout=seconds)
        finally:
            self._lingers = self._attends = False
        if self._news:  # nothing else is scheduled for what has come while `_attends` was true
            self._arrived()

    async def do(self, write: _Write) -> _Write:
        """Submits a write and waits for it.

        Raises:
            StoreError: It was not done; or what `error` makes of that.
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
        """Called by the store, in any thread."""
        self._news.append(writes)
        self._call()

    def _appended(self, grown: dict[int, int]) -> None:
        """Called by the store, in any thread."""
        self._news.append(grown)
        self._call()

    def _call(self) -> None:
        if self._attends:
            if self._lingers:
                self._bell.put(None)
            return
        # The loop takes the mark away before it looks at the news, so none is left over.
        if self._called:
            return
        self._called = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._arrived)
        else:
            self._loop.call_soon_threadsafe(self._arrived)

    @property
    def full(self) -> bool:
        """The disk is full: until there is room, and for ten seconds nothing was refused for want of it."""
        if self._full:
            self._note(None)
        return self._full

    def _note(self, error: BaseException | None) -> None:
        """Logs when the disk becomes full, has room again, or fails: once each, however many writes are refused."""
        full = isinstance(error, OutOfSpace) and not isinstance(error, StagesFull)
        if isinstance(error, StoreFailed) and not self._failed:
            self._failed = True
            self._log.critical(
                "the store has failed, and takes nothing more until the %s is started again: %s", self._server, error
            )
        if full:
            self._refused = time.monotonic()
            if not self._full:
                self._log.error("what is published is refused: %s", error)
            self._full = True
        elif (
            self._full
            and error is None
            and not self.store.full
            and time.monotonic() >= self._refused + _RECOVERY_DELAY_S
        ):
            self._log.warning("there is room on the disk again: publishing goes on")
            self._full = False

    def _arrived(self) -> None:
        self._called = False
        news = self._news
        while news:
            item = news.popleft()
            if isinstance(item, dict):
                self._grown(item)
                continue
            self._outstanding -= len(item)
            if self._full and item[-1].error is None:
                self._note(None)
            for write in item:
                if write.error is not None:
                    self._note(write.error)
                try:
                    write.context(write)
                except Exception:
                    self._log.exception("what waited for %s has failed", type(write).__name__)
        if not self._outstanding and self._idle:
            for idle in self._idle:
                if not idle.done():
                    idle.set_result(None)
            self._idle.clear()
