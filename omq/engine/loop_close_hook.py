"""Detection that the user's event loop was closed."""

from __future__ import annotations

from collections.abc import Callable


class LoopCloseHook:
    """Calls a function when the loop that holds it is closed: a closed loop drops its callbacks and timers.

    It is an argument of a callback or a timer, and nothing else refers to it. That detects a close before the loop's
    next turn as well as one much later, in any kind of loop: no asyncio loop has a hook for that.

    Args:
        function: The function to call; it runs in the thread that closes the loop, and must not wait.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def cancel(self) -> None:
        """Drops the function."""
        self._function = None

    def __del__(self) -> None:
        if self._function is not None:
            self._function()
