from typing import Any, Self

class SocketLock:
    """A recursive lock among threads that hold the GIL; a context manager."""

    @property
    def mine(self) -> bool:
        """Whether this thread holds the lock."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: Any) -> None: ...
