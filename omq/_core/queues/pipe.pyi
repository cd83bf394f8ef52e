from typing import Any

from omq._core.bell import Bell
from omq._core.lock import SocketLock
from omq._core.queues.object_peer import ObjectPeer
from omq._core.queues.peer import RecvQueue

class Pipe(ObjectPeer):
    """One end of an inproc connection.

    Args:
        session: The engine's owner.
        recv_queue: Where this end's messages are taken; `None`: its send queue gets them, once it has one.
        capacity: Messages that wait here before the other end must wait (`recv_hwm`); 0 for no bound.
        bell: Calls functions in this end's loop.
        lock: Guards this end where threads share it; `None`: only its own thread uses it.
        conflate: A message replaces one that nobody has taken yet.
    """

    def __init__(
        self,
        session: Any,
        recv_queue: RecvQueue | None,
        capacity: int,
        bell: Bell,
        lock: SocketLock | None = None,
        conflate: bool = False,
    ) -> None: ...
    @property
    def lost(self) -> bool: ...
    @property
    def unread(self) -> int:
        """Messages that wait to be taken."""

    def join(self, partner: Pipe) -> None:
        """Connects the two ends."""

    def arrive(self) -> None:
        """Reports the messages that have arrived."""

    def reopen(self) -> None:
        """Notes that the partner has room again."""

    def close(self) -> None:
        """Leaves the partner; what has arrived on either side can still be taken."""
