"""The rows of `omq top`: from the metrics of a process, and those of the scrape before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families


class RowKind(NamedTuple):
    """A kind of rows.

    Attributes:
        prefix: The prefix of its metrics.
        name: The label with the name of a row; empty if a process has one row.
        type: The label with the type of a row; empty if the type is `shown_as`.
        shown_as: The type of a row without such a label.
        metrics: The metrics without the prefix, by the value of `TopRow` that has their sum.
    """

    prefix: str
    name: str
    type: str
    shown_as: str
    metrics: dict[str, tuple[str, ...]]


KINDS: Final = (
    RowKind(
        "omq_socket_",
        "socket",
        "type",
        "",
        {
            "messages_in": ("messages_received_total",),
            "messages_out": ("messages_sent_total",),
            "bytes_in": ("received_bytes_total",),
            "bytes_out": ("sent_bytes_total",),
            "queue": ("send_queue_messages", "recv_queue_messages"),
            "peers": ("peers",),
            "drops": ("messages_dropped_total",),
        },
    ),
    RowKind(
        "omq_broker_",
        "topic",
        "",
        "topic",
        {
            "messages_in": ("messages_published_total",),
            "messages_out": ("messages_delivered_total",),
            "bytes_in": ("published_bytes_total",),
            "bytes_out": ("delivered_bytes_total",),
            "queue": ("topic_lag_messages",),
            "peers": ("topic_subscribers",),
            "drops": ("messages_dropped_total", "messages_expired_total"),
        },
    ),
    RowKind(
        "omq_pzq_",
        "",
        "",
        "pzq",
        {
            "messages_in": ("messages_stored_total",),
            "messages_out": ("messages_delivered_total",),
            "bytes_in": ("stored_bytes_total",),
            "queue": ("messages",),
            "peers": ("producers", "consumers"),
            "drops": ("messages_dead_lettered_total", "messages_damaged_total"),
        },
    ),
    RowKind(
        "omq_ingest_",
        "",
        "",
        "ingest",
        {
            "messages_in": ("messages_taken_total",),
            "messages_out": ("messages_published_total",),
            "bytes_in": ("taken_bytes_total",),
            "queue": ("in_flight_messages",),
            "peers": ("peers",),
        },
    ),
)
#: The kind and the value of each metric.
METRICS: Final = {
    kind.prefix + metric: (kind, value)
    for kind in KINDS
    for value, metrics in kind.metrics.items()
    for metric in metrics
}
#: Values that are counters: a row has their rates.
COUNTERS: Final = ("messages_in", "messages_out", "bytes_in", "bytes_out")


class Source(NamedTuple):
    """The socket, topic or device of a row.

    Attributes:
        name: The name of the socket or the topic; empty if the process has one row.
        type: The type of the socket, `topic`, `pzq` or `ingest`.
    """

    name: str
    type: str


@dataclass(frozen=True)
class Scrape:
    """The metrics of a process at a time.

    Attributes:
        time: When they were read, in seconds of any clock.
        values: The values by source and name.
    """

    time: float
    values: dict[Source, dict[str, float]]

    @classmethod
    def parse(cls, text: str, time: float) -> Scrape:
        """Parses Prometheus' text format.

        Raises:
            ValueError: The text is not in that format.
        """
        values: dict[Source, dict[str, float]] = {}
        for family in text_string_to_metric_families("".join(_lines_of(text))):
            for sample in family.samples:
                kind, value = METRICS[sample.name]
                source = Source(
                    sample.labels.get(kind.name, ""), sample.labels.get(kind.type, kind.shown_as or "socket")
                )
                if math.isfinite(sample.value):
                    found = values.setdefault(source, {})
                    found[value] = found.get(value, 0.0) + sample.value
        return cls(time, values)


def _lines_of(text: str) -> Iterator[str]:
    """Yields the lines of the metrics that rows have: the parser takes ten times as long for a line."""
    for line in text.splitlines():
        if line.partition("{")[0].partition(" ")[0] in METRICS:
            yield line + "\n"


@dataclass(frozen=True)
class TopRow:
    """A row of the table. A value is `None` where the process does not export it, and a rate until a second scrape.

    Attributes:
        process: The process, as the user has named it.
        name: The name of the socket or the topic; empty if the process has one row.
        type: The type of the socket, `topic`, `pzq` or `ingest`; empty if `state` is not.
        state: Why there are no metrics; empty if there are.
        messages_in: Messages a second that arrive.
        messages_out: Messages a second that leave.
        bytes_in: Bytes a second that arrive.
        bytes_out: Bytes a second that leave.
        queue: Messages that wait.
        peers: Peers, or subscribers and consumers.
        drops: Messages that were dropped since the start of the process.
    """

    process: str
    name: str = ""
    type: str = ""
    state: str = ""
    messages_in: float | None = None
    messages_out: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    queue: float | None = None
    peers: float | None = None
    drops: float | None = None


def rows_of(process: str, before: Scrape | None, now: Scrape) -> list[TopRow]:
    """Returns the rows of a process, ordered by type and name.

    Args:
        process: The process.
        before: The scrape before; `None` for none.
        now: The current scrape.
    """
    if not now.values:
        return [TopRow(process, state="no sockets, topics or devices of omq")]
    seconds = 0.0 if before is None else now.time - before.time
    found = []
    for source in sorted(now.values, key=lambda source: (source.type, source.name)):
        values: dict[str, Any] = dict(now.values[source])
        earlier = {} if before is None else before.values.get(source, {})
        for counter in COUNTERS:
            if counter in values:
                values[counter] = _rate(earlier.get(counter), values[counter], seconds)
        found.append(TopRow(process, source.name, source.type, **values))
    return found


def _rate(before: float | None, now: float, seconds: float) -> float | None:
    """Returns the rate of a counter, which has begun again at 0 if it is lower than before."""
    if before is None or seconds <= 0:
        return None
    return (now - before if now >= before else now) / seconds


def sorted_rows(rows: Iterable[TopRow], key: str) -> list[TopRow]:
    """Returns rows in the order of a value: texts from a to z, numbers from the largest; rows without it come last."""
    if key == "process":
        return list(rows)
    if key in Source._fields:
        return sorted(rows, key=lambda row: (bool(row.state), getattr(row, key)))
    return sorted(rows, key=lambda row: -1.0 if getattr(row, key) is None else getattr(row, key), reverse=True)
