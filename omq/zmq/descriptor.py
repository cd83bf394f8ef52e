"""The descriptor of a socket for event loops: it becomes readable when the socket may have become ready."""

from __future__ import annotations

import contextlib
from typing import Final

from omq._core.calls.readable_event import ReadableEvent
from omq._core.zmq.calls import Handle
from omq.unpatched import select

#: An event makes the epoll set readable once.
_EDGE: Final = select.EPOLLIN | select.EPOLLET


class EventDescriptor:
    """A descriptor that is readable from the moment that a message has arrived, or room has come, until `reset`.

    So a loop that watches it does not spin while a message waits that the program does not take. As with libzmq's, the
    program takes what there is until `Again`, or checks `EVENTS` after each step.

    Args:
        handle: The socket.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._epoll = select.epoll()
        self._stack = contextlib.ExitStack()
        self._room: ReadableEvent | None = None
        self._is_attached = False
        try:
            if handle.sends:
                self._room = ReadableEvent()
                self._epoll.register(self._room.fileno(), _EDGE)
                self._room.set()
        except BaseException:
            self.close()
            raise

    def attach(self) -> None:
        """Makes the descriptor follow the socket.

        The socket is in use from then on, so most of its options can be changed before the first endpoint only.
        """
        if self._is_attached:
            return
        self._is_attached = True
        if self._handle.receives:
            self._epoll.register(self._handle.omq.fileno(), _EDGE)
        if self._room is not None:
            self._handle.omq._show_room(self._room, self._stack)
            self._room.set()

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
