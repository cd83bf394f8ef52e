import asyncio
from typing import Any

from omq._core.link.poller import Poller
from omq._core.queues.peer import RecvQueue, SendQueue

class AsyncSocketBase:
    """An asyncio socket without its calls."""

    @property
    def closed(self) -> bool:
        """Whether the socket is closed, or closing."""

    @property
    def recv_queue(self) -> RecvQueue | None: ...
    @property
    def send_queue(self) -> SendQueue | None: ...
    def _assemble(
        self,
        recv_queue: RecvQueue | None,
        send_queue: SendQueue | None,
        running: Any,
        current_task: Any,
        eager_tasks: Any,
        poller: Poller,
    ) -> None: ...
    def _abandon(self) -> None: ...
    def _set_loop(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def _attach(self, loop: asyncio.AbstractEventLoop | None) -> None: ...
    def fileno(self) -> int:
        """A descriptor that is readable exactly while a message waits: level-triggered, for any `select`.

        The descriptor stays the same, belongs to the socket, and becomes readable when the socket closes, or at
        `release_fileno`. While a task waits in a call that receives, that call gets the messages.

        Raises:
            StateError: The type does not receive, or this is another loop.
            ClosedError: The socket is closed.
        """

    def release_fileno(self) -> None:
        """Gives back the descriptor of `fileno`: it no longer shows whether a message waits.

        Take the descriptor out of selectors and loops first. A thread that still selects on it wakes up: from now on it
        is readable, whether a message waits or not, as it is once the socket is closed. It stays open until the socket
        is closed, so that no file opened next gets its number, and `fileno` returns the same descriptor when it is
        called again. After `close` it closes the descriptor. Does nothing if `fileno` has not been called.

        Raises:
            StateError: This is another loop, or the process has forked.
        """
