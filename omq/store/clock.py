"""The clock for ages of records, which changes of the system's time do not affect."""

from __future__ import annotations

import time


def wall() -> int:
    """Returns the system's time in microseconds since 1970. It may be wrong, and can be set at any moment."""
    return time.time_ns() // 1000


def uptime() -> int:
    """Returns the microseconds since the system was started, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Clock:
    """A clock that starts at a given time and advances with the system's uptime.

    Args:
        begin: Its time now, in microseconds.
    """

    def __init__(self, begin: int) -> None:
        self._offset = begin - uptime()

    def now(self) -> int:
        """Returns its time in microseconds."""
        return self._offset + uptime()


class EntryClock(Clock):
    """The clock of a replica, which stands at the timestamp of the last entry that was applied.

    Attributes:
        time: Its time, in microseconds.
    """

    def __init__(self) -> None:
        self.time = 0

    def now(self) -> int:
        return self.time
