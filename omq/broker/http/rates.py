"""Rates and latencies over a sliding window, computed from the broker's counters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from omq.broker.core.stats import BrokerStats, TopicStats

COUNTERS: Final = ("published", "published_bytes", "delivered", "delivered_bytes")
WINDOW_S: Final = 5.0  # of the rates of topics
MIN_WINDOW_S: Final = 0.1  # a rate over less time is meaningless
SYNC_WINDOW_S: Final = 60.0  # of the latency of fsync

Counts = tuple[int, int, int, int]
Buckets = Mapping[float, int]
TopicSample = tuple[float, dict[int, TopicStats]]
SyncSample = tuple[float, int, float, Buckets]
_NOTHING: Final[Counts] = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class SyncStats:
    """The rate and the durations of fsyncs within the window.

    Attributes:
        rate: Fsyncs per second.
        mean: The mean duration in seconds; `None` without an fsync.
        p50: The median, estimated from the histogram.
        p99: The 99th percentile, estimated likewise.
    """

    rate: float
    mean: float | None
    p50: float | None
    p99: float | None


class Rates:
    """Keeps samples of the counters and computes rates; in any thread, as samples do not change.

    Args:
        stats: The first sample.
    """

    def __init__(self, stats: BrokerStats) -> None:
        self._topics: deque[TopicSample] = deque()
        self._syncs: deque[SyncSample] = deque()
        self.add(stats)

    def add(self, stats: BrokerStats, each: Callable[[Iterable[TopicStats]], Iterable[TopicStats]] = iter) -> None:
        """Adds a sample, and drops those that are out of the window except the latest of them.

        Args:
            stats: The counters.
            each: Iterates over topics; it may yield the GIL between two.
        """
        now = stats["uptime"]
        self._topics.append((now, {topic["id"]: topic for topic in each(stats["topics"])}))
        self._syncs.append((now, *_sync_counts(stats)))
        _drop_old(self._topics, now - WINDOW_S)
        _drop_old(self._syncs, now - SYNC_WINDOW_S)

    def of(self, topics: Iterable[TopicStats], now: float) -> dict[int, tuple[float, float, float, float]]:
        """Returns messages and bytes per second, in and out, by the id of each topic that has changed in the window.

        A topic that was created within the window counts from 0.

        Args:
            topics: The current counters.
            now: The broker's uptime in seconds.
        """
        then, before = self._topics[0]
        seconds = now - then
        found = {}
        for topic in topics:
            known = before.get(topic["id"])
            if known is topic:
                continue
            old = _NOTHING if known is None else _counts(known)
            per_second = [
                max(0, new - was) / seconds if seconds > 0 else 0.0
                for new, was in zip(_counts(topic), old, strict=True)
            ]
            found[topic["id"]] = (per_second[0], per_second[1], per_second[2], per_second[3])
        return found

    def syncs(self, stats: BrokerStats) -> SyncStats:
        """Returns the rate and the durations of fsyncs in the window."""
        then, count, spent, before = self._syncs[0]
        new_count, new_spent, after = _sync_counts(stats)
        new, seconds = new_count - count, stats["uptime"] - then
        buckets = [(bound, number - before.get(bound, 0)) for bound, number in sorted(after.items())]
        return SyncStats(
            rate=new / max(seconds, MIN_WINDOW_S),
            mean=(new_spent - spent) / new if new else None,
            p50=quantile(buckets, 0.5),
            p99=quantile(buckets, 0.99),
        )


def quantile(buckets: Iterable[tuple[float, int]], fraction: float) -> float | None:
    """Returns a quantile of a histogram, interpolated linearly within its bucket.

    Args:
        buckets: Upper bounds, ascending, and the number of values in each bucket.
        fraction: From 0 to 1.

    Returns:
        `None` if all buckets are empty. In the last bucket, which has no bound, its lower bound.
    """
    rows = list(buckets)
    wanted = fraction * sum(number for _, number in rows)
    lower, seen = 0.0, 0
    for bound, number in rows:
        if number and seen + number >= wanted:
            return lower if math.isinf(bound) else lower + (bound - lower) * (wanted - seen) / number
        lower, seen = bound, seen + number
    return None


def _counts(topic: TopicStats) -> Counts:
    return topic["published"], topic["published_bytes"], topic["delivered"], topic["delivered_bytes"]


def _sync_counts(stats: BrokerStats) -> tuple[int, float, Buckets]:
    """Returns the fsyncs of all environments: their number, their total duration, and their histogram."""
    environments = stats["store"]["environments"].values()
    buckets: dict[float, int] = {}
    for environment in environments:
        for bound, number in environment["sync_buckets"]:
            buckets[bound] = buckets.get(bound, 0) + number
    return sum(one["syncs"] for one in environments), sum(one["sync_seconds"] for one in environments), buckets


def _drop_old(samples: deque[TopicSample] | deque[SyncSample], before: float) -> None:
    """Drops the samples before the window, except the latest of them, so that rates cover the whole window."""
    while len(samples) > 1 and samples[1][0] <= before:
        samples.popleft()
