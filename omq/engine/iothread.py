"""The I/O thread of a context, which listens, dials, does handshakes and runs timers for blocking sockets.

Signal handlers may interrupt the threads that wait for it, raise there, or call it, at any bytecode. So there is no
lock here: what must not be interrupted is one atomic step (`omq._core.atomic`), and everything else happens in a
thread where no handler runs.
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
from omq.engine.thread_call import ThreadCall, context_terminated
from omq.engine.weak_set import WeakIdentitySet
from omq.errors import ContextTerminated, StateError, TransportError
from omq.unpatched import _thread, sleep, threading

log = logging.getLogger("omq")

_LAST_STANDARD = 2  # the descriptor of the standard error
_CANCEL_TIMEOUT_S = 1.0  # that cancelled tasks may take to end
_RESERVED_DESCRIPTORS = 16  # more than the first event loop of a process opens
_POLL_INTERVAL_S = 0.0002  # between two checks of a thread that ends
_TOO_LATE = "the interpreter is shutting down: a blocking socket needs a thread, and none can be started"


def _start_error(error: BaseException) -> BaseException:
    """Returns the error for the caller that needed the thread.

    Python 3.12 refuses threads from the moment when the interpreter begins to end, later versions soon after. A daemon
    thread ends with it; there is nothing to report to.
    """
    if not (isinstance(error, RuntimeError) and str(error).endswith("at interpreter shutdown")):
        return error
    here = threading.current_thread()
    return SystemExit() if here.daemon and here is not threading.main_thread() else StateError(_TOO_LATE)


class Stoppable(Protocol):
    """An object that must be stopped with its I/O thread."""

    def stop(self) -> None: ...


def _reserve_descriptors() -> list[int]:
    """Raises `TransportError` unless there are descriptors for an event loop. Returns the numbers that it will get.

    libuv opens some for all loops of a process when the first is made, and aborts the process if there are none
    (`uv__signal_global_reinit`). It also aborts when it closes one with the number of a standard stream (`uv__close`):
    in a daemon that has closed its own, /dev/null takes these numbers.
    """
    found: list[int] = []
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
            pass
        os.close(fd)
        while len(found) < _RESERVED_DESCRIPTORS:
            found += os.pipe()
    except OSError as error:
        raise TransportError(error.errno, f"the I/O thread needs descriptors: {error.strerror}") from None
    finally:
        for fd in found:
            os.close(fd)
    return found


class IoThread:
    """A thread with an event loop. It starts with the first `begin`, and ends with `stop`.

    Args:
        deferred_calls: Calls that the thread makes.
        bell: The bell that the thread answers.

    Attributes:
        loop: Its event loop, once it runs.
        over: Whether it accepts no more calls.
        leaving: The `id`s of sockets that were closed and that the thread has not begun to close yet.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, deferred_calls: DeferredCalls, bell: Bell) -> None:
        self.over = False
        self.leaving: set[int] = set()
        self._deferred_calls = deferred_calls
        self._bell = bell
        self._convoy_breaker = ConvoyBreaker()
        self._numbers: list[int] = []  # descriptors, one of which is the loop's epoll set
        self._owned: WeakIdentitySet[Stoppable] = WeakIdentitySet()
        self._calls: dict[ThreadCall, None] = {}
        self._chosen = threading.Lock()  # acquired once, without waiting, by the thread that starts it
        self._stopping = False
        self._abandoned = False
        self._up = Latch()  # set once it runs, or never will
        self._down = Latch()  # set once it has ended
        self._failure: BaseException | None = None
        self._thread = 0  # Python's ident; below, the system's
        self._native = 0

    # ------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Starts the thread, unless it has started. If the caller is interrupted, the start continues: call again.

        Raises:
            TransportError: The system provides no descriptors for it; make another one.
            RuntimeError: The system provides no thread; make another one.
            ContextTerminated: It has been stopped.
            StateError: The interpreter is shutting down.
        """
        if not self._up.is_set:
            if sys.is_finalizing():
                raise StateError(_TOO_LATE)
            # `threading.Thread.start` waits under locks of its own, so a thread that no handler interrupts calls it.
            try:
                _thread.start_new_thread(self._start, ())
            except RuntimeError as error:
                raise _start_error(error) from None
            self._up.wait()
        if isinstance(self._failure, ContextTerminated):
            raise context_terminated()
        if self._failure is not None:
            raise _start_error(self._failure).with_traceback(None)

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
        # Signals are for the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread = threading.get_ident()
        self._native = threading.get_native_id()
        try:
            if self._stopping:
                raise context_terminated()
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
            self._thread = 0  # another thread may get that ident
            if self._abandoned:
                self._deferred_calls.close()
                self._bell.close()
            self._down.set()

    def _open(self) -> None:
        self._numbers = _reserve_descriptors()
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
        self._bell.call(self._start_convoy_breaker)
        while not self.over:
            try:
                self.loop.run_forever()
            except BaseException as error:
                # For example the SystemExit of an `authorize` function. Its text may be secret.
                log.error("a callback on the I/O thread raised %s; the thread continues", type(error).__name__)
        self.loop.remove_reader(self._deferred_calls.fd)
        self.loop.remove_reader(self._bell.fd)

    def _start_convoy_breaker(self) -> None:
        # The bell has been answered, so the loop's epoll set has it. No API returns that set, but its number is one of
        # those that were free before, because the system assigns the lowest.
        self._convoy_breaker.start(self._native, self._bell.fd, self._numbers)

    def _halt(self) -> None:
        if not self.over:  # otherwise it would stop the work of `_close`
            self.over = True
            self.loop.stop()

    def _close(self) -> None:
        # No call may wait for ever for work that no longer runs.
        self._complete(self._cancel_all())
        self._dismiss()
        # A socket may have started while the others were closed: its descriptors end with the thread.
        for part in self._owned:
            part.stop()
        self._complete(self.loop.shutdown_default_executor())
        self._convoy_breaker.stop()
        self.loop.close()
        self._dismiss()

    def _complete(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        while not task.done():
            # A stop, or an exception of a callback, ends a run of the loop, but not the work.
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(task)

    async def _cancel_all(self) -> None:
        """Cancels the running tasks, and the calls that were posted and have not begun."""
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)

    def _dismiss(self) -> None:
        """Fails the calls that have not begun, because they never will."""
        for call in tuple(self._calls):
            call.fail()
            self.forget(call)

    def stop(self) -> None:
        """Ends the thread, and waits for that. Idempotent; the thread ends even if the wait is interrupted."""
        self._stopping = True
        if not self._chosen.locked():
            return  # not started; a later start ends at once
        self._up.wait()
        if not self.over:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._halt)
        if threading.get_ident() == self._thread:
            raise StateError("a callback on the I/O thread cannot wait for the I/O thread")
        self._down.wait()
        # `threading.Thread.join` would wait under a lock that a handler may need.
        while self._native and os.path.exists(f"/proc/self/task/{self._native}"):
            sleep(_POLL_INTERVAL_S)

    def abandon(self) -> None:
        """Lets the thread end by itself and close its descriptors, which nothing else uses any more."""
        self._abandoned = self._stopping = True
        if self._up.is_set and not self.over:  # otherwise the thread checks `_stopping`
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._halt)

    # ------------------------------------------------------------------ calls from other threads

    def stop_with_thread(self, part: Stoppable) -> None:
        """Stops *part* when the thread ends, if it still exists."""
        self._owned.add(part)

    def forget(self, call: ThreadCall) -> None:
        """Removes a call that is done."""
        self._calls.pop(call, None)

    @property
    def is_current(self) -> bool:
        """Returns whether the caller runs on this thread."""
        return threading.get_ident() == self._thread

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls a function on the thread, after earlier calls. Does not wait.

        If the caller is interrupted, the function will be called, or never will be.

        Raises:
            ContextTerminated: The thread has ended.
        """
        if self.over:
            raise context_terminated()
        # Through the bell: the loop would acquire the GIL twice for a call of `call_soon_threadsafe`, and may have to
        # wait for it each time.
        self._bell.call(partial(function, *arguments))

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function on the thread, awaits the result if it is a coroutine, and waits for that.

        If the wait is interrupted, the call has been made, or never will be; a coroutine is cancelled.

        Returns:
            The result of the function.

        Raises:
            ContextTerminated: The thread has ended, or ends before the work is done.
            StateError: This is the thread itself.
        """
        call = ThreadCall(function, arguments)
        try:
            self._post(call)
            call.done.wait()
        except BaseException:
            call.give_up(self)
            raise
        return call.result()

    def begin(self, function: Callable[..., Any], *arguments: Any) -> ThreadCall:
        """Posts a call and returns it; see `run`."""
        call = ThreadCall(function, arguments)
        self._post(call)
        return call

    def finish(self, call: ThreadCall) -> Any:
        """Waits for a call of `begin`; the work continues if the wait is interrupted."""
        call.done.wait()
        return call.result()

    def _post(self, call: ThreadCall) -> None:
        if self.is_current:
            if self.over:
                raise context_terminated()
            raise StateError("a callback on the I/O thread cannot wait for the I/O thread")
        self.start()
        # Added first: the end of the thread sets `over`, and then fails all calls in the table.
        self._calls[call] = None
        if self.over:
            self.forget(call)
            raise context_terminated()
        self._bell.call(call.run_in, self)
