from typing import Any

from omq._core.link.background import Background
from omq._core.link.flusher import Flusher
from omq._core.link.poller import Poller
from omq._core.link.receiver import Receiver
from omq._core.queues.peer import RecvQueue
from omq._core.wire.codec import Codec
from omq._core.wire.pool import Pool

class Connection(Receiver):
    """A connected descriptor after its handshake.

    Args:
        session: The engine's owner; gets `on_command(body)`, `on_message(parts)` and `on_lost(reason)`; also, with
            `None`, `on_restrained`, after which it must call `look_again` in a moment, `on_drained`, see `retire`, and
            `on_dismissed`, after which it must retire the connection.
        fd: A non-blocking stream descriptor; owned from here on.
        poller: The epoll set of its socket.
        pool: Where blocks come from.
        recv_queue: Where its messages are taken; `None` gives them to the send queue, else to
            `session.on_message`.
        recv_hwm: Messages that may wait before reading stops; 0 for no bound.
        max_size: Bytes that one message may have, all parts together; `None` for no limit.
        max_parts: Parts that one message may have; `None` for 1048576.
        flusher: Writes batches that callers left behind; `None`: the send queue does, when the loop's turn ends.
        codec: How frames look on the wire; `None`: plain frames (RFC 23, Framing).
        background: The thread that reads and writes while nobody else does; `None`: there is none.
        ceiling: Bytes that may have arrived of an unfinished message while there is no *max_size*.
    """

    def __init__(
        self,
        session: Any,
        fd: int,
        poller: Poller,
        pool: Pool,
        recv_queue: RecvQueue | None,
        recv_hwm: int,
        max_size: int | None = None,
        max_parts: int | None = None,
        flusher: Flusher | None = None,
        codec: Codec | None = None,
        *,
        background: Background | None = None,
        ceiling: int = ...,
    ) -> None: ...
    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel does not have."""

    @property
    def untaken_bytes(self) -> int:
        """Bytes that the peer's kernel does not have; over ipc, the peer itself."""

    @property
    def parts_cleanly(self) -> bool:
        """Returns whether the peer has everything that was accepted for it, and closing destroys nothing there."""

    def start(self, received: bytes) -> None:
        """Joins the epoll set.

        Args:
            received: The bytes that came behind the handshake.
        """

    def close(self) -> None:
        """Leaves the epoll set and closes the descriptor."""

    def close_after_fork(self) -> None:
        """In a forked child: closes the descriptor and touches nothing that is shared with the parent."""

    def cease(self) -> None:
        """Ends our side of the stream, so that the peer sends nothing more; what it has sent until then comes still."""

    def retire(self) -> None:
        """Leaves routing: accepted messages still leave, and then the session hears of it (`on_drained`)."""

    def probe(self, frames: bytes) -> bool:
        """Sends a PING if there is need: an unread byte of the peer is a sign of life, and needs none.

        Returns:
            Whether it was sent.
        """

    @property
    def unheard(self) -> bool:
        """Whether the peer has sent something that we have not read, or that nobody would read now."""

    @property
    def held_up(self) -> bool:
        """Whether the peer's kernel lives and has no room for our bytes: the peer's process does not read."""

    def look_again(self) -> bool:
        """Lets the waiting commands go, a moment after `on_restrained`, if the peer's kernel has nothing left.

        Returns:
            Whether to look again in another moment.
        """

    def half_close(self) -> bool:
        """Ends our side of the stream and throws away what the peer still sends.

        Returns:
            Whether the peer's kernel has everything, so that closing loses nothing.
        """
