"""The I/O thread of a context: it listens, dials, shakes hands and keeps time for blocking sockets."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from omq._core.bell import Bell
from omq._core.link.alarm import Alarm
from omq.errors import ContextTerminated, StateError

log = logging.getLogger("omq")

_LAST_STANDARD = 2  # the descriptor of the standard error
_LAST_STEPS = 1.0  # seconds that tasks which are cancelled may take to end
_DESCRIPTORS = 16  # more than the first event loop of a process opens


class Stoppable(Protocol):
    """What lives on an I/O thread."""

    def stop(self) -> None: ...


def _see_to_room() -> None:
    """Raises the system's error unless there are descriptors for an event loop.

    libuv opens some for all loops of a process when the first is made, and where there are none it aborts the process
    (`uv__signal_global_reinit`). It does so, too, when it closes one that has the number of a standard stream
    (`uv__close`): a daemon that has closed its own gets /dev/null there.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        pass
    os.close(fd)
    found: list[int] = []
    try:
        while len(found) < _DESCRIPTORS:
            found += os.pipe()
    finally:
        for fd in found:
            os.close(fd)


class IoThread:
    """One thread with an event loop: it listens, dials, shakes hands and keeps time for blocking sockets."""

    def __init__(self, alarm: Alarm, bell: Bell) -> None:
        import uvloop

        _see_to_room()
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._lock = threading.RLock()  # a signal handler may call us, too
        self._over = False
        self._alarm = alarm
        self._bell = bell
        self._wards: weakref.WeakSet[Stoppable] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._run, name="omq-io", daemon=True)
        try:
            alarm.open()
            bell.open()
            self._thread.start()
        except Exception:
            # The system gives no thread: whoever tries again makes another loop.
            self.loop.close()
            alarm.close()
            bell.close()
            raise

    def _run(self) -> None:
        import signal

        # Signals are the main thread's.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        asyncio.set_event_loop(self.loop)
        self.loop.add_reader(self._alarm.fd, self._alarm.ring)
        self.loop.add_reader(self._bell.fd, self._bell.answer)
        while True:
            try:
                self.loop.run_forever()
                break
            except BaseException as error:
                # Such as the SystemExit of a function that decides who may come in. What it says may be secret.
                log.error("the I/O thread goes on after a callback that raised %s", type(error).__name__)
        self.loop.remove_reader(self._alarm.fd)
        self.loop.remove_reader(self._bell.fd)
        with self._lock:
            self._over = True
        # Nobody is to wait for ever for what no longer runs.
        self.loop.run_until_complete(self._cancel_all())
        # A socket may have begun while the others were closed: its descriptors go with the thread.
        for ward in list(self._wards):
            ward.stop()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def _cancel_all(self) -> None:
        """Cancels what runs here, and what was posted and has not begun."""
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_STEPS)

    def look_after(self, ward: Stoppable) -> None:
        """Has a thing stopped when the thread ends, if it lives here until then."""
        self._wards.add(ward)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function on the thread and gives its result; see `wait`."""

        async def call() -> Any:
            return function(*arguments)

        return self.wait(call())

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine on the thread and gives its result; waits, and can be interrupted.

        Raises:
            ContextTerminated: The thread has ended, or ends before the work is done.
            StateError: This is the thread itself.
        """
        return self.finish(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        """Has a coroutine run on the thread; see `wait`."""
        with self._lock:
            if self._over or threading.current_thread() is self._thread:
                work.close()
                if self._over:
                    raise ContextTerminated("the context has been terminated")
                raise StateError("a callback of the I/O thread cannot wait for the I/O thread")
            return asyncio.run_coroutine_threadsafe(work, self.loop)

    def finish(self, future: concurrent.futures.Future[Any]) -> Any:
        """Waits for what `begin` gave; see `wait`."""
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ContextTerminated("the context has been terminated") from None
        except BaseException:
            # Interrupted: nobody waits for it any more. If it has failed by itself this does nothing.
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the thread. Idempotent."""
        with self._lock:
            if not self._over:
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
