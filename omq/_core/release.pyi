"""A call that is made when an object is gone for good."""

from collections.abc import Callable

class OnRelease:
    """Calls a function when the last reference to this object is dropped; to be held by nobody but one owner.

    Args:
        function: Is called without arguments, in whatever thread; what it raises is printed. It must not lead to the
            owner, who would never be released.
    """

    def __init__(self, function: Callable[[], object]) -> None: ...
    def cancel(self) -> None:
        """Has nothing called any more."""
