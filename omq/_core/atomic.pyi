"""What several threads do in one step each, and signal handlers of one of them."""

from typing import Generic, TypeVar

_T = TypeVar("_T")

class Latch:
    """Something that happens once."""

    @property
    def is_set(self) -> bool:
        """Whether it has happened."""

    def set(self) -> None:
        """It has. Idempotent."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has happened; signal handlers run meanwhile, may raise, and may wait here themselves.

        Args:
            timeout: Seconds; `None` for ever.

        Returns:
            Whether it has happened.
        """

class Slot(Generic[_T]):
    """A place for one value."""

    @property
    def value(self) -> _T | None:
        """What is there."""

    def put(self, value: _T | None, instead: _T | None) -> _T | None:
        """Puts a value there, if *instead* is there now; gives what is there then."""
