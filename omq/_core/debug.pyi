from typing import Self

#: Whether this is a build with `OMQ_DEBUG=1`.
DEBUG: bool

class Allocations:
    """Counts what the interpreter allocates while it is entered, in the whole process; one at a time.

    Attributes:
        calls: Calls of malloc, calloc and realloc of Python's allocators for objects and for memory.
    """

    @property
    def calls(self) -> int: ...
    def start(self) -> None:
        """Begins to count, from zero.

        Raises:
            StateError: The build has no `OMQ_DEBUG`, or somebody counts already.
        """

    def stop(self) -> int:
        """Ceases to count, and gives `calls`.

        Raises:
            StateError: It was not started.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
