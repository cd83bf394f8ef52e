"""The driver of a socket's descriptors: the caller's event loop, or the threads that call."""

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

#: What the core asks of asyncio: the loop that runs, its current task, and the tasks that have begun within another
#: one's step (`asyncio.eager_task_factory`, Python 3.12; it has no public name).
TASKS: tuple[Any, Any, Any] = (
    asyncio._get_running_loop,
    asyncio.current_task,
    getattr(asyncio.tasks, "_eager_tasks", frozenset()),
)

_IDLE_TIMEOUT_S = 0.01  # seconds without a look of a caller's after which the I/O thread serves the epoll set
_MAX_POLL_INTERVAL_S = 1.0  # seconds at most between two looks while a caller sleeps in its socket


class Driver(Protocol):
    """A driver, as the engine sees it.

    Attributes:
        lock: Held while queues and peers are touched.
        pipe_lock: The same for inproc pipes; `None` where one thread owns them.
        poller: The epoll set of the socket's connections.
        readable: Where calls wait for messages.
        writable: Where calls wait for room.
        flusher: Writes what callers left behind; `None` where the loop's turn ends it.
        has_thread: Whether the loop has a thread of its own, for good.
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
        """Has something called in the loop; once there is one."""
        ...

    @property
    def flusher(self) -> Flusher | None: ...

    def assemble(self, send_queue: SendQueue | None) -> None:
        """The queue for what is sent is there, if the type has one."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop is there, and runs in this thread."""

    def move(self) -> None:
        """The loop runs in this thread from now on."""

    def leave_loop(self) -> None:
        """The loop ends, or has ended; `start` gives another one."""

    def take_over(self) -> None:
        """The loop does all the work from now on: no calls are to come."""

    def watch_writable(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A Future that is done when something has left."""

    @property
    def is_orphaned(self) -> bool:
        """Returns whether the socket is gone, or is being dropped at this very moment."""
        ...

    def hold(self, core: Any) -> None:
        """Keeps the socket alive from now on: its owner has dropped it, and its last messages are to leave."""

    def meet(self, core: Any) -> None:
        """Restores the reference to a socket that has been dropped and that a finalizer uses."""

    def stop(self) -> None:
        """Nothing is to be driven any more."""


class LoopDriver:
    """The asyncio twin: everything happens in the caller's loop, under no lock.

    The driver has no reference to the socket, which is to be closed when its owner drops it.
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

    def assemble(self, send_queue: SendQueue | None) -> None:
        self._send_queue = send_queue

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_reader(self.poller.fd, self.poller.dispatch)
        if self._bell is not None:  # from a loop before
            self._bell.thread = threading.get_ident()
            loop.add_reader(self._bell.fd, self._bell.answer)
        if self._send_queue is not None:
            self._send_queue.set_schedule(functools.partial(loop.call_soon, self._send_queue.flush_turn))
            self._send_queue.set_report(functools.partial(loop.call_soon, self._send_queue.report))

    def leave_loop(self) -> None:
        # A loop that is closed has forgotten its readers.
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
        pass  # nothing here needs it

    def meet(self, core: Any) -> None:
        pass

    def stop(self) -> None:
        self.leave_loop()
        self.poller.close()
        if self._bell is not None:
            self._bell.close()


class CallerDriver:
    """The blocking twin: callers drive the socket, and the I/O thread while none of them does.

    The I/O thread watches the epoll set until a caller sleeps in it, or looks at it often enough while messages wait.
    Then it checks every 10 ms whether a caller has looked since. If none has, the owner is away, or works, and the
    I/O thread watches again. So an event waits for 20 ms at most. During a long sleep of a caller the I/O thread
    checks ever more rarely. The call that ends the sleep makes it check again a little later, and does not wake it
    for that: it would wake on the caller's core.

    The driver has a weak reference to the socket, which is to be closed when its owner drops it.
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
            self._look_again(_IDLE_TIMEOUT_S)  # a caller waits already, and serves the set
        else:
            self._watch()

    def move(self) -> None:
        raise AssertionError("the I/O thread's loop stays there")

    def leave_loop(self) -> None:
        raise AssertionError("the I/O thread's loop ends with its sockets")

    @property
    def is_orphaned(self) -> bool:
        """Returns whether the socket is gone, or is being dropped at this very moment."""
        return self._core() is None

    def hold(self, core: SyncCore) -> None:
        self._core = lambda: core

    def meet(self, core: SyncCore) -> None:
        """Restores the weak reference to the socket, which the collector has cleared before it called a finalizer."""
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
            return  # the socket is being dropped at this very moment, and will be held
        if core.attended and not core.published:
            self._give_way()
        else:
            core.dispatch()
            if self.poller.relieved:
                self._give_way()  # each look needs the GIL, which the owner has

    def _give_way(self) -> None:
        """A caller does the work: the loop ceases to watch."""
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
        """Looks for arrivals from now on without a call."""
        core = self._core()
        if core is not None:
            core.heed_call()
            self._attend()

    def _attend(self) -> None:
        """A long sleep is over, or the user has asked for a descriptor: look at usual intervals again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        core = self._core()
        if core is not None and not self._stopped and not self._watches:
            core.set_drowsy(False)
            if core.published:
                self._watch()
            else:
                self._looks = core.looks  # looks before the end of the sleep do not count
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
            core._mark_closed()  # no call is to wait any more, whatever ended the socket
            core._close_descriptors()
        self._core = _gone  # `hold` may have kept it


def _gone() -> None:
    return None
