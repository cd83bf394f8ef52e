class WaitQueue:
    """Where the calls of a socket wait for something to change."""

class Turn:
    """One turn of an event loop: calls that it wakes run at its end."""
