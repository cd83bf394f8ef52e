from collections.abc import Callable
from typing import Any, final

@final
class Bell:
    """Has functions called in an event loop, without any Python in the thread that asks for it."""

    fd: int
    #: Ident of the thread that the loop was last seen in; 0 before.
    thread: int

    def open(self) -> None:
        """Opens the descriptor that the loop is to watch. Idempotent.

        Raises:
            OSError: The system has none left.
        """

    def close(self) -> None:
        """Closes it; what is asked for from now on is not done. Idempotent."""

    def call(self, function: Callable[..., object], argument: Any = ...) -> None:
        """Has a function called soon, with one argument or none; from any thread, at any moment."""

    def answer(self) -> None:
        """Calls what was asked for, in that order; for the loop, when the descriptor is readable."""
