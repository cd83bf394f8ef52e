"""`/metrics`: the broker's statistics as Prometheus reads them.

One label may have many values: `topic`. Of a broker with more than `SERIES` topics the oldest are told apart, and all
others are told together under `topic=""`, which is nobody's name. Names of positions, users and peers are no labels:
clients choose them, and their number has no bound.

A server that is scraped each second has other work: the lines of topics are kept, and those of topics that have
changed are encoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from omq.broker.core.stats import BrokerStats, EnvironmentStats, StoreStats, TopicStats
from omq.broker.http.view import Each, lag_of
from omq.unpatched import threading

__all__ = ["SERIES", "MetricsPage"]

SERIES: Final = 1000  # topics that are told apart
PREFIX: Final = "omq_broker"
_FORMATS: Final = 4  # that lines are kept of at the same time
_BATCH: Final = 8  # topics that are encoded in one call, half a millisecond
_END: Final = "# EOF"  # of a page in the OpenMetrics format

Encode = Callable[[Collector], bytes]
Row = tuple[int, ...]  # a topic's values, one of each of `COUNTERS`, `GAUGES` and the lag

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


class MetricsPage:
    """Encodes statistics; topics whose statistics are the same object as before cost next to nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[int, tuple[TopicStats, Row]] = {}  # by a topic's id
        self._lines: dict[str, _TopicLines] = {}  # by content type

    def encode(self, stats: BrokerStats, accept: str = "", each: Each = iter) -> tuple[bytes, str]:
        """Encodes statistics, in whatever thread.

        Args:
            stats: The statistics.
            accept: The formats that are asked for, as an `Accept` header has them.
            each: Goes through topics; it may rest between two.

        Returns:
            The page, and its content type.
        """
        encode, content_type = choose_encoder(accept)
        with self._lock:
            oldest = sorted(stats["topics"], key=lambda topic: topic["id"])
            rows = self._rows_of(oldest, each)
            if content_type not in self._lines and len(self._lines) >= _FORMATS:
                self._lines.clear()  # clients choose its text
            lines = self._lines.setdefault(content_type, _TopicLines(encode))
            topics = lines.update(oldest[:SERIES], rows[:SERIES], _together(rows[SERIES:], each), each)
        others = CollectorRegistry(auto_describe=False)
        others.register(_Families(_broker(stats)))
        others.register(_Families(_store(stats["store"])))
        ProcessCollector(registry=others)
        return topics + encode(others), content_type

    def _rows_of(self, topics: Sequence[TopicStats], each: Each) -> list[Row]:
        before, rows = self._rows, []
        self._rows = kept = {}
        for topic in each(topics):
            known = before.get(topic["id"])
            if known is None or known[0] is not topic:
                known = topic, _row(topic)
            kept[topic["id"]] = known
            rows.append(known[1])
        return rows


class _TopicLines:
    """The lines of topics in one format.

    Args:
        encode: The format.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._kept: dict[int, tuple[Row, tuple[str, ...]]] = {}  # by a topic's id: a line of each family

    def update(self, topics: Sequence[TopicStats], rows: Sequence[Row], rest: Row | None, each: Each) -> bytes:
        """Encodes the lines of topics that have changed, and returns those of all.

        Args:
            topics: Those that are told apart.
            rows: Their values.
            rest: The values of all others; `None` where there are none.
            each: Goes through topics.
        """
        before = self._kept
        changed = [
            (topic["id"], topic["name"], row)
            for topic, row in zip(topics, rows, strict=True)
            if (known := before.get(topic["id"])) is None or known[0] is not row
        ]
        fresh: dict[int, tuple[Row, tuple[str, ...]]] = {}
        for start in each(range(0, len(changed), _BATCH)):
            batch = changed[start : start + _BATCH]
            families = self._split((name, row) for _, name, row in batch)
            lines = zip(*(family.lines for family in families), strict=True)
            fresh.update((id, (row, own)) for (id, _, row), own in zip(batch, lines, strict=True))
        self._kept = {topic["id"]: fresh.get(topic["id"]) or before[topic["id"]] for topic in topics}
        kept = [lines for _, lines in self._kept.values()]
        parts: list[str] = []
        for at, family in enumerate(each(self._split([("", rest)] if rest is not None else []))):
            parts += (family.header, *(lines[at] for lines in kept), *family.lines)
        return "".join(parts).encode()

    def _split(self, rows: Iterable[tuple[str, Row]]) -> list[_FamilyText]:
        """Encodes rows, and splits the text into families."""
        found: list[_FamilyText] = []
        # A label may have any character but this one as it is.
        for line in self._encode(_Families(_topics(rows))).decode().split("\n"):
            if line.startswith("# HELP "):
                found.append(_FamilyText())
            if line.startswith("#"):
                if line != _END:
                    found[-1].header += line + "\n"
            elif line:
                found[-1].lines.append(line + "\n")
        return found


@dataclass(slots=True)
class _FamilyText:
    header: str = ""
    lines: list[str] = field(default_factory=list)


class _Families(Collector):
    """Families that are there already.

    Args:
        families: The families.
    """

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        """Nothing beforehand: statistics are not taken for the sake of their names."""
        return []

    def collect(self) -> Iterable[Metric]:
        return self._families


def _broker(stats: BrokerStats) -> Iterator[Metric]:
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


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)


def _row(topic: TopicStats) -> Row:
    return (*(value(topic) for _, _, value in (*COUNTERS, *GAUGES)), lag_of(topic))


def _together(rows: Sequence[Row], each: Each) -> Row | None:
    """Returns the values of many topics in one row; `None` where there are none."""
    if not rows:
        return None
    *summed, lags = zip(*rows, strict=True)
    return (*map(sum, each(summed)), max(lags))


def _topics(rows: Iterable[tuple[str, Row]]) -> Iterator[Metric]:
    """Yields the families of topics, each with a sample of each row."""
    names, values = [], []
    for name, row in rows:
        names.append([name])
        values.append(row)
    families: list[CounterMetricFamily | GaugeMetricFamily] = [
        *(CounterMetricFamily(f"{PREFIX}_{name}", text, labels=["topic"]) for name, text, _ in COUNTERS),
        *(GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["topic"]) for name, text, _ in GAUGES),
        GaugeMetricFamily(
            f"{PREFIX}_topic_lag_messages",
            "Messages that the last reader is behind; of shares, what waits.",
            labels=["topic"],
        ),
    ]
    for at, family in enumerate(families):
        for labels, row in zip(names, values, strict=True):
            family.add_metric(labels, row[at])
        yield family


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
