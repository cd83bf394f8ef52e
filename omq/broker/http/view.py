"""What `/topics.json` tells: the broker's statistics, with rates instead of counters that only a program can read."""

from __future__ import annotations

from typing import Any

from omq.broker.core.stats import BrokerStats, StoreStats, TopicStats
from omq.broker.http.query import Query
from omq.broker.http.rates import Rates

__all__ = ["lag_of", "view"]


def view(stats: BrokerStats, rates: Rates, query: Query | None = None) -> dict[str, Any]:
    """Returns what is shown, ready for JSON; topics stand in the order of their names.

    Args:
        stats: The counters.
        rates: How fast they grow.
        query: Which topics are shown; `None`: all. Rates and sizes are of all in any case.
    """
    selection = (query or Query()).select(stats["topics"])
    by_id = rates.of(stats["topics"], stats["uptime"])
    total = [sum(column) for column in zip(*by_id.values(), strict=True)] or [0.0] * 4
    return {
        **{
            key: stats[key]
            for key in (
                *("version", "broker", "endpoints", "started", "uptime", "connections"),
                *("refused", "handshakes_failed"),
            )
        },
        "rates": dict(zip(("messages_in", "bytes_in", "messages_out", "bytes_out"), total, strict=True)),
        "store": _store(stats["store"], rates, stats),
        "count": len(stats["topics"]),
        "matching": selection.matching,
        "next": selection.next,
        "topics": [_topic(topic, by_id[topic["id"]]) for topic in selection.topics],
    }


def lag_of(topic: TopicStats) -> int:
    """How far behind a topic's readers are: the last of them, or of the positions that are kept; a share's backlog."""
    if topic["delivery"] == "round-robin":
        return topic["backlog"]
    behind = [reader["lag"] for reader in topic["subscriptions"]] + [position["lag"] for position in topic["names"]]
    return max(behind, default=0)


def _topic(topic: TopicStats, rates: tuple[float, float, float, float]) -> dict[str, Any]:
    rate_in, bytes_in, rate_out, bytes_out = rates
    return {
        **topic,
        "subscribers": len(topic["subscriptions"]),
        "lag": lag_of(topic),
        "rate_in": rate_in,
        "rate_out": rate_out,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
    }


def _store(store: StoreStats, rates: Rates, stats: BrokerStats) -> dict[str, Any]:
    syncs = rates.syncs(stats)
    environments = {
        name: {"bytes": one["bytes"], "commits": one["commits"], "syncs": one["syncs"]}
        for name, one in store["environments"].items()
    }
    kept = sum(one["bytes"] for one in store["environments"].values())
    return {
        **store,
        "bytes": kept if store["directory"] is not None else sum(topic["bytes"] for topic in stats["topics"]),
        "environments": environments,
        "sync": {"rate": syncs.rate, "mean": syncs.mean, "p50": syncs.p50, "p99": syncs.p99},
    }
