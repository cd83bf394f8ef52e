import asyncio
from collections.abc import Callable

from omq._core.bell import Bell
from omq._core.calls.readable_event import ReadableEvent
from omq._core.link.poller import Poller
from omq._core.lock import SocketLock
from omq._core.queues.peer import RecvQueue, SendQueue
from omq._core.queues.wait_queue import WaitQueue

class ForkGuard:
    """Whether the process is still the one that made the sockets."""

    @property
    def stale(self) -> bool:
        """Whether the process has forked: nothing inherited is to be used."""

    def expire(self, inherited: object) -> None:
        """The process has forked; *inherited* is kept for ever, for its end would disturb the parent."""

class SyncWaitQueue(WaitQueue):
    """Wakes the first call that waits; that call passes the wake-up on if there is more."""

    @property
    def waiting(self) -> int:
        """Calls that wait here."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A Future of *loop*, the I/O thread's, that is done at the next notification, from whatever thread."""

    def show(self, readable_event: ReadableEvent) -> None:
        """Has every notification make *readable_event* readable, until `hide`."""

    def hide(self, readable_event: ReadableEvent) -> None:
        """Notifications leave *readable_event* alone again."""

class LeaderCore:
    """Where the threads that call on one socket wait."""

    @property
    def closed(self) -> bool:
        """Whether the socket is closed, or closing."""

    @property
    def lock(self) -> SocketLock:
        """Held while queues and peers are touched; never while anybody sleeps."""

    @property
    def poller(self) -> Poller: ...
    @property
    def readable(self) -> SyncWaitQueue: ...
    @property
    def writable(self) -> SyncWaitQueue: ...
    @property
    def recv_queue(self) -> RecvQueue | None: ...
    @property
    def send_queue(self) -> SendQueue | None: ...
    @property
    def watched(self) -> bool:
        """Whether the I/O thread watches the epoll set."""

    @property
    def attended(self) -> bool:
        """Whether a caller sleeps in the epoll set, and so handles its events."""

    @property
    def published(self) -> bool:
        """Whether a descriptor that the user has must show what arrives."""

    @property
    def looks(self) -> int:
        """How often callers have looked at the epoll set: the number grows while they serve it."""

    def _assemble(self, recv_queue: RecvQueue | None, send_queue: SendQueue | None, fork_guard: ForkGuard) -> None: ...
    def _set_thread(
        self,
        bell: Bell,
        unwatch: Callable[[], None],
        attend: Callable[[], None],
        rouse: Callable[[], None],
        calm: Callable[[], None],
    ) -> None: ...
    def _set_spin(self, nanoseconds: int, adaptive: bool) -> None: ...
    def _set_long_sleep(self, nanoseconds: int) -> None: ...
    def _mark_closed(self) -> None: ...
    def _close_descriptors(self) -> None: ...
    def _abandon(self) -> None: ...
    def set_watched(self, watched: bool) -> None:
        """The I/O thread has begun, or ceased, to watch the epoll set."""

    @property
    def sleeps_long(self) -> bool:
        """Whether the last sleep in the epoll set was a long one."""

    def set_drowsy(self, drowsy: bool) -> None:
        """Whether the next call that ends a wait is to tell the I/O thread."""

    def cease_watching(self) -> bool:
        """The I/O thread ceases to watch the epoll set, unless a descriptor has to show messages; True if it ceases."""

    def heed_call(self) -> None:
        """The I/O thread begins to do what `_attend` asked for, and may be asked again."""

    def dispatch(self) -> None:
        """Handles events while no caller sleeps in the epoll set; mostly on the I/O thread."""

    def flush_turn(self) -> None:
        """Gives what waits in the queue to peers that have become free; on the I/O thread."""
