"""What happens to a socket's connections, one typed event after the other (`zmq_socket_monitor(3)`)."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from omq._core.clock import patience
from omq.engine.socket import Engine
from omq.errors import ClosedError, ReceiveTimeout, StateError
from omq.event import Event, EventKind, HandshakeFailure

__all__ = ["Event", "EventKind", "HandshakeFailure", "Monitor"]


class Feed:
    """The bounded queue of one monitor, without a way to wait.

    The newest events are kept: what is lost to a slow reader is older than what it finds, and counted.
    """

    def __init__(self, engine: Engine, limit: int) -> None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ValueError(f"limit={limit!r}: must be a whole number, at least 1")
        self._engine = engine
        self._limit = limit
        self._events: deque[Event] = deque()
        self._missed = 0
        self._over = False
        self._changed = threading.Condition()
        engine.reporter.add(self)

    def put(self, event: Event) -> None:
        """Takes an event in, from whatever thread; never waits."""
        with self._changed:
            if self._over:
                return
            if len(self._events) >= self._limit:
                self._events.popleft()
                self._missed += 1
            self._events.append(event)
            self._over = event.kind is EventKind.MONITOR_STOPPED
            self._wake()

    def _wake(self) -> None:
        """There is something for those who wait."""
        self._changed.notify_all()

    def _take(self) -> Event | None:
        """The next event, if one is there.

        Raises:
            ClosedError: There will be none.
            StateError: The process has forked.
        """
        if self._engine.generation.stale:
            # Before the lock, which may be held for ever in the child.
            raise StateError("this monitor belongs to the parent process: make a new socket after fork()")
        with self._changed:
            if self._missed:
                count, self._missed = self._missed, 0
                reason = f"more than limit={self._limit} events waited"
                when = self._events[0].time if self._events else time.time()
                return Event(kind=EventKind.MISSED, time=when, reason=reason, count=count)
            if self._events:
                return self._events.popleft()
            if self._over:
                raise ClosedError("the monitor is closed, or its socket is")
            return None

    @property
    def closed(self) -> bool:
        """Whether no further events come; those that wait can still be received."""
        return self._over

    def close(self) -> None:
        """Ends the monitor and forgets what waits; who waits for an event is told. Idempotent."""
        if self._engine.generation.stale:
            return
        self._engine.reporter.remove(self)
        with self._changed:
            self._over = True
            self._missed = 0
            self._events.clear()
            self._wake()

    def __repr__(self) -> str:
        state = "closed" if self._over else "open"
        return f"<{type(self).__module__}.Monitor of a {self._engine.socket_type.value}, {state}>"


class Monitor(Feed):
    """The events of a blocking socket, in their order; iterate over it, or call `recv`. Threads may share it.

    It holds at most `limit` events: a reader that falls behind loses the oldest and finds an event `missed`, with
    their number, in their place. The socket never waits for a monitor, and does not keep one that nobody holds.
    The last event is `monitor_stopped`, when the socket is closed.
    """

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
        timeout = patience(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while (event := self._take()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise ReceiveTimeout(f"no event within {timeout} s")
            with self._changed:
                if not self._events and not self._over:
                    self._changed.wait(left)
        return event

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return self.recv()
        except ClosedError:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
