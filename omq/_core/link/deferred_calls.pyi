"""Functions that the I/O thread calls a moment later. Asking for a call wakes no thread."""

from collections.abc import Callable

class DeferredCalls:
    """Calls functions on the I/O thread 10 ms later."""

    @property
    def fd(self) -> int:
        """Readable when the time has come: then call `ring`. -1 before `open` and after `close`."""

    def open(self) -> None:
        """Takes a descriptor, if it has none; before that `set` only stores.

        Raises:
            OSError: There is none.
        """

    def set(self, function: Callable[[], None]) -> None:
        """Arranges one call of *function*; from any thread that holds the GIL."""

    def cancel(self, function: Callable[[], None]) -> None:
        """Takes a `set` of *function* back, if it has not been called yet."""

    def ring(self) -> None:
        """Makes the calls; on the I/O thread."""

    def close(self) -> None:
        """Closes the descriptor; no function is called any more. Idempotent."""
