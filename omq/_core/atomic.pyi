"""Operations that several threads, and signal handlers of one of them, do in one step each."""

from typing import Generic, TypeVar

_T = TypeVar("_T")

class Latch:
    """A one-way event: it happens once and stays, like a latch that has closed."""

    @property
    def is_set(self) -> bool:
        """Whether it has happened."""

    def set(self) -> None:
        """Marks it as happened. Idempotent."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has happened; signal handlers run meanwhile, may raise, and may wait here themselves.

        Args:
            timeout: Seconds; `None` for ever.

        Returns:
            Whether it has happened.
        """

class Slot(Generic[_T]):
    """A place for one value, which is exchanged in one step (compare and swap)."""

    @property
    def value(self) -> _T | None:
        """The value that is there."""

    def put(self, value: _T | None, instead: _T | None) -> _T | None:
        """Puts a value there, if *instead* is there now; returns the value that is there then."""
