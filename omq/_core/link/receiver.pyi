"""The receiving half of a connection."""

from omq._core.queues.peer import Peer

class Receiver(Peer):
    """A descriptor in the epoll set of its socket, as far as reading goes; `Connection` makes it whole."""

    #: Commands that the session has been sent and has not heard of yet; it counts them down.
    untold: int
    @property
    def fd(self) -> int:
        """The descriptor; -1 once closed."""

    @property
    def lost(self) -> bool:
        """The connection is over; what has arrived can still be taken."""

    @property
    def slabs(self) -> int:
        """Blocks of memory that hold what has arrived; none while nothing waits. For tests."""
