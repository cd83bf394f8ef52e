"""Who drives a socket's descriptors: the caller's event loop, or the threads that call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from omq._core.bell import Bell
from omq._core.calls.call import AsyncCore
from omq._core.calls.sync import SyncCore
from omq._core.link.alarm import Alarm
from omq._core.link.flusher import Flusher
from omq._core.link.poller import Poller
from omq._core.lock import SocketLock
from omq._core.queues.peer import Gate, Outlet
from omq.errors import ContextTerminated, StateError

log = logging.getLogger("omq")

_LAST_STEPS = 1.0  # seconds that tasks which are cancelled may take to end
_AWAY = 0.01  # seconds without a look of a caller's after which the I/O thread serves the epoll set
_DROWSY = 1.0  # seconds at most between two looks while a caller sleeps in its socket
_LAST_STANDARD = 2  # the descriptor of the standard error
_DESCRIPTORS = 16  # more than the first event loop of a process opens


class WatchableGate(Protocol):
    """A gate that tells an event loop of its notifications."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]: ...


class Driver(Protocol):
    """What the engine needs of whoever drives it.

    Attributes:
        lock: Held while queues and peers are touched.
        pipe_lock: The same for inproc pipes; `None` where one thread owns them.
        poller: The epoll set of the socket's connections.
        readable: Where calls wait for messages.
        writable: Where calls wait for room.
        flusher: Who writes what callers left behind; `None` where the loop's turn ends it.
        has_thread: Whether the loop has a thread of its own, for good.
    """

    has_thread: bool
    lock: contextlib.AbstractContextManager[Any]
    poller: Poller
    readable: Gate
    writable: Gate

    @property
    def pipe_lock(self) -> SocketLock | None: ...

    @property
    def bell(self) -> Bell:
        """Has something called in the loop; once there is one."""
        ...

    @property
    def flusher(self) -> Flusher | None: ...

    def assemble(self, outlet: Outlet | None) -> None:
        """The queue for what is sent is there, if the type has one."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop is there, and runs in this thread."""

    def move(self) -> None:
        """The loop runs in this thread from now on."""

    def take_over(self) -> None:
        """No calls are to come: the loop does all the work from now on."""

    def watch_writable(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A Future that is done when something has left."""

    def hold(self, core: Any) -> None:
        """Keeps the socket from now on: its owner has dropped it, and its last messages are to leave."""

    def stop(self) -> None:
        """Nothing is to be driven any more."""


class LoopDriver:
    """The asyncio twin: everything happens in the caller's loop, under no lock.

    The loop does not hold the socket by it: one that its owner drops is to be closed.
    """

    has_thread = False
    pipe_lock = None
    flusher = None

    def __init__(self, core: AsyncCore) -> None:
        self.lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.poller = Poller(core.turn)
        self.readable: Gate = core.readable
        self.writable: Gate = core.writable
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outlet: Outlet | None = None
        self._watch = core.writable.watch
        self._bell: Bell | None = None

    @property
    def bell(self) -> Bell:
        """For pipes: sockets of other threads reach this one through it."""
        if self._bell is None:
            assert self._loop is not None
            self._bell = Bell()
            self._bell.open()
            self._bell.thread = threading.get_ident()
            self._loop.add_reader(self._bell.fd, self._bell.answer)
        return self._bell

    def move(self) -> None:
        if self._bell is not None:
            self._bell.thread = threading.get_ident()

    def assemble(self, outlet: Outlet | None) -> None:
        self._outlet = outlet

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_reader(self.poller.fd, self.poller.dispatch)
        if self._outlet is not None:
            self._outlet.set_schedule(functools.partial(loop.call_soon, self._outlet.flush_turn))
            self._outlet.set_report(functools.partial(loop.call_soon, self._outlet.report))

    def take_over(self) -> None:
        pass

    def watch_writable(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        return self._watch(loop)

    def hold(self, core: Any) -> None:
        pass  # nothing here needs it

    def stop(self) -> None:
        # A loop that is closed has forgotten its readers.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.poller.fd)
            if self._bell is not None:
                self._loop.remove_reader(self._bell.fd)
        self.poller.close()
        if self._bell is not None:
            self._bell.close()


class CallerDriver:
    """The blocking twin: callers drive the socket, and the I/O thread while none of them does.

    The I/O thread watches the epoll set until a caller sleeps in it, or looks at it often enough while messages wait.
    Then it looks every 10 ms whether somebody still does; where nobody has since, the owner is away, or works, and the
    I/O thread watches again. So an event waits for 20 ms at most. While a caller sleeps on and on it looks ever more
    rarely, and the call that ends the sleep has it look again a little later; without waking it, for it would wake on
    the caller's core.

    The I/O thread does not hold the socket by it: one that its owner drops is to be closed.
    """

    has_thread = True

    def __init__(self, core: SyncCore, flusher: Flusher, alarm: Alarm, bell: Bell) -> None:
        self.lock: contextlib.AbstractContextManager[Any] = core.lock
        self.pipe_lock = core.lock
        self.poller = core.poller
        self.flusher = flusher
        self.bell = bell
        self.readable: Gate = core.readable
        self.writable: Gate = core.writable
        self._watch_writable = core.writable.watch
        self._core: Callable[[], SyncCore | None] = weakref.ref(core)
        self._alarm = alarm
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outlet: Outlet | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _AWAY
        self._looks = 0
        self._watches = False  # the loop watches the epoll set
        self._stopped = False

    def assemble(self, outlet: Outlet | None) -> None:
        self._outlet = outlet
        self._schedule()

    def _schedule(self) -> None:
        if self._outlet is not None and self._loop is not None:
            self._outlet.set_schedule(functools.partial(self.bell.call, self._flush_turn))
            self._outlet.set_report(functools.partial(self.bell.call, self._outlet.report))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        core = self._core()
        assert core is not None
        core._set_thread(self.bell, self._give_way, self._attend, functools.partial(self._alarm.set, self._attend))
        self._schedule()
        self._watch()

    def move(self) -> None:
        raise AssertionError("the I/O thread's loop stays there")

    def hold(self, core: SyncCore) -> None:
        self._core = lambda: core

    def _flush_turn(self) -> None:
        core = self._core()
        if core is not None:
            core.flush_turn()

    def _watch(self) -> None:
        assert self._loop is not None
        core = self._core()
        if core is not None and not self._stopped and not self._watches:
            self._watches = True
            core.set_watched(True)
            core.set_drowsy(False)
            self._loop.add_reader(self.poller.fd, self._dispatch)

    def _dispatch(self) -> None:
        core = self._core()
        if core is None:
            return  # it is being dropped at this very moment, and will be held
        if core.attended and not core.published:
            self._give_way()
        else:
            core.dispatch()

    def _give_way(self) -> None:
        """A caller is there and does the work."""
        assert self._loop is not None
        core = self._core()
        if core is None or self._stopped or not self._watches or core.published:
            return
        self._watches = False
        core.set_watched(False)
        self._loop.remove_reader(self.poller.fd)
        self._looks = core.looks
        self._look_again(_AWAY)

    def _look_again(self, pause: float) -> None:
        assert self._loop is not None
        self._pause = pause
        self._timer = self._loop.call_later(pause, self._look)

    def _look(self) -> None:
        """Does anybody serve the epoll set?"""
        self._timer = None
        core = self._core()
        if core is None or self._stopped or self._watches:
            return
        looks, self._looks = self._looks, core.looks
        if core.published:
            self._watch()
        elif core.attended:
            slower = min(self._pause * 2, _DROWSY) if looks == self._looks else _AWAY
            core.set_drowsy(slower > _AWAY)
            self._look_again(slower)
        elif looks != self._looks:
            self._look_again(_AWAY)
        else:
            self._watch()

    def take_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._watch()

    def _attend(self) -> None:
        """A long sleep is over, or the user has asked for a descriptor: look at usual intervals again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        core = self._core()
        if core is not None and not self._stopped and not self._watches:
            if core.published:
                self._watch()
            else:
                self._look_again(_AWAY)

    def watch_writable(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        return self._watch_writable(loop)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        core = self._core()
        if self._loop is not None and self._watches:
            self._watches = False
            self._loop.remove_reader(self.poller.fd)
            if core is not None:
                core.set_watched(False)
        if core is not None:
            core._close_descriptors()


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
