from omq._core.bell import Bell
from omq._core.queues.wait_queue import Turn

class Poller:
    """The epoll set of one socket: every connection in its data phase.

    Args:
        turn: Runs the calls that events wake; `None` leaves that to others.
    """

    def __init__(self, turn: Turn | None = None) -> None: ...
    @property
    def fd(self) -> int:
        """The epoll descriptor, readable while an event waits; -1 once closed."""

    @property
    def relieved(self) -> bool:
        """Returns whether the background thread reads and writes here, as the owner is away."""

    def dispatch(self) -> None:
        """Handles events that are ready, without waiting, then runs the calls that those woke."""

    def set_bell(self, bell: Bell) -> None:
        """Sets the bell of the sessions' loop: sessions are told there what happens to their connections."""

    def close(self) -> None: ...
