"""Sockets that close on the I/O thread: those of the blocking twin, and what an event loop has left unfinished."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from omq.engine.iothread import IoThread
from omq.engine.job import Job
from omq.engine.linger import bounded
from omq.engine.socket import Engine
from omq.errors import ContextTerminated
from omq.types import UNSET
from omq.unpatched import _thread


class IoClosing:
    """The end of a socket whose engine belongs to the I/O thread."""

    _engine: Engine
    _io: IoThread | None

    def finish_close(self, future: Job | None) -> None:
        """The part of `close` that waits."""
        if future is None or self._io is None:
            return
        try:
            self._io.finish(future)
        except ContextTerminated:
            pass
        except BaseException:
            self.give_up_close(future)
            raise

    def give_up_close(self, future: Job | None) -> None:
        """Ends the socket after an interrupted `close`, unless another thread still waits in its own `close`."""
        if future is None or self._io is None:
            return
        future.give_up(self._io)
        future.done.wait()
        with contextlib.suppress(ContextTerminated):
            self._io.finish(self._io.begin(self._engine.stop_unless_awaited))


class Foster(Protocol):
    """A context, which has a thread for orphans."""

    @property
    def io_thread(self) -> IoThread: ...

    def adopt(self, orphan: Orphan) -> None:
        """Holds an orphan until it is closed."""

    def dismiss(self, orphan: Orphan) -> None:
        """Lets go of an orphan."""


class Orphan(IoClosing):
    """An asyncio socket whose loop has ended before what it has accepted has left: the I/O thread closes it.

    Args:
        engine: The socket, which has left its loop.
        context: Its context.
        linger: Seconds that it has; `None` for ever.
    """

    def __init__(self, engine: Engine, context: Foster, linger: float | None) -> None:
        self._engine = engine
        self._context = context
        self._linger = linger
        self._io = None
        self._move = Job(self._enter, ())
        self._has_thread = False
        context.adopt(self)
        # Nothing may wait: the collector may have brought the call amid anything, the start of a thread for instance.
        # Where there are no threads any more the interpreter ends, and its exit does the rest.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(self._move.run, ())
            self._has_thread = True

    def _enter(self) -> None:
        """Runs in a thread of its own, which may wait for the I/O thread's start."""
        io = self._io = self._context.io_thread
        io.begin(self._close)

    async def _close(self) -> None:
        """Runs on the I/O thread."""
        try:
            self._engine.enter_loop(asyncio.get_running_loop())
            self._context.io_thread.look_after(self._engine)
            await self._engine.close(self._linger)
        finally:
            self._context.dismiss(self)

    def arrive(self) -> bool:
        """Waits until the I/O thread has the socket; false if it never will."""
        if self._has_thread:
            self._move.done.wait()
        return self._io is not None

    def take(self) -> tuple[Engine, float | None]:
        """Gives the socket to a caller that closes it by itself, and its linger; it has not arrived."""
        self._context.dismiss(self)
        return self._engine, self._linger

    # ------------------------------------------------------------------ what its context asks for

    def linger_after(self, error: BaseException) -> float | None:
        """The linger of the end that *error* brings by leaving a `with` block; what waits then is reported at once."""
        self.report_at_once()
        return bounded(self._linger, self._engine.options.error_linger, error)

    def report_at_once(self) -> None:
        """Has the end of the socket report at once what it waits for."""
        self._engine.report_at_once()

    def begin_close(self, linger: Any) -> Job | None:
        """The part of `close` that does not wait. Gives the job to wait for, or `None`."""
        if not self.arrive() or self._io is None:
            return None
        with contextlib.suppress(ContextTerminated):
            return self._io.begin(self._engine.close, self._linger if linger is UNSET else linger)
        return None

    def close_after_fork(self) -> None:
        """In a forked child: closes the descriptors that it inherited, which are the parent's too."""
        self._engine.close_after_fork()


def see_off(left: list[tuple[Engine, float | None]]) -> None:
    """Closes sockets without a loop in one of this thread: the interpreter may start no other thread any more."""

    async def close(engine: Engine, linger: float | None) -> None:
        engine.enter_loop(asyncio.get_running_loop())
        engine.report_at_once()
        await engine.close(linger)

    async def close_all() -> None:
        await asyncio.gather(*(close(engine, linger) for engine, linger in left), return_exceptions=True)

    try:
        # An interrupt has ended the wait, and what was lost is in the log.
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(close_all())
    except OSError as error:  # no descriptors for a loop
        for engine, _ in left:
            engine.report_lost(str(error))
    for engine, _ in left:
        engine.stop()
