"""The pace of messages that are sent."""

from __future__ import annotations

import time
from typing import Final

#: How far a sender may be behind its schedule, in seconds, and make up for it.
MAX_LAG_S: Final = 0.1


class Pacer:
    """Waits between messages, so that they are sent at a steady rate.

    Args:
        interval: Seconds between two messages; 0 never waits.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._due: float | None = None  # the time of the next message

    def wait(self) -> None:
        """Waits until the next message is due; the first one is due at once."""
        now = time.monotonic()
        if self._due is None:
            self._due = now
        elif self._due > now:
            time.sleep(self._due - now)
        self._due = max(self._due, now - MAX_LAG_S) + self._interval
