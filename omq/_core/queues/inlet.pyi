from omq._core.queues.gate import Gate
from omq._core.queues.matcher import Matcher
from omq._core.queues.peer import Inlet, Peer

class FilterInlet(Inlet):
    """SUB: gives only what a subscription covers.

    Args:
        gate: Where receiving calls wait.
        matcher: The subscriptions.
        invert: Give what none covers (`ZMQ_INVERT_MATCHING`).
    """

    def __init__(self, gate: Gate, matcher: Matcher, invert: bool) -> None: ...
    @property
    def matcher(self) -> Matcher: ...

class ConflateInlet(FilterInlet):
    """Keeps the newest message of each peer (`ZMQ_CONFLATE`); a SUB's is held against its subscriptions, too."""

    def __init__(self, gate: Gate, matcher: Matcher | None = None, invert: bool = False) -> None: ...

class ShapedInlet(Inlet):
    """Gives messages in another shape than they have on the wire."""

class RouterInlet(ShapedInlet):
    """ROUTER: the sender's identity comes first (RFC 28)."""

class ReplyInlet(ShapedInlet):
    """REP: the envelope up to the empty delimiter is kept for the reply (RFC 28)."""

class RequestInlet(ShapedInlet):
    """REQ: only the reply of the peer that was asked counts (RFC 28)."""

    def forget(self, peer: Peer) -> None:
        """A peer is gone: if it has the request, the next one may be sent."""
