"""A stopwatch; deprecated."""

from __future__ import annotations

import time
import warnings


class Stopwatch:
    """Measures microseconds between `start` and `stop`; deprecated."""

    def __init__(self) -> None:
        warnings.warn(
            "zmq.Stopwatch is deprecated. Use stdlib time.monotonic and friends instead",
            DeprecationWarning,
            stacklevel=2,
        )
        self._start: float = 0

    def start(self) -> None:
        """Begins to measure."""
        if self._start:
            raise RuntimeError("Stopwatch is already running.")
        self._start = time.monotonic()

    def stop(self) -> int:
        """Ends to measure, and returns the microseconds."""
        if not self._start:
            raise RuntimeError("Must start the Stopwatch before stopping.")
        elapsed = (time.monotonic() - self._start) * 1e6
        self._start = 0
        return int(elapsed)

    def sleep(self, seconds: int) -> None:
        """Sleeps."""
        time.sleep(seconds)
