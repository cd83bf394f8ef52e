"""The statistics of a device, for the monitor socket, `/metrics` and `/healthz`."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

#: By name: those of `METRICS`, and `findings`, a list of texts from opening the store.
DeviceStats = dict[str, Any]


class DeviceMetric(NamedTuple):
    """The Prometheus metric of a statistic.

    Attributes:
        kind: The type of the metric.
        metric: Its name, after `omq_pzq_`.
        text: Its help text.
    """

    kind: Literal["gauge", "counter"]
    metric: str
    text: str


METRICS: Final = {
    "messages": DeviceMetric(
        "gauge", "messages", "Messages that are stored and not acknowledged: own_messages and replicas together."
    ),
    "own_messages": DeviceMetric(
        "gauge", "own_messages", "Messages of this node's own producers that are stored and not acknowledged."
    ),
    "messages_inflight": DeviceMetric("gauge", "messages_inflight", "Messages in flight."),
    "inflight_db_size": DeviceMetric("gauge", "inflight_bytes", "Bytes of the bodies in flight."),
    "db_size": DeviceMetric("gauge", "store_bytes", "Bytes of the store's files."),
    "dead_letters": DeviceMetric("gauge", "dead_letters", "Dead letters that are stored."),
    "producers": DeviceMetric("gauge", "producers", "Connected producers."),
    "consumers": DeviceMetric("gauge", "consumers", "Connected consumers."),
    "replicas": DeviceMetric("gauge", "replicas", "Messages of other nodes that are stored and not acknowledged."),
    "recovered": DeviceMetric(
        "gauge", "recovered", "Own messages that came back from other nodes and are not acknowledged."
    ),
    "nodes": DeviceMetric("gauge", "nodes", "Nodes of the cluster; 1 without one."),
    "nodes_alive": DeviceMetric(
        "gauge", "nodes_alive", "Nodes of the cluster that have sent a keep-alive recently, this one included."
    ),
    "aside": DeviceMetric(
        "gauge", "aside", "1 if this node's directory is an older copy, so that it has no part in the cluster."
    ),
    "leader": DeviceMetric("gauge", "leader", "1 while this device serves producers and consumers."),
    "trouble": DeviceMetric(
        "gauge", "cluster_trouble", "1 while the device takes no part in the cluster of --replicated."
    ),
    "full": DeviceMetric("gauge", "store_full", "1 while the disk is full."),
    "failed": DeviceMetric("gauge", "store_failed", "1 once the store has failed."),
    "stored": DeviceMetric("counter", "messages_stored", "Stored messages."),
    "stored_bytes": DeviceMetric("counter", "stored_bytes", "Bytes of the stored bodies."),
    "repeated": DeviceMetric("counter", "messages_repeated", "Repeated messages, which had been stored before."),
    "refused": DeviceMetric("counter", "messages_refused", "Refused messages."),
    "refused_acks": DeviceMetric("counter", "acks_refused", "Acknowledgements that were ignored as invalid."),
    "delivered": DeviceMetric("counter", "messages_delivered", "Deliveries."),
    "redelivered": DeviceMetric("counter", "messages_redelivered", "Deliveries after the first one of a message."),
    "acknowledged": DeviceMetric("counter", "messages_acknowledged", "Messages that consumers have finished."),
    "returned": DeviceMetric(
        "counter", "messages_returned", "Deliveries that came back by a nack, or as the consumer has disconnected."
    ),
    "expired_messages": DeviceMetric("counter", "messages_expired", "Deliveries whose ack deadline has passed."),
    "dead_lettered": DeviceMetric("counter", "messages_dead_lettered", "Messages that have become dead letters."),
    "damaged": DeviceMetric("counter", "messages_damaged", "Damaged messages, which could not be read."),
    "syncs": DeviceMetric("counter", "store_syncs", "Syncs of the store to the disk."),
}

#: The statistics of the original pzq, in its order.
ORIGINAL_NAMES: Final = ("messages", "messages_inflight", "db_size", "inflight_db_size", "syncs", "expired_messages")


def as_number(value: float | str | None) -> float:
    """Returns a statistic as a number; a text counts as 1, `None` as 0."""
    return float(value is not None) if value is None or isinstance(value, str) else float(value)


def as_text(stats: DeviceStats) -> str:
    """Returns the text of the original pzq, one line for each statistic; in a cluster also those of the cluster."""
    names = (
        ORIGINAL_NAMES if stats["nodes"] == 1 else (*ORIGINAL_NAMES, "own_messages", "replicas", "nodes", "nodes_alive")
    )
    return "".join(f"{name}: {stats[name]}\n" for name in names)
