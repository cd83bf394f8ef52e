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

        It stays the same one, belongs to the socket, and becomes readable when the socket closes, or at
        `release_fileno`. While somebody waits in a call that receives, that call has the messages.

        Raises:
            StateError: The type does not receive, or this is another loop.
            ClosedError: The socket is closed.
        """

    def release_fileno(self) -> None:
        """Gives back what `fileno` has given, so that nobody keeps it true any more.

        Take the descriptor out of selectors and loops before. Whoever still selects on it wakes up: it is readable from
        now on, whether a message waits or not, as it is when the socket closes. It is not closed, so that nobody can
        mistake what is opened next for it, and `fileno` gives the same one when it is used again. Does nothing where
        `fileno` has not been used, or the socket is closed.

        Raises:
            StateError: This is another loop, or the process has forked.
        """
