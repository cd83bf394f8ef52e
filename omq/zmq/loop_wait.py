"""The wait of an event loop for a socket: the loop reads for the socket, as a thread in a blocking call does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omq import errors
from omq._core.zmq.poll import PollGroup
from omq.zmq.constants import PollEvent, SocketType
from omq.zmq.error import translate

_PUBLISHERS = (SocketType.PUB, SocketType.XPUB, SocketType.RADIO)
_BOTH = int(PollEvent.POLLIN | PollEvent.POLLOUT)


class LoopWait:
    """A socket's descriptor for one loop: readable while `ready` has something to do.

    Args:
        socket: The socket.
        close: What `close` of a loop that closes its files calls.
    """

    def __init__(self, socket: Any, close: Callable[[], None]) -> None:
        socket._check()
        self._handle = socket._handle
        self._group = PollGroup([(socket, self._handle, _BOTH)])
        # No other thread reads while the loop leads and computes. A publisher would drop what it sends then to a new
        # subscriber, so it leaves that to the I/O thread.
        self._leads = socket.type not in _PUBLISHERS
        self.close = close

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self._group.fileno()

    def ready(self) -> int:
        """Returns the events that hold; from now on the descriptor shows others.

        Raises:
            ZMQError: The socket is closed, or its context is terminated.
        """
        try:
            found = self._group.poll(0)
        except errors.OmqError as error:
            raise translate(error, self._handle) from None
        return found[0][1] if found else 0

    def begin(self) -> None:
        """Begins a sleep of the loop: `end`, then `ready`, must follow each event of the descriptor."""
        try:
            if self._leads:
                self._group.lead()
        except errors.OmqError:
            pass  # the descriptor shows that the socket is closed

    def end(self) -> None:
        """Ends what `begin` began."""
        self._group.leave()

    def release(self) -> None:
        """Closes the descriptor."""
        self._group.leave()
        self._group.close()
