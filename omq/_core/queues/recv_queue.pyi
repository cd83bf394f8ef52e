from omq._core.queues.matcher import Matcher
from omq._core.queues.peer import Peer, RecvQueue
from omq._core.queues.wait_queue import WaitQueue

class FilteredRecvQueue(RecvQueue):
    """SUB: returns only messages that a subscription covers.

    Args:
        wait_queue: Where receiving calls wait.
        matcher: The subscriptions.
        invert: Return messages that none covers (`ZMQ_INVERT_MATCHING`).
    """

    def __init__(self, wait_queue: WaitQueue, matcher: Matcher, invert: bool) -> None: ...
    @property
    def matcher(self) -> Matcher: ...

class ConflatedRecvQueue(FilteredRecvQueue):
    """Keeps the newest message of each peer (`ZMQ_CONFLATE`); a SUB's is held against its subscriptions, too."""

    def __init__(self, wait_queue: WaitQueue, matcher: Matcher | None = None, invert: bool = False) -> None: ...

class ShapedRecvQueue(RecvQueue):
    """Gives messages in another shape than they have on the wire."""

class RouterRecvQueue(ShapedRecvQueue):
    """ROUTER: the sender's identity comes first (RFC 28)."""

class ReplyRecvQueue(ShapedRecvQueue):
    """REP: the envelope up to the empty delimiter is kept for the reply (RFC 28)."""

class RequestRecvQueue(ShapedRecvQueue):
    """REQ: only the reply of the peer that was asked counts (RFC 28)."""

    def forget(self, peer: Peer) -> None:
        """Forgets a peer that is gone: if it has the request, the next one may be sent."""
