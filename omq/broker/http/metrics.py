"""`/metrics`: the broker's statistics as Prometheus reads them.

One label may have many values: `topic`. Of a broker with more than `SERIES` topics the oldest are told apart, and all
others are told together under `topic=""`, which is nobody's name. Names of positions, users and peers are no labels:
clients choose them, and their number has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from omq.broker.core.stats import BrokerStats, EnvironmentStats, StoreStats, TopicStats
from omq.broker.http.view import lag_of

__all__ = ["SERIES", "registry"]

SERIES: Final = 1000  # topics that are told apart
PREFIX: Final = "omq_broker"

#: Names without their suffix, what they say, and what they are made of; those of the rest are added up.
COUNTERS: Final[tuple[tuple[str, str, Callable[[TopicStats], int]], ...]] = (
    ("messages_published", "Messages that the topic has taken.", lambda topic: topic["published"]),
    ("published_bytes", "Bytes of records that the topic has taken.", lambda topic: topic["published_bytes"]),
    ("messages_delivered", "Messages sent to subscribers and consumers.", lambda topic: topic["delivered"]),
    ("delivered_bytes", "Bytes of records sent to subscribers and consumers.", lambda topic: topic["delivered_bytes"]),
    ("messages_redelivered", "Deliveries that were not a message's first.", lambda topic: topic["redelivered"]),
    ("messages_dead_lettered", "Messages that went to a dead-letter topic.", lambda topic: topic["dead_lettered"]),
    ("messages_rejected", "Messages that were refused as the topic was full.", lambda topic: topic["rejected"]),
    (
        "messages_dropped",
        "Unfinished messages that a full work queue moved to the dead letters.",
        lambda topic: topic["dropped"],
    ),
    (
        "messages_expired",
        "Unfinished messages of a work queue that max_age has dropped.",
        lambda topic: topic["expired"],
    ),
)
GAUGES: Final[tuple[tuple[str, str, Callable[[TopicStats], int]], ...]] = (
    ("topic_bytes", "Bytes that the topic keeps.", lambda topic: topic["bytes"]),
    ("topic_messages", "Messages that the topic keeps.", lambda topic: topic["messages"]),
    ("topic_blocked_messages", "Messages whose publishers wait for room in the topic.", lambda topic: topic["blocked"]),
    ("topic_subscribers", "Subscriptions and consumers in force.", lambda topic: len(topic["subscriptions"])),
)


def registry(stats: Callable[[], BrokerStats]) -> CollectorRegistry:
    """A registry of its own, with the broker's metrics and those of its process."""
    own = CollectorRegistry(auto_describe=False)
    own.register(BrokerCollector(stats))
    ProcessCollector(registry=own)
    return own


class BrokerCollector(Collector):
    """Makes metrics of the broker's statistics whenever they are asked for.

    Args:
        stats: Where they come from.
    """

    def __init__(self, stats: Callable[[], BrokerStats]) -> None:
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing beforehand: statistics are not taken for the sake of their names."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield InfoMetricFamily(PREFIX, "The broker.", {"version": stats["version"], "broker": stats["broker"]})
        yield _gauge("start_time_seconds", "When the broker started, in seconds since 1970.", stats["started"])
        yield _gauge("topics", "Topics that there are.", len(stats["topics"]))
        connections = GaugeMetricFamily(f"{PREFIX}_connections", "Open connections.", labels=["door"])
        for door, number in stats["connections"].items():
            connections.add_metric([door], number)
        yield connections
        refused = CounterMetricFamily(f"{PREFIX}_requests_refused", "Requests answered by an error.", labels=["code"])
        for code, number in stats["refused"].items():
            refused.add_metric([code], number)
        yield refused
        yield CounterMetricFamily(
            f"{PREFIX}_handshakes_failed", "Clients that were not let in.", stats["handshakes_failed"]
        )
        yield from _topics(stats["topics"])
        yield from _store(stats["store"])


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)


def _topics(topics: list[TopicStats]) -> Iterator[Metric]:
    oldest = sorted(topics, key=lambda topic: topic["id"])
    apart, rest = oldest[:SERIES], oldest[SERIES:]
    for name, text, value in COUNTERS:
        counter = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=["topic"])
        for topic in apart:
            counter.add_metric([topic["name"]], value(topic))
        if rest:
            counter.add_metric([""], sum(map(value, rest)))
        yield counter
    for name, text, value in GAUGES:
        gauge = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["topic"])
        for topic in apart:
            gauge.add_metric([topic["name"]], value(topic))
        if rest:
            gauge.add_metric([""], sum(map(value, rest)))
        yield gauge
    lag = GaugeMetricFamily(
        f"{PREFIX}_topic_lag_messages",
        "Messages that the last reader is behind; of shares, what waits.",
        labels=["topic"],
    )
    for topic in apart:
        lag.add_metric([topic["name"]], lag_of(topic))
    if rest:
        lag.add_metric([""], max(map(lag_of, rest)))
    yield lag


def _store(store: StoreStats) -> Iterator[Metric]:
    yield _gauge("store_full", "1 while the disk is full, and what is published is refused.", store["full"])
    yield _gauge("store_failed", "1 once the store has failed: nothing is acknowledged.", store["failed"] is not None)
    yield _gauge("store_findings", "What opening has found, and what was quarantined since.", len(store["findings"]))
    if store["free"] is not None:
        yield _gauge("store_free_bytes", "Bytes that the file system still has.", store["free"])
    size = GaugeMetricFamily(f"{PREFIX}_store_bytes", "Bytes of the store's file.", labels=["environment"])
    commits = CounterMetricFamily(f"{PREFIX}_store_commits", "Transactions committed.", labels=["environment"])
    syncs = HistogramMetricFamily(f"{PREFIX}_store_sync_seconds", "What fsync took.", labels=["environment"])
    for name, environment in store["environments"].items():
        size.add_metric([name], environment["bytes"])
        commits.add_metric([name], environment["commits"])
        syncs.add_metric([name], _cumulative(environment), environment["sync_seconds"])
    yield from (size, commits, syncs)


def _cumulative(environment: EnvironmentStats) -> list[tuple[str, float]]:
    """Buckets as Prometheus has them: each counts those below it, too."""
    rows: list[tuple[str, float]] = []
    total = 0
    for bound, number in environment["sync_buckets"]:
        total += number
        rows.append(("+Inf" if math.isinf(bound) else repr(bound), total))
    if not rows or rows[-1][0] != "+Inf":
        rows.append(("+Inf", total))
    return rows
