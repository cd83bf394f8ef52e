from collections.abc import Iterable

class ConvoyBreaker:
    """Lets the I/O thread in where the main thread keeps it out."""

    def start(self, thread: int, watched: int, candidates: Iterable[int]) -> None:
        """Begins to watch the I/O thread. Does nothing where the system gives no thread, no descriptor or no /proc.

        Args:
            thread: The I/O thread's number with the system (`threading.get_native_id`).
            watched: A descriptor that its event loop watches.
            candidates: Descriptors, one of which is the loop's epoll set. It stays open until `stop`.
        """

    def stop(self) -> None:
        """Ends the thread. Idempotent."""

def handovers() -> int:
    """How often threads of this process have released the GIL at a convoy breaker's request."""
