"""Outlets whose messages say whom they are for."""

from omq._core.queues.gate import Gate
from omq._core.queues.inlet import ReplyInlet
from omq._core.queues.peer import Outlet, Peer

class Addressed(Outlet):
    """ROUTER: the first part names the peer (RFC 28).

    Args:
        gate: Where sending calls wait.
        hwm: Messages that may wait for one peer; 0 for no bound.
        mandatory: An unknown peer is an error, and a full one makes `send` wait.
    """

    def __init__(self, gate: Gate, hwm: int, mandatory: bool) -> None: ...
    @property
    def table(self) -> dict[bytes, Peer]:
        """Peers by identity."""

    def set_mandatory(self, mandatory: bool) -> None: ...

class ReplyOutlet(Outlet):
    """REP: the reply goes to who asked, behind the envelope of the request (RFC 28)."""

    def __init__(self, gate: Gate, hwm: int, inlet: ReplyInlet) -> None: ...
