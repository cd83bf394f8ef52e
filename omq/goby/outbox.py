"""The queue of publications that wait for the hold's release, or until earlier subscriptions are in force."""

from __future__ import annotations

from collections import deque
from typing import Final

from omq.errors import UsageError
from omq.goby.errors import BufferFull
from omq.unpatched import threading

MAX_HELD_PUBLICATIONS: Final = 10_000
MAX_HELD_BYTES: Final = 64 << 20


class OutboxOpening(Exception):
    """Raised while the outbox opens: a publication can neither be kept nor sent; see `Outbox.opening`."""


class Outbox:
    """A queue of held publications, in their order. Threads may share it.

    Args:
        limit: The number of publications that may wait.

    Attributes:
        open: Whether publications bypass the queue. `take` sets it once nothing waits and nothing is held; `hold`
            clears it.
        kept: The number of publications that were ever kept.
        sent: How many of them were sent.
        opening: Whether the last publications are being sent, after which the queue opens. Meanwhile no others are
            kept, and none may overtake them.

    Raises:
        UsageError: The limit is not valid.
    """

    def __init__(self, limit: int) -> None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise UsageError(f"buffer={limit!r}: must be a whole number, 1 or more")
        self.open = self.opening = False
        self.limit = limit
        self.kept = self.sent = 0
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._releasable: int | None = None  # how many may be sent: the rest came after a `hold`; `None`: all
        self._lock = threading.RLock()  # a signal's handler may publish, too

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: bytes) -> bool:
        """Keeps a publication.

        Returns:
            Whether it is kept; if not, the outbox is open and the caller sends it.

        Raises:
            BufferFull: The queue is full. An empty queue takes a publication of any size.
            OutboxOpening: The publication can neither be kept nor sent now.
        """
        size = len(frame)
        with self._lock:
            if self.open:
                return False
            if self.opening:
                raise OutboxOpening
            if len(self._frames) >= self.limit or (self._frames and self._bytes + size > MAX_HELD_BYTES):
                raise BufferFull(
                    f"{len(self._frames)} publications ({self._bytes} bytes) wait for the release of the hold: no more "
                    f"are kept than buffer={self.limit}, and {MAX_HELD_BYTES} bytes"
                )
            self._frames.append(frame)
            self._bytes += size
            self.kept += 1
            return True

    def take(self, most: int) -> list[bytes]:
        """Returns up to *most* publications to send before the next call; opens the outbox if it is empty."""
        with self._lock:
            self.sent = self.kept - len(self._frames)
            count = min(most, len(self._frames) if self._releasable is None else self._releasable)
            taken = [self._frames.popleft() for _ in range(count)]
            self._bytes -= sum(map(len, taken))
            if self._releasable is not None:
                self._releasable -= count
            self.open = not taken and self._releasable is None
            # Otherwise a continuous publisher would keep it from ever opening.
            self.opening = bool(taken) and not self._frames and self._releasable is None
            return taken

    def stall(self) -> None:
        """Keeps later publications, because the last ones take longer to be sent."""
        with self._lock:
            self.opening = False

    def hold(self) -> None:
        """Holds the publications from now on, until `release` is called."""
        with self._lock:
            self.open = self.opening = False
            if self._releasable is None:
                self._releasable = len(self._frames)

    def release(self) -> int:
        """Releases the publications that wait, and those that come before the next `hold`.

        Returns:
            The value that `sent` reaches once those that wait now are sent.
        """
        with self._lock:
            self._releasable = None
            return self.kept
