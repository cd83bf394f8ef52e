from collections.abc import Callable
from typing import Any, final

@final
class Bell:
    """Calls functions in an event loop at the request of any thread, like a bell that is rung there.

    The request runs no Python code."""

    fd: int
    #: Ident of the thread that the loop was last seen in; 0 before.
    thread: int

    def open(self) -> None:
        """Opens the descriptor that the loop is to watch. Idempotent.

        Raises:
            OSError: The system has none left.
        """

    def close(self) -> None:
        """Closes it; later requests are ignored. Idempotent."""

    def call(self, function: Callable[..., object], argument: Any = ...) -> None:
        """Requests a call of a function, with one argument or none; from any thread, at any moment."""

    def answer(self) -> None:
        """Makes the requested calls, in their order; for the loop, when the descriptor is readable."""
