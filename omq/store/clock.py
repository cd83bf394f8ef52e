"""The clock that tells how old something is. What is done to the system's time does nothing to it."""

from __future__ import annotations

import time


def wall() -> int:
    """What the system takes for the time, in microseconds since 1970: it may be wrong, and set at any moment."""
    return time.time_ns() // 1000


def uptime() -> int:
    """Microseconds for which the system runs, asleep or not; nobody can set it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Clock:
    """Begins somewhere, and goes on with the system.

    Args:
        begin: What it says now, in microseconds.
    """

    def __init__(self, begin: int) -> None:
        self._offset = begin - uptime()

    def now(self) -> int:
        """What it says."""
        return self._offset + uptime()
