"""Histograms of durations."""

from __future__ import annotations

import math
from typing import Final

_SHIFT_BITS: Final = 16  # the first bucket has durations below 2**16 ns, and each other one twice as long ones
_BOUNDS: Final = 19  # the last one is 2**34 ns
#: The upper bounds of the buckets in seconds, 65 microseconds to 17 s.
BOUNDS_S: Final = (*((1 << _SHIFT_BITS + at) / 1e9 for at in range(_BOUNDS)), math.inf)


class LatencyHistogram:
    """Counts durations by their size. The bounds are powers of two: finding the bucket takes a shift.

    Attributes:
        counts: The number of durations in each bucket, not cumulative. Those from `_BOUNDS` on have the bound inf.
        nanoseconds: The sum of all durations.
    """

    __slots__ = ("counts", "nanoseconds")

    def __init__(self) -> None:
        self.counts = [0] * (64 - _SHIFT_BITS)
        self.nanoseconds = 0

    def record(self, nanoseconds: int) -> None:
        """Counts a duration."""
        self.counts[(nanoseconds >> _SHIFT_BITS).bit_length()] += 1
        self.nanoseconds += nanoseconds

    @property
    def seconds(self) -> float:
        """The sum of all durations."""
        return self.nanoseconds / 1e9

    def buckets(self) -> list[tuple[float, int]]:
        """Returns each upper bound in seconds with the number of durations in its bucket."""
        counts = [*self.counts[:_BOUNDS], sum(self.counts[_BOUNDS:])]
        return [*zip(BOUNDS_S, counts, strict=True)]
