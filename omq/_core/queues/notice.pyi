from collections.abc import Iterable
from typing import Any

from omq._core.queues.object_peer import ObjectPeer
from omq._core.queues.peer import Peer, RecvQueue

class Notice(ObjectPeer):
    """Messages of the socket itself to its user, about a peer: the user takes them as if the peer had sent them.

    Args:
        session: The session of the peer.
        peer: The peer; its identity, and the place that it comes from, are those of the messages.
        messages: Each is bytes, or a tuple of several of them.
    """

    def __init__(self, session: Any, peer: Peer, messages: Iterable[bytes | tuple[bytes, ...]]) -> None: ...
    def stand(self, recv_queue: RecvQueue, after: Peer | None = None) -> None:
        """Joins the line of a receive queue, after all messages of *after*; under the lock of the socket."""
