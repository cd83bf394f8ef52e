"""A rate limit for log lines about frequent events."""

from __future__ import annotations

import time
from typing import Final

LOG_INTERVAL_S: Final = 60.0  #: Seconds between two log lines of one kind.
WARNING_INTERVAL_S: Final = 1.0  #: Seconds between two warnings about messages that are not valid.


class RateLimit:
    """Lets one log line pass in each interval.

    Args:
        interval: Seconds.

    Attributes:
        suppressed: The number of lines suppressed since the last one that passed. After `passes` has returned true, and
            until its next call: the number suppressed before that line, which the line may report.
    """

    __slots__ = ("_interval", "_last_passed", "_next", "suppressed")

    def __init__(self, interval: float = LOG_INTERVAL_S) -> None:
        self.suppressed = 0
        self._interval = interval
        self._next = 0.0  # on the monotonic clock
        self._last_passed = False

    def passes(self) -> bool:
        """Returns whether a line may be written now."""
        if self._last_passed:
            self._last_passed, self.suppressed = False, 0
        now = time.monotonic()
        if now < self._next:
            self.suppressed += 1
            return False
        self._next = now + self._interval
        self._last_passed = True
        return True
