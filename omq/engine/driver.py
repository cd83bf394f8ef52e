"""The driver of a socket's descriptors: the user's event loop, or the threads that make calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from omq._core.bell import Bell
from omq._core.calls.call import AsyncCore
from omq._core.calls.sync import SyncCore
from omq._core.link.deferred_calls import DeferredCalls
from omq._core.link.flusher import Flusher
from omq._core.link.poller import Poller
from omq._core.lock import SocketLock
from omq._core.queues.peer import SendQueue
from omq._core.queues.wait_queue import WaitQueue
from omq.unpatched import threading

#: Functions of asyncio that the core calls: the running loop, its current task, and the tasks that have begun within a
#: step of another one (`asyncio.eager_task_factory`, Python 3.12; it has no public name).
TASKS: tuple[Any, Any, Any] = (
    asyncio._get_running_loop,
    asyncio.current_task,
    getattr(asyncio.tasks, "_eager_tasks", frozenset()),
)

_IDLE_TIMEOUT_S = 0.01  # without a poll of a caller, after which the I/O thread serves the epoll set
_MAX_POLL_INTERVAL_S = 1.0  # between two checks while a caller sleeps in its socket


class Driver(Protocol):
    """The driver of an engine's descriptors.

    Attributes:
        lock: Held while queues and peers are used.
        pipe_lock: The same for inproc pipes; `None` if one thread owns them.
        poller: The epoll set of the socket's connections.
        readable: The queue of calls that wait for messages.
        writable: The queue of calls that wait for room.
        flusher: Writes what callers have not written; `None` if the loop does so at the end of a turn.
        has_thread: Whether the loop always runs in a thread of its own.
    """

    has_thread: bool
    lock: contextlib.AbstractContextManager[Any]
    poller: Poller
    readable: WaitQueue
    writable: WaitQueue

    @property
    def pipe_lock(self) -> SocketLock | None: ...

    @property
    def bell(self) -> Bell:
        """The bell that makes calls in the loop; only once there is a loop."""
        ...

    @property
    def flusher(self) -> Flusher | None: ...

    def assemble(self, send_queue: SendQueue | None) -> None:
        """Takes the new queue of messages to send; `None` if the type does not send."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts in a loop, which runs in this thread."""

    def move(self) -> None:
        """Notes that the loop runs in this thread from now on."""

    def leave_loop(self) -> None:
        """Stops in a loop that ends, or has ended; `start` gives another one."""

    def take_over(self) -> None:
        """Lets the loop do all the work from now on: no more calls come."""

    def watch_writable(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Returns a future that is done when something has left."""

    @property
    def is_orphaned(self) -> bool:
        """Returns whether the socket is gone, or is being finalized right now."""
        ...

    def hold(self, core: Any) -> None:
        """Keeps a socket that was dropped alive, so that its last messages leave."""

    def meet(self, core: Any) -> None:
        """Restores the reference to a socket that was dropped and is used by a finalizer."""

    def stop(self) -> None:
        """Stops for good."""


class LoopDriver:
    """Drives an asyncio socket: everything happens in the user's loop, without a lock.

    The driver holds no reference to the socket, which must be closed when its owner drops it.
    """

    has_thread = False
    pipe_lock = None
    flusher = None

    def __init__(self, core: AsyncCore) -> None:
        self.lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.poller = Poller(core.turn)
        self.readable: WaitQueue = core.readable
        self.writable: WaitQueue = core.writable
        self._loop: asyncio.AbstractEventLoop | None = None
        self._send_queue: SendQueue | None = None
        self._watch = core.writable.watch
        self._bell: Bell | None = None

    @property
    def bell(self) -> Bell:
        """The bell of inproc pipes, through which sockets of other threads reach this one."""
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

    def assemble(self, send_queue: SendQueue | None) -> None:
        self._send_queue = send_queue

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_reader(self.poller.fd, self.poller.dispatch)
        if self._bell is not None:  # opened in an earlier loop
            self._bell.thread = threading.get_ident()
            loop.add_reader(self._bell.fd, self._bell.answer)
        if self._send_queue is not None:
            self._send_queue.set_schedule(functools.partial(loop.call_soon, self._send_queue.flush_turn))
            self._send_queue.set_report(functools.partial(loop.call_soon, self._send_queue.report))

    def leave_loop(self) -> None:
        # A closed loop has forgotten its readers.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.poller.fd)
            if self._bell is not None:
                self._loop.remove_reader(self._bell.fd)

    def take_over(self) -> None:
        pass

    def watch_writable(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        return self._watch(loop)

    @property
    def is_orphaned(self) -> bool:
        return False

    def hold(self, core: Any) -> None:
        pass  # nothing here refers to it

    def meet(self, core: Any) -> None:
        pass

    def stop(self) -> None:
        self.leave_loop()
        self.poller.close()
        if self._bell is not None:
            self._bell.close()


class CallerDriver:
    """Drives a blocking socket: callers do, or the I/O thread while no caller does.

    The I/O thread watches the epoll set until a caller sleeps in it, or polls it often enough while messages are
    queued. Then it checks every 10 ms whether a caller has polled since. If none has, the callers are away or busy, and
    the I/O thread watches again. So an event waits for at most 20 ms. While a caller sleeps for long, the I/O thread
    checks ever more rarely. The call that ends the sleep makes it check soon, but does not wake it, because it would
    wake on the caller's core.

    The driver holds a weak reference to the socket, which must be closed when its owner drops it.
    """

    has_thread = True

    def __init__(self, core: SyncCore, flusher: Flusher, deferred_calls: DeferredCalls, bell: Bell) -> None:
        self.lock: contextlib.AbstractContextManager[Any] = core.lock
        self.pipe_lock = core.lock
        self.poller = core.poller
        self.flusher = flusher
        self.bell = bell
        self.readable: WaitQueue = core.readable
        self.writable: WaitQueue = core.writable
        self._watch_writable = core.writable.watch
        self._core: Callable[[], SyncCore | None] = weakref.ref(core)
        self._deferred_calls = deferred_calls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._send_queue: SendQueue | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _IDLE_TIMEOUT_S
        self._looks = 0
        self._watches = False  # the loop watches the epoll set
        self._stopped = False

    def assemble(self, send_queue: SendQueue | None) -> None:
        self._send_queue = send_queue
        self._schedule()

    def _schedule(self) -> None:
        if self._send_queue is not None and self._loop is not None:
            self._send_queue.set_schedule(functools.partial(self.bell.call, self._flush_turn))
            self._send_queue.set_report(functools.partial(self.bell.call, self._send_queue.report))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        core = self._core()
        assert core is not None
        core._set_thread(
            self.bell,
            self._give_way,
            self._come,
            functools.partial(self._deferred_calls.set, self._attend),
            functools.partial(self._deferred_calls.cancel, self._attend),
        )
        self._schedule()
        if core.attended and not core.published:
            self._looks = core.looks
            self._look_again(_IDLE_TIMEOUT_S)  # a caller waits already, and serves the epoll set
        else:
            self._watch()

    def move(self) -> None:
        raise AssertionError("the I/O thread's loop stays there")

    def leave_loop(self) -> None:
        raise AssertionError("the I/O thread's loop ends with its sockets")

    @property
    def is_orphaned(self) -> bool:
        """Returns whether the socket is gone, or is being finalized right now."""
        return self._core() is None

    def hold(self, core: SyncCore) -> None:
        self._core = lambda: core

    def meet(self, core: SyncCore) -> None:
        """Restores the weak reference to the socket, which the collector clears before it calls a finalizer."""
        if self._core() is None and not self._stopped:
            self._core = weakref.ref(core)

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
            return  # the socket is being finalized, and `hold` will keep it
        if core.attended and not core.published:
            self._give_way()
        else:
            core.dispatch()
            if self.poller.relieved:
                self._give_way()  # each poll needs the GIL, which the caller has

    def _give_way(self) -> None:
        """Leaves the epoll set to a caller: the loop stops watching it."""
        assert self._loop is not None
        core = self._core()
        if core is None or self._stopped or not self._watches or not core.cease_watching():
            return
        self._watches = False
        self._loop.remove_reader(self.poller.fd)
        self._looks = core.looks
        self._look_again(_IDLE_TIMEOUT_S)

    def _look_again(self, pause: float) -> None:
        assert self._loop is not None
        self._pause = pause
        self._timer = self._loop.call_later(pause, self._look)

    def _look(self) -> None:
        """Checks whether a caller still serves the epoll set."""
        self._timer = None
        core = self._core()
        if core is None or self._stopped or self._watches:
            return
        looks, self._looks = self._looks, core.looks
        if core.published:
            self._watch()
        elif core.attended:
            slower = (
                min(self._pause * 2, _MAX_POLL_INTERVAL_S)
                if looks == self._looks or core.sleeps_long
                else _IDLE_TIMEOUT_S
            )
            core.set_drowsy(slower > _IDLE_TIMEOUT_S)
            self._look_again(slower)
        elif looks != self._looks:
            self._look_again(_IDLE_TIMEOUT_S)
        else:
            self._watch()

    def take_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._watch()

    def _come(self) -> None:
        """Watches for arrivals that happen outside of calls from now on."""
        core = self._core()
        if core is not None:
            core.heed_call()
            self._attend()

    def _attend(self) -> None:
        """Returns to the usual interval: a long sleep is over, or the user has asked for a descriptor."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        core = self._core()
        if core is not None and not self._stopped and not self._watches:
            core.set_drowsy(False)
            if core.published:
                self._watch()
            else:
                self._looks = core.looks  # polls before the end of the sleep do not count
                self._look_again(_IDLE_TIMEOUT_S)

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
            core._mark_closed()  # no call may wait any more, whatever ended the socket
            core._close_descriptors()
        self._core = _gone  # `hold` may have made it a strong one


def _gone() -> None:
    return None
