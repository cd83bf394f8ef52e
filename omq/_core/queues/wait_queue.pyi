class WaitQueue:
    """Where the calls of a socket wait for something to change."""

class Turn:
    """One round of events: calls that it wakes run at its end."""
