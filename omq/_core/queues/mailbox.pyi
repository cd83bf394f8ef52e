from omq._core.queues.object_peer import ObjectPeer
from omq._core.queues.peer import RecvQueue

class Mailbox(ObjectPeer):
    """Messages that wait for the user of an XPUB: its peers' subscriptions and their other messages.

    Args:
        recv_queue: Where they are taken.
        hwm: Messages of one peer that may wait; 0 for no bound.
        each: A subscription concerns the one peer that it came from.
    """

    def __init__(self, recv_queue: RecvQueue, hwm: int, each: bool) -> None: ...
    @property
    def unread(self) -> int:
        """Messages that wait to be taken."""

    @property
    def late(self) -> dict[bytes, tuple[bytes, object]]:
        """Changes that found no room, by peer and prefix, each with the box that it waits for."""
