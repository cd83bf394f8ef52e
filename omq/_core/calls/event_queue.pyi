"""The bounded queue of one monitor: putting an event in never waits, and a call that is interrupted loses no event."""

from collections.abc import Callable
from typing import Any, Self

from omq._core.calls.leader import ForkGuard
from omq.event import Event

class EventQueue:
    """The newest events are kept: a slow reader loses the oldest, and learns how many."""

    @property
    def closed(self) -> bool:
        """Whether no further events come; events that wait can still be received."""

    def _assemble(
        self, limit: int, last: object, make_missed: Callable[[int, float], Event], fork_guard: ForkGuard
    ) -> None:
        """Sets how many events are kept, the last one's kind and the maker of `missed` events, before the first use."""

    def put(self, event: Event) -> None:
        """Takes an event in, from any thread; never waits."""

    def take(self) -> Event | None:
        """The next event, if one is there.

        Raises:
            ClosedError: No event waits, and none will come.
            StateError: The process has forked.
        """

    def _forget(self) -> None: ...

class SyncEventQueue(EventQueue):
    """An event queue whose readers are threads; iterate over it, or call `recv`."""

    def __init__(self, *_: Any) -> None: ...
    def recv(self, *, timeout: float | None = None) -> Event:
        """Waits for the next event.

        Args:
            timeout: Seconds; `None` for ever, 0 never.

        Raises:
            ReceiveTimeout: None came in time.
            ClosedError: The socket is closed and all its events have been received, or the monitor is closed.
            StateError: The process has forked.
            ValueError: The timeout is below 0, or no number.
        """

    def __iter__(self) -> Self: ...
    def __next__(self) -> Event: ...
