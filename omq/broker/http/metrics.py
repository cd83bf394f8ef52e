"""`/metrics`: the broker's statistics in Prometheus' formats.

The number of series is bounded, because clients choose the names. Of more than `MAX_SERIES` topics the oldest have
series of their own; all others share those with `topic=""`, which is not a valid name. In the same way the durable
subscriptions of a topic above `MAX_READERS`, and of all topics above `MAX_SERIES`, share series, and so do consumer
groups. A name has at most 255 bytes. Users and peers are never labels.

The values of topics are cached until they change. This module writes their lines itself, in a tenth of the time that
`prometheus_client` takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

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

from omq.broker.core.stats import BrokerStats, StoreStats, TopicStats
from omq.broker.http.view import Each, lag_of
from omq.store.interface import UNCLEAN_SHUTDOWN
from omq.unpatched import threading

MAX_SERIES: Final = 1000  # topics with series of their own; durable subscriptions; consumer groups
MAX_READERS: Final = 100  # durable subscriptions of one topic with series of their own; its consumer groups
PREFIX: Final = "omq_broker"

Row = tuple[int, ...]  # a topic's values, one of each of `COUNTERS` and `GAUGES`
ReaderRow = tuple[str, tuple[float, ...]]  # the name of a reader, escaped, and its values, one of each gauge


class ReaderKind(NamedTuple):
    """Durable subscriptions, or consumer groups.

    Attributes:
        label: The label with the name.
        of: Returns the readers of this kind of a topic.
        gauges: The name of each metric, its description, its value, and the function that joins the values of readers
            that share a series.
    """

    label: str
    of: Callable[[TopicStats], Sequence[Mapping[str, Any]]]
    gauges: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float], Callable[[Iterable[float]], float]], ...]

    def rows(self, topic: TopicStats, each: Each) -> list[ReaderRow]:
        """Returns the rows of the readers of a topic."""
        return [
            (one["name"].translate(_ESCAPES), tuple(value(one) for _, _, value, _ in self.gauges))
            for one in each(self.of(topic))
        ]

    def join(self, rows: Sequence[ReaderRow]) -> tuple[float, ...]:
        """Returns the values of readers that share a series."""
        columns = zip(*(values for _, values in rows), strict=True)
        return tuple(join(column) for (_, _, _, join), column in zip(self.gauges, columns, strict=True))


#: Names without their suffix, descriptions and values. The topics above `MAX_SERIES` share their sum.
COUNTERS: Final[tuple[tuple[str, str, Callable[[TopicStats], int]], ...]] = (
    ("messages_published", "Messages published to the topic.", lambda topic: topic["published"]),
    ("published_bytes", "Bytes of records published to the topic.", lambda topic: topic["published_bytes"]),
    ("messages_delivered", "Messages sent to subscribers and consumers.", lambda topic: topic["delivered"]),
    ("delivered_bytes", "Bytes of records sent to subscribers and consumers.", lambda topic: topic["delivered_bytes"]),
    ("messages_redelivered", "Deliveries that were not a message's first.", lambda topic: topic["redelivered"]),
    ("messages_dead_lettered", "Messages moved to a dead-letter topic.", lambda topic: topic["dead_lettered"]),
    ("messages_rejected", "Messages rejected because the topic was full.", lambda topic: topic["rejected"]),
    (
        "messages_dropped",
        "Unfinished messages that a full work queue moved to the dead letters.",
        lambda topic: topic["dropped"],
    ),
    (
        "messages_expired",
        "Unfinished messages of a work queue or a consumer group that retention has dropped.",
        lambda topic: topic["expired"],
    ),
    (
        "readers_expired",
        "Durable subscriptions and consumer groups that inactive_threshold has deleted.",
        lambda topic: topic["readers_expired"],
    ),
)
GAUGES: Final[tuple[tuple[str, str, Callable[[TopicStats], int]], ...]] = (
    ("topic_bytes", "Bytes of the topic in the store.", lambda topic: topic["bytes"]),
    ("topic_messages", "Messages of the topic in the store.", lambda topic: topic["messages"]),
    ("topic_blocked_messages", "Messages whose publishers wait for room in the topic.", lambda topic: topic["blocked"]),
    ("topic_waiting_messages", "Messages of a work queue that wait for a consumer.", lambda topic: topic["backlog"]),
    (
        "topic_in_flight_messages",
        "Messages of a work queue that consumers have and have not acknowledged.",
        lambda topic: topic["in_flight"],
    ),
    ("topic_subscribers", "Open subscriptions and consumers.", lambda topic: len(topic["subscriptions"])),
    ("topic_durable_subscriptions", "Durable subscriptions, open or not.", lambda topic: len(topic["names"])),
    # The topics above `MAX_SERIES` share the maximum.
    ("topic_lag_messages", "Lag of the slowest subscription or group; backlog of a work queue.", lag_of),
)
READER_KINDS: Final = (
    ReaderKind(
        "subscription",
        lambda topic: topic["names"],
        (
            (
                "subscription_lag_messages",
                "Kept messages after the cursor of a durable subscription.",
                lambda one: one["lag"],
                max,
            ),
            (
                "subscription_last_activity_timestamp_seconds",
                "When a durable subscription was last opened, acknowledged or closed, or the broker started.",
                lambda one: one["active"],
                min,
            ),
            ("subscription_open", "Whether a client has the durable subscription open.", lambda one: one["held"], sum),
        ),
    ),
    ReaderKind(
        "group",
        lambda topic: topic["groups"],
        (
            (
                "group_lag_messages",
                "Kept messages that a consumer group has not acknowledged.",
                lambda one: one["lag"],
                max,
            ),
            (
                "group_in_flight_messages",
                "Messages that the consumers of a group have and have not acknowledged.",
                lambda one: one["in_flight"],
                sum,
            ),
            ("group_consumers", "Consumers of a consumer group.", lambda one: one["consumers"], sum),
            (
                "group_last_activity_timestamp_seconds",
                "When a consumer of the group last joined, got or acknowledged a message, or left, or the broker "
                "started.",
                lambda one: one["active"],
                min,
            ),
        ),
    ),
)
#: The names of samples, in the order of a row.
SAMPLES: Final = (
    *(f"{PREFIX}_{name}_total" for name, _, _ in COUNTERS),
    *(f"{PREFIX}_{name}" for name, _, _ in GAUGES),
)
#: Empty families, from which an encoder makes the headers.
FAMILIES: Final[tuple[Metric, ...]] = (
    *(CounterMetricFamily(f"{PREFIX}_{name}", text, labels=["topic"]) for name, text, _ in COUNTERS),
    *(GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["topic"]) for name, text, _ in GAUGES),
    *(
        GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["topic", kind.label])
        for kind in READER_KINDS
        for name, text, _, _ in kind.gauges
    ),
)
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class MetricsPage:
    """Encodes statistics for Prometheus, with a cache of the topics whose statistics are the same object as before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By a topic's id: its row, and those of its readers of each of `READER_KINDS`.
        self._rows: dict[int, tuple[TopicStats, Row, list[list[ReaderRow]]]] = {}

    def encode(self, stats: BrokerStats, accept: str = "", each: Each = iter) -> tuple[bytes, str]:
        """Encodes statistics; in any thread.

        Args:
            stats: The statistics.
            accept: The `Accept` header of the request.
            each: Iterates over topics; it may yield the GIL between two.

        Returns:
            The page, and its content type.
        """
        encode, content_type = choose_encoder(accept)
        with self._lock:
            oldest = sorted(stats["topics"], key=lambda topic: topic["id"])
            found = self._rows_of(oldest, each)
        rows = [row for _, row, _ in found]
        labels = [f'topic="{topic["name"].translate(_ESCAPES)}"' for topic in oldest[:MAX_SERIES]]
        samples = [*zip(labels, rows, strict=False)]
        if len(rows) > MAX_SERIES:
            samples.append(('topic=""', _sum_rows(rows[MAX_SERIES:], each)))
        headers = encode(_Families(FAMILIES)).decode().splitlines(keepends=True)  # two lines a family
        parts: list[str] = []
        for at, name in enumerate(each(SAMPLES)):
            parts += headers[2 * at : 2 * at + 2]
            parts += [f"{name}{{{label}}} {float(row[at])}\n" for label, row in samples]
        at = 2 * len(SAMPLES)
        for kind, *readers in zip(READER_KINDS, *(one for _, _, one in found), strict=True):
            series = _reader_series(kind, labels, readers, each)
            for column, (name, *_) in enumerate(kind.gauges):
                parts += headers[at : at + 2]
                parts += [f"{PREFIX}_{name}{{{label}}} {float(values[column])}\n" for label, values in each(series)]
                at += 2
        others = CollectorRegistry(auto_describe=False)
        others.register(_Families(_broker(stats)))
        others.register(_Families(_store(stats["store"])))
        ProcessCollector(registry=others)
        return "".join(parts).encode() + encode(others), content_type

    def _rows_of(self, topics: Sequence[TopicStats], each: Each) -> list[tuple[TopicStats, Row, list[list[ReaderRow]]]]:
        before, rows = self._rows, []
        self._rows = cache = {}
        for topic in each(topics):
            cached = before.get(topic["id"])
            if cached is None or cached[0] is not topic:
                cached = topic, _row(topic), [kind.rows(topic, each) for kind in READER_KINDS]
            cache[topic["id"]] = cached
            rows.append(cached)
        return rows


class _Families(Collector):
    """A collector of given families.

    Args:
        families: The families.
    """

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        """Returns an empty list: the registry needs no names in advance."""
        return []

    def collect(self) -> Iterable[Metric]:
        return self._families


def _broker(stats: BrokerStats) -> Iterator[Metric]:
    yield InfoMetricFamily(PREFIX, "The broker.", {"version": stats["version"], "broker": stats["broker"]})
    yield _gauge("start_time_seconds", "When the broker started, in seconds since 1970.", stats["started"])
    yield _gauge("topics", "Number of topics.", len(stats["topics"]))
    if (cluster := stats["cluster"]) is not None:
        yield _gauge("leader", "1 while the broker leads its cluster.", cluster["role"] == "leader")
        yield _gauge(
            "cluster_trouble",
            "1 while the broker takes no part in its cluster, or has an endpoint of another one.",
            bool(cluster["trouble"]),
        )
        yield _gauge(
            "journal_position", "The last entry of the journal that the broker has applied.", stats["journal_position"]
        )
    connections = GaugeMetricFamily(f"{PREFIX}_connections", "Open connections.", labels=["listener"])
    for listener, number in stats["connections"].items():
        connections.add_metric([listener], number)
    yield connections
    limits = GaugeMetricFamily(
        f"{PREFIX}_max_connections", "The maximum number of open connections.", labels=["listener"]
    )
    for listener, number in stats["max_connections"].items():
        limits.add_metric([listener], number)
    yield limits
    accepts = CounterMetricFamily(
        f"{PREFIX}_accepts_failed", "Connections that could not be accepted.", labels=["listener", "reason"]
    )
    for listener, counts in stats["accepts_failed"].items():
        for reason, number in counts.items():
            accepts.add_metric([listener, reason], number)
    yield accepts
    refused = CounterMetricFamily(f"{PREFIX}_requests_refused", "Requests answered with an error.", labels=["code"])
    for code, number in stats["refused"].items():
        refused.add_metric([code], number)
    yield refused
    failed = CounterMetricFamily(f"{PREFIX}_handshake_failures", "Clients whose handshake failed.", labels=["reason"])
    for reason, number in stats["handshake_failures"].items():
        failed.add_metric([reason], number)
    yield failed
    publish = HistogramMetricFamily(
        f"{PREFIX}_publish_seconds",
        "From the arrival of publications to their answers.",
        labels=["persistence"],
    )
    for persistence, latency in stats["publish"].items():
        publish.add_metric([persistence], _cumulative(latency["buckets"]), latency["seconds"])
    yield publish


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)


def _row(topic: TopicStats) -> Row:
    return tuple(value(topic) for _, _, value in (*COUNTERS, *GAUGES))


def _reader_series(
    kind: ReaderKind, labels: Sequence[str], found: Sequence[Sequence[ReaderRow]], each: Each
) -> list[ReaderRow]:
    """Returns the labels and values of the series of readers.

    Args:
        kind: The kind of the readers.
        labels: The labels of the topics with series of their own.
        found: The readers of all topics, oldest first, in the order of *labels*.
        each: Iterates over topics; it may yield the GIL between two.
    """
    samples: list[ReaderRow] = []
    room = MAX_SERIES
    for label, rows in each(zip(labels, found, strict=False)):
        own = min(len(rows), MAX_READERS, room)
        room -= own
        samples += [(f'{label},{kind.label}="{name}"', values) for name, values in rows[:own]]
        if len(rows) > own:
            samples.append((f'{label},{kind.label}=""', kind.join(rows[own:])))
    others = [row for rows in each(found[len(labels) :]) for row in rows]
    if others:
        samples.append((f'topic="",{kind.label}=""', kind.join(others)))
    return samples


def _sum_rows(rows: Sequence[Row], each: Each) -> Row:
    """Returns one row for many topics: sums, and the longest lag."""
    *summed, lags = zip(*rows, strict=True)
    return (*map(sum, each(summed)), max(lags))


def _store(store: StoreStats) -> Iterator[Metric]:
    yield _gauge("store_full", "1 while the disk is full and publications are refused.", store["full"])
    yield _gauge("store_failed", "1 once the store has failed: nothing is acknowledged.", store["failed"] is not None)
    findings = sum(finding != UNCLEAN_SHUTDOWN for finding in store["findings"])
    yield _gauge("store_findings", "Problems found at opening, and quarantined messages.", findings)
    if store["free"] is not None:
        yield _gauge("store_free_bytes", "Bytes free in the file system.", store["free"])
    size = GaugeMetricFamily(f"{PREFIX}_store_bytes", "Bytes of the store's file.", labels=["environment"])
    used = GaugeMetricFamily(
        f"{PREFIX}_store_used_bytes", "Bytes of the file in use; the others are reused.", labels=["environment"]
    )
    commits = CounterMetricFamily(f"{PREFIX}_store_commits", "Transactions committed.", labels=["environment"])
    syncs = HistogramMetricFamily(f"{PREFIX}_store_sync_seconds", "Durations of fsync.", labels=["environment"])
    for name, environment in store["environments"].items():
        size.add_metric([name], environment["bytes"])
        used.add_metric([name], environment["used"])
        commits.add_metric([name], environment["commits"])
        syncs.add_metric([name], _cumulative(environment["sync_buckets"]), environment["sync_seconds"])
    yield from (size, used, commits, syncs)


def _cumulative(buckets: Iterable[tuple[float, int]]) -> list[tuple[str, float]]:
    """Returns Prometheus' cumulative buckets: each count includes those of lower bounds."""
    rows: list[tuple[str, float]] = []
    total = 0
    for bound, number in buckets:
        total += number
        rows.append(("+Inf" if math.isinf(bound) else repr(bound), total))
    if not rows or rows[-1][0] != "+Inf":
        rows.append(("+Inf", total))
    return rows
