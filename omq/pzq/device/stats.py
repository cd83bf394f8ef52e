"""The stats of a device, as the monitor socket, `/metrics` and `/healthz` give them."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

#: By name: those of `METRICS`, and `findings`, a list of what opening the store has found.
DeviceStats = dict[str, Any]


class DeviceMetric(NamedTuple):
    """The metric of a figure.

    Attributes:
        kind: What Prometheus calls it.
        metric: Its name there, after `omq_pzq_`.
        text: The meaning.
    """

    kind: Literal["gauge", "counter"]
    metric: str
    text: str


METRICS: Final = {
    "messages": DeviceMetric(
        "gauge", "messages", "Messages that are stored and not settled: own_messages and replicas together."
    ),
    "own_messages": DeviceMetric(
        "gauge", "own_messages", "Messages of this node's own producers that are stored and not settled."
    ),
    "messages_inflight": DeviceMetric("gauge", "messages_inflight", "Messages that consumers have."),
    "inflight_db_size": DeviceMetric("gauge", "inflight_bytes", "Bytes of the bodies in flight."),
    "db_size": DeviceMetric("gauge", "store_bytes", "Bytes of the store's files."),
    "dead_letters": DeviceMetric("gauge", "dead_letters", "Dead letters that are held."),
    "producers": DeviceMetric("gauge", "producers", "Producers that are connected."),
    "consumers": DeviceMetric("gauge", "consumers", "Consumers that are connected."),
    "replicas": DeviceMetric("gauge", "replicas", "Messages of other nodes that are kept and not settled."),
    "recovered": DeviceMetric(
        "gauge", "recovered", "Own messages that came back from other nodes and are not settled."
    ),
    "nodes": DeviceMetric("gauge", "nodes", "Nodes of the cluster; 1 without one."),
    "nodes_alive": DeviceMetric(
        "gauge", "nodes_alive", "Nodes of the cluster that have sent lately, this one among them."
    ),
    "aside": DeviceMetric(
        "gauge", "aside", "1 where this node's directory is an older copy, with no part in the cluster."
    ),
    "full": DeviceMetric("gauge", "store_full", "1 while the disk is full."),
    "failed": DeviceMetric("gauge", "store_failed", "1 once the store has failed."),
    "stored": DeviceMetric("counter", "messages_stored", "Messages that were stored."),
    "stored_bytes": DeviceMetric("counter", "stored_bytes", "Bytes of the bodies that were stored."),
    "repeated": DeviceMetric("counter", "messages_repeated", "Messages that had been stored before."),
    "refused": DeviceMetric("counter", "messages_refused", "Messages that were refused."),
    "refused_acks": DeviceMetric("counter", "acks_refused", "Acknowledgements that count for nothing."),
    "delivered": DeviceMetric("counter", "messages_delivered", "Deliveries."),
    "redelivered": DeviceMetric("counter", "messages_redelivered", "Deliveries that were not a message's first."),
    "acknowledged": DeviceMetric("counter", "messages_acknowledged", "Messages that consumers have finished."),
    "returned": DeviceMetric(
        "counter", "messages_returned", "Deliveries that came back at once: by the consumer's wish, or its end."
    ),
    "expired_messages": DeviceMetric("counter", "messages_expired", "Deliveries that were not acknowledged in time."),
    "dead_lettered": DeviceMetric("counter", "messages_dead_lettered", "Messages that have become dead letters."),
    "damaged": DeviceMetric("counter", "messages_damaged", "Messages that could not be read any more."),
    "syncs": DeviceMetric("counter", "store_syncs", "How often the store waited for the disk."),
}

#: Those of the original, in its order.
ORIGINAL_NAMES: Final = ("messages", "messages_inflight", "db_size", "inflight_db_size", "syncs", "expired_messages")


def as_number(value: float | str | None) -> float:
    """Returns a figure as a number; where it is a reason, 1 if there is one."""
    return float(value is not None) if value is None or isinstance(value, str) else float(value)


def as_text(stats: DeviceStats) -> str:
    """Returns the original's text: a line for each, and those of the cluster where there is one."""
    names = (
        ORIGINAL_NAMES if stats["nodes"] == 1 else (*ORIGINAL_NAMES, "own_messages", "replicas", "nodes", "nodes_alive")
    )
    return "".join(f"{name}: {stats[name]}\n" for name in names)
