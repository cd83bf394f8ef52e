"""Rates and latencies, taken from the counters that a broker shows, over a window that moves with the time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from omq.broker.core.stats import BrokerStats, TopicStats

COUNTERS: Final = ("published", "published_bytes", "delivered", "delivered_bytes")
WINDOW_S: Final = 5.0  # that a topic's rates are taken over
MIN_WINDOW_S: Final = 0.1  # a rate over less means nothing
SYNC_WINDOW_S: Final = 60.0  # that the latency of fsync is taken over

Counts = tuple[int, int, int, int]
Buckets = Mapping[float, int]
TopicSample = tuple[float, dict[int, TopicStats]]
SyncSample = tuple[float, int, float, Buckets]
_NOTHING: Final[Counts] = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Syncs:
    """The rate and the durations of fsyncs within the window.

    Attributes:
        rate: How many a second.
        mean: Seconds; `None` where there was none.
        p50: The median, read off the histogram.
        p99: The 99th percentile.
    """

    rate: float
    mean: float | None
    p50: float | None
    p99: float | None


class Rates:
    """Remembers counters, and returns how fast they grow, in any thread: moments do not change.

    Args:
        stats: The counters of the first moment.
    """

    def __init__(self, stats: BrokerStats) -> None:
        self._topics: deque[TopicSample] = deque()
        self._syncs: deque[SyncSample] = deque()
        self.add(stats)

    def add(self, stats: BrokerStats, each: Callable[[Iterable[TopicStats]], Iterable[TopicStats]] = iter) -> None:
        """Remembers the counters of a moment, and forgets those that are out of the window but for one.

        Args:
            stats: The counters.
            each: Goes through topics; it may rest between two.
        """
        now = stats["uptime"]
        self._topics.append((now, {topic["id"]: topic for topic in each(stats["topics"])}))
        self._syncs.append((now, *_sync_counts(stats)))
        _drop_old(self._topics, now - WINDOW_S)
        _drop_old(self._syncs, now - SYNC_WINDOW_S)

    def of(self, topics: Iterable[TopicStats], now: float) -> dict[int, tuple[float, float, float, float]]:
        """Messages and bytes a second in, then out, by the id of each topic that has changed within the window.

        A topic that was not there began at 0.

        Args:
            topics: The counters now.
            now: Their moment: the broker's uptime.
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

    def syncs(self, stats: BrokerStats) -> Syncs:
        """Returns the rate and the durations of fsyncs within the window."""
        then, count, spent, before = self._syncs[0]
        new_count, new_spent, after = _sync_counts(stats)
        new, seconds = new_count - count, stats["uptime"] - then
        buckets = [(bound, number - before.get(bound, 0)) for bound, number in sorted(after.items())]
        return Syncs(
            rate=new / max(seconds, MIN_WINDOW_S),
            mean=(new_spent - spent) / new if new else None,
            p50=quantile(buckets, 0.5),
            p99=quantile(buckets, 0.99),
        )


def quantile(buckets: Iterable[tuple[float, int]], fraction: float) -> float | None:
    """The value that a share of all does not exceed, read off a histogram: a line is drawn through each bucket.

    Args:
        buckets: Upper bounds, ascending, and how many lie in each.
        fraction: From 0 to 1.

    Returns:
        `None` where all buckets are empty. In the last bucket, which has no bound, the one before is returned.
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
    """Returns all environments' fsyncs together: their number, their seconds, and their buckets."""
    environments = stats["store"]["environments"].values()
    buckets: dict[float, int] = {}
    for environment in environments:
        for bound, number in environment["sync_buckets"]:
            buckets[bound] = buckets.get(bound, 0) + number
    return sum(one["syncs"] for one in environments), sum(one["sync_seconds"] for one in environments), buckets


def _drop_old(samples: deque[TopicSample] | deque[SyncSample], before: float) -> None:
    """Keeps one moment from before the window, so that the window is always full."""
    while len(samples) > 1 and samples[1][0] <= before:
        samples.popleft()
