"""The receiving half of a connection."""

from omq._core.queues.peer import Peer

class Receiver(Peer):
    """A descriptor in the epoll set of its socket, for reading; `Connection` adds the sending half."""

    #: Commands sent to the session that it has not handled; it counts them down.
    untold: int
    @property
    def fd(self) -> int:
        """The descriptor; -1 once closed."""

    @property
    def lost(self) -> bool:
        """The connection is over; what has arrived can still be taken."""

    @property
    def slabs(self) -> int:
        """Blocks of memory that hold received bytes; none while nothing waits. For tests."""
