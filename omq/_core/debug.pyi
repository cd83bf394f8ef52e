from typing import Self

#: Whether this is a build with `OMQ_DEBUG=1`.
DEBUG: bool

class Allocations:
    """Counts the interpreter's allocations while it is entered, in the whole process; one at a time.

    Attributes:
        calls: Calls of malloc, calloc and realloc of Python's allocators for objects and for memory.
    """

    @property
    def calls(self) -> int: ...
    def start(self) -> None:
        """Begins to count, from zero.

        Raises:
            StateError: The build has no `OMQ_DEBUG`, or another object counts already.
        """

    def stop(self) -> int:
        """Ceases to count, and returns `calls`.

        Raises:
            StateError: The count was not started.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
