"""The end of an event loop of the user's, as what waits in that loop finds it."""

from __future__ import annotations

from collections.abc import Callable


class LoopEnd:
    """Calls a function when nothing holds it any more: a loop that is closed drops the callbacks and timers it has.

    It is an argument of a callback or a timer, and nothing else refers to it. So it is found whether the loop is closed
    before its next turn or much later, and whoever runs it: no asyncio loop has a hook for that.

    Args:
        function: Runs in the thread that closes the loop, and must not wait.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def cancel(self) -> None:
        """Has nothing called."""
        self._function = None

    def __del__(self) -> None:
        if self._function is not None:
            self._function()
