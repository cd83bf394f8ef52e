from typing import Any

from omq._core.link.poller import Poller
from omq._core.queues.groups import GroupRecvQueue, UnaskedPeer
from omq._core.queues.object_peer import ObjectPeer

#: Bytes of a datagram at most, and of a group and a body in it.
MAX_DATAGRAM_BYTES: int
MAX_MESSAGE_BYTES: int

def parse_datagram(data: bytes) -> tuple[bytes, bytes] | None:
    """Gives the group and the body of a datagram, or `None` if it is malformed.

    Args:
        data: What one datagram carries.
    """

class DatagramSender(UnaskedPeer):
    """Sends each message as a datagram: at once, or, where they are dense in a loop's turn, many in one system call.

    What the kernel does not take is dropped, and counted.

    Args:
        session: The engine's owner.
        fd: A connected datagram descriptor; owned from here on.
        gathers: The turn of a loop ends what gathers; otherwise each datagram leaves at once.
    """

    fd: int
    def __init__(self, session: Any, fd: int, gathers: bool = False) -> None: ...
    def start(self) -> None:
        """Does nothing: nothing is read."""

    def close(self) -> None:
        """Closes the descriptor; what waits is dropped."""

    def close_after_fork(self) -> None:
        """Closes the descriptor in a forked child, and nothing else."""

class DatagramReceiver(ObjectPeer):
    """Receives the datagrams of all senders, and keeps the messages of the groups that were joined.

    Args:
        session: The engine's owner; its `end` is called if an event cannot be handled.
        fd: A bound datagram descriptor; owned from here on.
        poller: The epoll set of its socket.
        recv_queue: Where its messages are taken.
        recv_hwm: Messages; above it nothing is read, and the kernel drops what it has no room for. 0 for no bound.
        max_size: Bytes that a group and a body may have together; a larger datagram is dropped. `None` for no bound.

    Attributes:
        dropped: Datagrams that were dropped here because they were malformed or too large, or memory was short.
    """

    fd: int
    def __init__(
        self,
        session: Any,
        fd: int,
        poller: Poller,
        recv_queue: GroupRecvQueue,
        recv_hwm: int,
        max_size: int | None = None,
    ) -> None: ...
    def start(self) -> None:
        """Joins the epoll set: from here on datagrams are read."""

    def close(self) -> None:
        """Leaves the epoll set and closes the descriptor. What has arrived can still be taken."""

    def close_after_fork(self) -> None:
        """Closes the descriptor in a forked child, and nothing else."""
