"""Histograms of durations."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final

#: The upper bounds of the buckets in seconds.
BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, math.inf),
)


class LatencyHistogram:
    """Counts durations by their size.

    Attributes:
        counts: The number of durations in each bucket of `BOUNDS_S`, not cumulative.
        seconds: The sum of all durations.
    """

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * len(BOUNDS_S)
        self.seconds = 0.0

    def record(self, seconds: float) -> None:
        """Counts a duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> list[tuple[float, int]]:
        """Returns each upper bound in seconds with the number of durations in its bucket."""
        return [*zip(BOUNDS_S, self.counts, strict=True)]
