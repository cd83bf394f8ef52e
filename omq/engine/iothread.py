"""The I/O thread of a context: it listens, dials, shakes hands and keeps time for blocking sockets.

Threads that wait for it may be interrupted by signal handlers, which raise, or call it themselves, at any bytecode. So
there is no lock here: what must not come apart is one step (`omq._core.atomic`), and everything else happens in a
thread that handlers do not run in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

import uvloop

from omq._core.atomic import Latch
from omq._core.bell import Bell
from omq._core.link.convoy_breaker import ConvoyBreaker
from omq._core.link.deferred_calls import DeferredCalls
from omq.engine.job import Job, terminated
from omq.engine.weak_set import WeakIdentitySet
from omq.errors import ContextTerminated, StateError, TransportError
from omq.unpatched import _thread, sleep, threading

log = logging.getLogger("omq")

_LAST_STANDARD = 2  # the descriptor of the standard error
_CANCEL_TIMEOUT_S = 1.0  # seconds that tasks which are cancelled may take to end
_DESCRIPTORS = 16  # more than the first event loop of a process opens
_POLL_INTERVAL_S = 0.0002  # seconds between two looks at a thread that ends
_TOO_LATE = "the interpreter ends: a blocking socket needs a thread, and there are none any more"


def _as_told(error: BaseException) -> BaseException:
    """The error of who has asked for the thread.

    Python 3.12 refuses threads from the moment on at which the interpreter begins to end, later versions soon after. A
    daemon thread ends with it, and has nobody to tell.
    """
    if not (isinstance(error, RuntimeError) and str(error).endswith("at interpreter shutdown")):
        return error
    here = threading.current_thread()
    return SystemExit() if here.daemon and here is not threading.main_thread() else StateError(_TOO_LATE)


class Stoppable(Protocol):
    """An object that lives on an I/O thread."""

    def stop(self) -> None: ...


def _see_to_room() -> list[int]:
    """Raises `TransportError` unless there are descriptors for an event loop. Gives the numbers that it will get.

    libuv opens some for all loops of a process when the first is made, and where there are none it aborts the process
    (`uv__signal_global_reinit`). It does so, too, when it closes one that has the number of a standard stream
    (`uv__close`): a daemon that has closed its own gets /dev/null there.
    """
    found: list[int] = []
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
            pass
        os.close(fd)
        while len(found) < _DESCRIPTORS:
            found += os.pipe()
    except OSError as error:
        raise TransportError(error.errno, f"the I/O thread needs descriptors: {error.strerror}") from None
    finally:
        for fd in found:
            os.close(fd)
    return found


class IoThread:
    """One thread with an event loop. It starts with the first `begin`, and ends with `stop`.

    Args:
        deferred_calls: Are made on the thread.
        bell: Is answered there.

    Attributes:
        loop: Its event loop, once it runs.
        over: Whether it makes no more calls.
        leaving: Sockets, by `id`, that were closed and that the thread has not begun to end yet.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, deferred_calls: DeferredCalls, bell: Bell) -> None:
        self.over = False
        self.leaving: set[int] = set()
        self._deferred_calls = deferred_calls
        self._bell = bell
        self._convoy_breaker = ConvoyBreaker()
        self._numbers: list[int] = []  # descriptors, one of which is the loop's epoll set
        self._wards: WeakIdentitySet[Stoppable] = WeakIdentitySet()
        self._jobs: dict[Job, None] = {}
        self._chosen = threading.Lock()  # taken, and never waited for, by the one thread that starts it
        self._stopping = False
        self._abandoned = False
        self._up = Latch()  # it runs, or never will
        self._down = Latch()  # it runs no more
        self._failure: BaseException | None = None
        self._thread = 0  # idents, Python's and the system's
        self._native = 0

    # ------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Starts it, unless it has been. It goes on starting if the caller is interrupted; call again, then.

        Raises:
            TransportError: The system gives no descriptors for it; make another one.
            RuntimeError: The system gives no thread; make another one.
            ContextTerminated: It has been stopped.
            StateError: The interpreter ends.
        """
        if not self._up.is_set:
            if sys.is_finalizing():
                raise StateError(_TOO_LATE)
            # `threading.Thread.start` waits under locks of its own: a thread that no handler interrupts calls it.
            try:
                _thread.start_new_thread(self._start, ())
            except RuntimeError as error:
                raise _as_told(error) from None
            self._up.wait()
        if isinstance(self._failure, ContextTerminated):
            raise terminated()
        if self._failure is not None:
            raise _as_told(self._failure).with_traceback(None)

    def _start(self) -> None:
        if self._chosen.acquire(blocking=False):
            try:
                threading.Thread(target=self._run, name="omq-io", daemon=True).start()
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self.over = True
        self._thread = 0
        self._down.set()
        self._up.set()

    def _run(self) -> None:
        # Signals are the main thread's.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread = threading.get_ident()
        self._native = threading.get_native_id()
        try:
            if self._stopping:
                raise terminated()
            self._open()
        except BaseException as error:
            self._fail(error)
            return
        self._up.set()
        self.over = self._abandoned
        try:
            self._serve()
            self._close()
        finally:
            self.over = True
            self._thread = 0  # the next thread may have that ident
            if self._abandoned:
                self._deferred_calls.close()
                self._bell.close()
            self._down.set()

    def _open(self) -> None:
        self._numbers = _see_to_room()
        self.loop = uvloop.new_event_loop()
        try:
            self._deferred_calls.open()
            self._bell.open()
        except BaseException:
            self.loop.close()
            self._deferred_calls.close()
            self._bell.close()
            raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.add_reader(self._deferred_calls.fd, self._deferred_calls.ring)
        self.loop.add_reader(self._bell.fd, self._bell.answer)
        self._bell.call(self._have_it_watched)
        while not self.over:
            try:
                self.loop.run_forever()
            except BaseException as error:
                # For example the SystemExit of an `authorize` function. Its text may be secret.
                log.error("the I/O thread goes on after a callback that raised %s", type(error).__name__)
        self.loop.remove_reader(self._deferred_calls.fd)
        self.loop.remove_reader(self._bell.fd)

    def _have_it_watched(self) -> None:
        # The bell has been answered, so the loop's epoll set has it. Nothing names that set, but its number is one of
        # those that were free before: the system gives the lowest.
        self._convoy_breaker.start(self._native, self._bell.fd, self._numbers)

    def _halt(self) -> None:
        if not self.over:  # else it would stop what runs to its end in `_close`
            self.over = True
            self.loop.stop()

    def _close(self) -> None:
        # No call is to wait for ever for work that no longer runs.
        self._complete(self._cancel_all())
        self._dismiss()
        # A socket may have begun while the others were closed: its descriptors go with the thread.
        for ward in self._wards:
            ward.stop()
        self._complete(self.loop.shutdown_default_executor())
        self._convoy_breaker.stop()
        self.loop.close()
        self._dismiss()

    def _complete(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        while not task.done():
            # A stop, or what a callback has raised, ends a round of the loop, but not the work.
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(task)

    async def _cancel_all(self) -> None:
        """Cancels what runs here, and what was posted and has not begun."""
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)

    def _dismiss(self) -> None:
        """Fails the jobs that have not begun: they never will."""
        for job in tuple(self._jobs):
            job.fail()
            self.forget(job)

    def stop(self) -> None:
        """Ends the thread, and waits for that. Idempotent; goes on by itself if interrupted."""
        self._stopping = True
        if not self._chosen.locked():
            return  # it has not been started; a start from now on finds that it is to end
        self._up.wait()
        if not self.over:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._halt)
        if threading.get_ident() == self._thread:
            raise StateError("a callback of the I/O thread cannot wait for the I/O thread")
        self._down.wait()
        # `threading.Thread.join` would wait under a lock that a handler may want.
        while self._native and os.path.exists(f"/proc/self/task/{self._native}"):
            sleep(_POLL_INTERVAL_S)

    def abandon(self) -> None:
        """Has the thread end in its own time, and take along what it was given: nobody else uses that any more."""
        self._abandoned = self._stopping = True
        if self._up.is_set and not self.over:  # otherwise the thread finds out by itself
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._halt)

    # ------------------------------------------------------------------ what it does for others

    def look_after(self, ward: Stoppable) -> None:
        """Stops *ward* when the thread ends, if it still lives."""
        self._wards.add(ward)

    def forget(self, job: Job) -> None:
        """A job is done."""
        self._jobs.pop(job, None)

    @property
    def is_current(self) -> bool:
        """Returns whether the caller runs on this very thread."""
        return threading.get_ident() == self._thread

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Has a function called on the thread, after what was asked for before. Waits for nothing.

        Where the call is interrupted the function will be called, or never will be.

        Raises:
            ContextTerminated: The thread has ended.
        """
        if self.over:
            raise terminated()
        # Through the bell: the loop would take the GIL twice to make a call of `call_soon_threadsafe`, and each time it
        # may have to wait for it.
        self._bell.call(partial(function, *arguments))

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function on the thread, and awaits what it gives if that is a coroutine. Waits; can be interrupted.

        Where the wait is interrupted the call has been made, or never will be; a coroutine is cancelled.

        Returns:
            Its result.

        Raises:
            ContextTerminated: The thread has ended, or ends before the work is done.
            StateError: This is the thread itself.
        """
        job = Job(function, arguments)
        try:
            self._post(job)
            job.done.wait()
        except BaseException:
            job.give_up(self)
            raise
        return job.result()

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Job:
        """Posts a call; see `run`."""
        job = Job(function, arguments)
        self._post(job)
        return job

    def finish(self, job: Job) -> Any:
        """Waits for what `begin` gave; the work goes on where that is interrupted."""
        job.done.wait()
        return job.result()

    def _post(self, job: Job) -> None:
        if self.is_current:
            if self.over:
                raise terminated()
            raise StateError("a callback of the I/O thread cannot wait for the I/O thread")
        self.start()
        # Noted first: the end of the thread sets `over`, and then goes through the jobs that are noted.
        self._jobs[job] = None
        if self.over:
            self.forget(job)
            raise terminated()
        self._bell.call(job.run_in, self)
