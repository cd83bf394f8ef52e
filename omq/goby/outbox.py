"""Publications that wait: for the hold's release, or for what was subscribed to before them."""

from __future__ import annotations

from collections import deque
from typing import Final

from omq.errors import UsageError
from omq.goby.errors import BufferFull
from omq.unpatched import threading

MAX_PUBLICATIONS: Final = 10_000  # publications
MAX_BYTES: Final = 64 << 20


class OutboxOpening(Exception):
    """The outbox opens in a moment; see `Outbox`."""


class Outbox:
    """Keeps publications in their order while they are held. Threads may share it.

    Args:
        limit: Publications that may wait.

    Attributes:
        open: Whether publications go past it. It is set by `take`, when nothing waits and nothing holds any more, and
            by `hold`.
        kept: Publications that were ever kept.
        left: Those of them that have been sent.
        closing: The last ones are on their way, and it opens after them: none is kept, and none may overtake them.

    Raises:
        UsageError: The limit does not fit.
    """

    def __init__(self, limit: int) -> None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise UsageError(f"buffer={limit!r}: must be a whole number, 1 or more")
        self.open = self.closing = False
        self.limit = limit
        self.kept = self.left = 0
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._free: int | None = None  # how many may leave, the rest came after a `hold`; `None`: all
        self._lock = threading.RLock()  # a signal's handler may publish, too

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: bytes) -> bool:
        """Keeps a publication.

        Returns:
            Whether it is kept; not if it may be sent, because the outbox has opened meanwhile.

        Raises:
            BufferFull: As many as may wait do so already. One may, whatever its size.
            OutboxOpening: It may neither be kept nor be sent now.
        """
        size = len(frame)
        with self._lock:
            if self.open:
                return False
            if self.closing:
                raise OutboxOpening
            if len(self._frames) >= self.limit or (self._frames and self._bytes + size > MAX_BYTES):
                raise BufferFull(
                    f"{len(self._frames)} publications ({self._bytes} bytes) wait for the release of the hold: no more "
                    f"are kept than buffer={self.limit}, and {MAX_BYTES} bytes"
                )
            self._frames.append(frame)
            self._bytes += size
            self.kept += 1
            return True

    def take(self, most: int) -> list[bytes]:
        """Returns up to *most* publications to send before the next call; opens the outbox if it is empty."""
        with self._lock:
            self.left = self.kept - len(self._frames)
            count = min(most, len(self._frames) if self._free is None else self._free)
            taken = [self._frames.popleft() for _ in range(count)]
            self._bytes -= sum(map(len, taken))
            if self._free is not None:
                self._free -= count
            self.open = not taken and self._free is None
            # Otherwise a continuous publisher would keep it from ever opening.
            self.closing = bool(taken) and not self._frames and self._free is None
            return taken

    def stall(self) -> None:
        """The last ones take longer to leave: later publications are kept."""
        with self._lock:
            self.closing = False

    def hold(self) -> None:
        """Publications wait again: those that come from now on do so until `let_go` is called."""
        with self._lock:
            self.open = self.closing = False
            if self._free is None:
                self._free = len(self._frames)

    def let_go(self) -> int:
        """All may leave that wait now, and that come before the next `hold`.

        Returns:
            What `left` will be at least once those have left that wait now.
        """
        with self._lock:
            self._free = None
            return self.kept
