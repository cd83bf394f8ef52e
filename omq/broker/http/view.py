"""The content of `/topics.json`: the broker's statistics, with rates in place of counters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from omq.broker.core.stats import BrokerStats, StoreStats, TopicStats
from omq.broker.http.query import ChangeTracker, Query
from omq.broker.http.rates import Rates
from omq.unpatched import threading

TopicRates = tuple[float, float, float, float]
Each = Callable[[Iterable[Any]], Iterator[Any]]

#: Not `json.dumps`: a single call would keep the GIL for all topics.
encode: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_IDLE: Final[TopicRates] = (0.0, 0.0, 0.0, 0.0)


class JsonPage:
    """Encodes statistics as JSON, with a cache of the topics whose statistics are the same object as before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes = ChangeTracker()
        self._texts: dict[int, tuple[TopicStats, TopicRates, str]] = {}  # by a topic's id

    def encode(
        self, stats: BrokerStats, rates: Rates, query: Query | None = None, refresh: float = 0.0, each: Each = iter
    ) -> bytes:
        """Encodes statistics; in any thread. Topics are sorted by name.

        Args:
            stats: The counters.
            rates: The rates of the counters.
            query: Selects topics; `None` selects all. The broker's rates and sizes always count all topics.
            refresh: Seconds that a page should wait at least before its next request.
            each: Iterates over topics; it may yield the GIL between two.
        """
        query = query or Query()
        selection = query.select(stats["topics"])
        by_id = rates.of(each(stats["topics"]), stats["uptime"])
        page = {**_broker(stats, rates, by_id), "matching": selection.matching, "next": selection.next}
        page["refresh"] = refresh
        with self._lock:
            if len(self._texts) > 2 * len(stats["topics"]) + 1024:
                self._texts.clear()  # most entries are of deleted topics
            topics = self._encode_topics(each(selection.topics), by_id)
            since = self._changes.since(query.since)
            page["revision"], numbers = self._changes.record(topics, len(stats["topics"]))
        page["since"] = None if since is None else query.since
        if since is not None:
            page["ids"] = list(topics)
            topics = {id: text for id, text in topics.items() if numbers[id] > since}
        return f'{encode(page)[:-1]},"topics":[{",".join(topics.values())}]}}'.encode()

    def _encode_topics(self, topics: Iterable[TopicStats], by_id: Mapping[int, TopicRates]) -> dict[int, str]:
        texts, texts_by_id = self._texts, {}
        for topic in topics:
            id = topic["id"]
            rates = by_id.get(id, _IDLE)
            cached = texts.get(id)
            if cached is None or cached[0] is not topic or cached[1] != rates:
                cached = texts[id] = topic, rates, encode(_topic(topic, rates))
            texts_by_id[id] = cached[2]
        return texts_by_id


def _broker(stats: BrokerStats, rates: Rates, by_id: Mapping[int, TopicRates]) -> dict[str, Any]:
    """Returns the statistics of the broker without its topics."""
    total = [sum(column) for column in zip(*by_id.values(), strict=True)] or [0.0] * 4
    return {
        **{
            key: stats[key]
            for key in (
                *("version", "broker", "endpoints", "started", "uptime", "connections", "max_connections"),
                *("accepts_failed", "refused", "cluster", "journal_position"),
            )
        },
        "handshake_failures": sum(stats["handshake_failures"].values()),
        "rates": dict(zip(("messages_in", "bytes_in", "messages_out", "bytes_out"), total, strict=True)),
        "store": _store(stats["store"], rates, stats),
        "count": len(stats["topics"]),
    }


def lag_of(topic: TopicStats) -> int:
    """Returns the lag of a topic's slowest subscription or consumer group; for a work queue its backlog."""
    if topic["delivery"] == "round-robin":
        return topic["backlog"]
    lags = [reader["lag"] for reader in topic["subscriptions"]] + [position["lag"] for position in topic["names"]]
    lags += [group["lag"] for group in topic["groups"]]
    return max(lags, default=0)


def _topic(topic: TopicStats, rates: TopicRates) -> dict[str, Any]:
    rate_in, bytes_in, rate_out, bytes_out = rates
    return {
        **topic,
        "names": sorted(topic["names"], key=lambda one: one["name"]),
        "groups": sorted(topic["groups"], key=lambda one: one["name"]),
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
        name: {"bytes": one["bytes"], "used": one["used"], "commits": one["commits"], "syncs": one["syncs"]}
        for name, one in store["environments"].items()
    }
    files = [one for one in store["environments"].values() if one["bytes"]]  # without the memory of transient topics
    size = sum(one["bytes"] for one in files)
    return {
        **store,
        "bytes": size if store["directory"] is not None else sum(topic["bytes"] for topic in stats["topics"]),
        "used": sum(one["used"] for one in files),
        "environments": environments,
        "sync": {"rate": syncs.rate, "mean": syncs.mean, "p50": syncs.p50, "p99": syncs.p99},
    }
