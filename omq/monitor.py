"""Monitors of a socket and its connections, which deliver typed events (`zmq_socket_monitor(3)`)."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import NoReturn, Self, SupportsIndex

from omq._core.calls.attempt import checked_count
from omq._core.calls.event_queue import EventQueue, SyncEventQueue
from omq.engine.socket import Engine
from omq.event import Event, EventKind, HandshakeFailure

__all__ = ["Event", "EventKind", "HandshakeFailure", "Monitor"]


def _missed(limit: int, count: int, when: float) -> Event:
    return Event(kind=EventKind.MISSED, time=when, reason=f"more than limit={limit} events waited", count=count)


class MonitorBase(EventQueue):
    """Base of the blocking and the asyncio monitor."""

    def __init__(self, engine: Engine, limit: int) -> None:
        limit = checked_count("limit", limit)
        self._engine = engine
        self._assemble(limit, EventKind.MONITOR_STOPPED, partial(_missed, limit), engine.fork_guard)
        engine.reporter.add(self)

    def close(self) -> None:
        """Ends the monitor and discards queued events; calls that wait for an event raise. Idempotent."""
        if self._engine.fork_guard.stale:
            return
        self._engine.reporter.remove(self)
        self._forget()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a monitor cannot be copied or pickled: monitor() of the socket makes another one")

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{type(self).__module__}.Monitor of a {self._engine.socket_type.value}, {state}>"


class Monitor(MonitorBase, SyncEventQueue):
    """A queue of the events of a blocking socket, in order. Iterate over it, or call `recv`. Threads may share it.

    It holds at most `limit` events. If it is full, it drops the oldest events, and one event `missed` with their count
    replaces them. The socket never waits for a monitor, and does not keep a monitor alive. The last event is
    `monitor_stopped`, when the socket is closed.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
