"""The descriptor of a socket for event loops: it becomes readable when the socket may have become ready."""

from __future__ import annotations

import contextlib

from omq._core.calls.readable_event import ReadableEvent
from omq._core.calls.zmq_calls import Handle
from omq.unpatched import select


class EventDescriptor:
    """A descriptor that is readable from the moment that a message has arrived, or room has come, until `reset`.

    So a loop that watches it does not spin while a message waits that the program does not take. As with libzmq's, the
    program takes what there is until `Again`, or checks `EVENTS` after each step.

    Args:
        handle: The socket.
    """

    def __init__(self, handle: Handle) -> None:
        self._epoll = select.epoll()
        self._stack = contextlib.ExitStack()
        self._room: ReadableEvent | None = None
        # Edge-triggered: an event makes the epoll set readable once.
        flags = select.EPOLLIN | select.EPOLLET
        try:
            if handle.receives:
                self._epoll.register(handle.omq.fileno(), flags)
            if handle.sends:
                self._room = ReadableEvent()
                self._epoll.register(self._room.fileno(), flags)
                handle.omq._show_room(self._room, self._stack)
                self._room.set()
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self._epoll.fileno()

    def reset(self) -> None:
        """Makes the descriptor unreadable until the next event; readiness must be checked after that."""
        if self._room is not None:
            self._room.reset()
        self._epoll.poll(0)

    def close(self) -> None:
        """Closes the descriptor."""
        self._stack.close()
        self._epoll.close()
