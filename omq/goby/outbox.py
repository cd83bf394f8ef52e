"""Publications that wait for the hold's release."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from omq.errors import UsageError
from omq.goby.errors import BufferFull

LIMIT: Final = 10_000  # publications
LIMIT_BYTES: Final = 64 << 20


class Outbox:
    """Keeps publications in their order while they are held. Threads may share it.

    Args:
        limit: Publications that may wait.

    Attributes:
        open: Whether publications go past it. It is set by `take`, when nothing waits any more, and by `hold`.

    Raises:
        UsageError: The limit does not fit.
    """

    def __init__(self, limit: int) -> None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise UsageError(f"buffer={limit!r}: must be a whole number, 1 or more")
        self.open = False
        self.limit = limit
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: bytes) -> bool:
        """Keeps a publication.

        Returns:
            Whether it is kept; not if it may be sent, because the outbox has opened meanwhile.

        Raises:
            BufferFull: As many as may wait do so already.
        """
        with self._lock:
            if self.open:
                return False
            if len(self._frames) >= self.limit or self._bytes + len(frame) > LIMIT_BYTES:
                raise BufferFull(
                    f"{len(self._frames)} publications ({self._bytes} bytes) wait for the release of the hold: no more "
                    f"are kept than buffer={self.limit}, and {LIMIT_BYTES} bytes"
                )
            self._frames.append(frame)
            self._bytes += len(frame)
            return True

    def take(self, most: int) -> list[bytes]:
        """The first so many that wait, to be sent before the next call; none, and it is open, if nothing waits."""
        with self._lock:
            taken = [self._frames.popleft() for _ in range(min(most, len(self._frames)))]
            self._bytes -= sum(map(len, taken))
            self.open = not taken
            return taken

    def hold(self) -> None:
        """Publications wait again."""
        with self._lock:
            self.open = False
