"""Sockets that close on the I/O thread: blocking ones, and asyncio ones whose loop has ended before they did."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from omq.engine.iothread import IoThread
from omq.engine.linger import linger_after_error
from omq.engine.socket import Engine
from omq.engine.thread_call import ThreadCall
from omq.errors import ContextTerminated
from omq.types import UNSET
from omq.unpatched import _thread


class IoThreadClose:
    """The end of a socket whose engine belongs to the I/O thread."""

    _engine: Engine
    _io: IoThread | None

    def finish_close(self, future: ThreadCall | None) -> None:
        """Waits for the end of a `close` that was begun."""
        if future is None or self._io is None:
            return
        try:
            self._io.finish(future)
        except ContextTerminated:
            pass
        except BaseException:
            self.give_up_close(future)
            raise

    def give_up_close(self, future: ThreadCall | None) -> None:
        """Ends the socket after an interrupted `close`, unless another thread still waits in its own `close`."""
        if future is None or self._io is None:
            return
        future.give_up(self._io)
        future.done.wait()
        with contextlib.suppress(ContextTerminated):
            self._io.finish(self._io.begin(self._engine.stop_unless_awaited))


class DeferredCloseOwner(Protocol):
    """A context, whose I/O thread closes such sockets."""

    @property
    def io_thread(self) -> IoThread: ...

    def hold_deferred(self, deferred: DeferredClose) -> None:
        """Keeps a socket alive until it is closed."""

    def release_deferred(self, deferred: DeferredClose) -> None:
        """Drops the reference."""


class DeferredClose(IoThreadClose):
    """An asyncio socket whose loop has ended before all accepted messages have left: the I/O thread closes it.

    Args:
        engine: The engine, which has left its loop.
        context: Its context.
        linger: Seconds for its messages to leave; `None` waits for ever.
    """

    def __init__(self, engine: Engine, context: DeferredCloseOwner, linger: float | None) -> None:
        self._engine = engine
        self._context = context
        self._linger = linger
        self._io = None
        self._hand_over = ThreadCall(self._enter, ())
        self._has_thread = False
        context.hold_deferred(self)
        # Nothing may wait: the collector may run this amid anything, such as the start of a thread. If no thread can be
        # started any more, the interpreter is shutting down, and its exit closes the socket.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(self._hand_over.run, ())
            self._has_thread = True

    def _enter(self) -> None:
        """Runs in a new thread, which may wait for the I/O thread to start."""
        io = self._io = self._context.io_thread
        io.begin(self._close)

    async def _close(self) -> None:
        """Runs on the I/O thread."""
        try:
            self._engine.enter_loop(asyncio.get_running_loop())
            self._context.io_thread.stop_with_thread(self._engine)
            await self._engine.close(self._linger)
        finally:
            self._context.release_deferred(self)

    def wait_handed_over(self) -> bool:
        """Waits until the I/O thread has the socket; false if it never will."""
        if self._has_thread:
            self._hand_over.done.wait()
        return self._io is not None

    def take(self) -> tuple[Engine, float | None]:
        """Returns the engine and its linger to a caller that closes it; the I/O thread does not have it."""
        self._context.release_deferred(self)
        return self._engine, self._linger

    # ------------------------------------------------------------------ calls of its context

    def linger_after(self, error: BaseException) -> float | None:
        """Returns the linger after *error* has left a `with` block; reports at once what the close waits for."""
        self.report_at_once()
        return linger_after_error(self._linger, self._engine.options.error_linger, error)

    def report_at_once(self) -> None:
        """Makes the close report at once what it waits for."""
        self._engine.report_at_once()

    def begin_close(self, linger: Any) -> ThreadCall | None:
        """Starts to close; returns the call to wait for, or `None`."""
        if not self.wait_handed_over() or self._io is None:
            return None
        with contextlib.suppress(ContextTerminated):
            return self._io.begin(self._engine.close, self._linger if linger is UNSET else linger)
        return None

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors, which the parent uses too, in a forked child."""
        self._engine.close_after_fork()


def close_without_loop(left: list[tuple[Engine, float | None]]) -> None:
    """Closes sockets that have no loop, in a loop of this thread: the interpreter may no longer start a thread."""

    async def close(engine: Engine, linger: float | None) -> None:
        engine.enter_loop(asyncio.get_running_loop())
        engine.report_at_once()
        await engine.close(linger)

    async def close_all() -> None:
        await asyncio.gather(*(close(engine, linger) for engine, linger in left), return_exceptions=True)

    try:
        # After an interrupt, the log reports what was lost.
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(close_all())
    except OSError as error:  # no descriptors left for a loop
        for engine, _ in left:
            engine.report_lost(str(error))
    for engine, _ in left:
        engine.stop()
