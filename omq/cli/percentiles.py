"""Statistics of times that commands measure."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns a percentile of values in ascending order, at least one."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def milliseconds(seconds: float) -> str:
    """Formats a time in milliseconds, with the precision of a microsecond."""
    return f"{seconds * 1e3:.3f}"
