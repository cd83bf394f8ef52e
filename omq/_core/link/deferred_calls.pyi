"""An alarm for the I/O thread: whoever sets it wakes nobody."""

from collections.abc import Callable

class DeferredCalls:
    """Has functions called on the I/O thread 10 ms later."""

    @property
    def fd(self) -> int:
        """Readable when the time has come: then call `ring`. -1 before `open` and after `close`."""

    def open(self) -> None:
        """Takes a descriptor, if it has none; before that `set` only remembers.

        Raises:
            OSError: There is none.
        """

    def set(self, function: Callable[[], None]) -> None:
        """Has *function* called, once; from any thread that holds the GIL."""

    def cancel(self, function: Callable[[], None]) -> None:
        """Takes a `set` of *function* back, if it has not been called yet."""

    def ring(self) -> None:
        """Calls what is to be called; on the I/O thread."""

    def close(self) -> None:
        """Closes the descriptor; nothing is called any more. Idempotent."""
