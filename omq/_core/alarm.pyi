"""An alarm for the I/O thread: whoever sets it wakes nobody."""

from collections.abc import Callable

class Alarm:
    """Has functions called on the I/O thread 20 ms later.

    Raises:
        OSError: There is no descriptor for it.
    """

    @property
    def fd(self) -> int:
        """Readable when the time has come: then call `ring`."""

    def set(self, function: Callable[[], None]) -> None:
        """Has *function* called, once; from any thread that holds the GIL."""

    def ring(self) -> None:
        """Calls what is to be called; on the I/O thread."""

    def close(self) -> None:
        """Closes the descriptor; nothing is called any more. Idempotent."""
