"""`/metrics` for Prometheus, and `/healthz` for a supervisor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from omq.pzq.device.figures import Figures
from omq.serving.http import HttpListener, health

log = logging.getLogger("omq.pzq")

PREFIX: Final = "omq_pzq"

GAUGES: Final = (
    ("messages", "messages", "Messages that are stored and not settled: own_messages and replicas together."),
    ("own_messages", "own_messages", "Messages of this node's own producers that are stored and not settled."),
    ("messages_inflight", "messages_inflight", "Messages that consumers have."),
    ("inflight_bytes", "inflight_db_size", "Bytes of the bodies in flight."),
    ("store_bytes", "db_size", "Bytes of the store's files."),
    ("dead_letters", "dead_letters", "Dead letters that are held."),
    ("producers", "producers", "Producers that are connected."),
    ("consumers", "consumers", "Consumers that are connected."),
    ("replicas", "replicas", "Messages of other nodes that are kept and not settled."),
    ("recovered", "recovered", "Own messages that came back from other nodes and are not settled."),
    ("nodes", "nodes", "Nodes of the cluster."),
    ("nodes_alive", "nodes_alive", "Nodes of the cluster that were heard lately, this one among them."),
    ("store_full", "full", "1 while there is no room on the disk."),
)
COUNTERS: Final = (
    ("messages_stored", "stored", "Messages that were stored."),
    ("stored_bytes", "stored_bytes", "Bytes of the bodies that were stored."),
    ("messages_repeated", "repeated", "Messages that had been stored before."),
    ("messages_refused", "refused", "Messages that were refused."),
    ("acks_refused", "refused_acks", "Acknowledgements that count for nothing."),
    ("messages_delivered", "delivered", "Deliveries."),
    ("messages_redelivered", "redelivered", "Deliveries that were not a message's first."),
    ("messages_acknowledged", "acknowledged", "Messages that consumers are done with."),
    ("messages_returned", "returned", "Deliveries that came back at once."),
    ("messages_expired", "expired_messages", "Deliveries that were not acknowledged in time."),
    ("messages_dead_lettered", "dead_lettered", "Messages that have become dead letters."),
    ("messages_damaged", "damaged", "Messages that could not be read any more."),
    ("store_syncs", "syncs", "How often the store waited for the disk."),
)


class Metrics(Collector):
    """Makes metrics of one look at a device."""

    def __init__(self, figures: Figures) -> None:
        self._figures: dict[str, Any] = {**figures}

    def collect(self) -> Iterator[Metric]:
        for name, key, text in GAUGES:
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, float(self._figures[key]))
        failed = float(self._figures["failed"] is not None)
        yield GaugeMetricFamily(f"{PREFIX}_store_failed", "1 once the store has failed.", failed)
        for name, key, text in COUNTERS:
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, float(self._figures[key]))


def http_listener(figures: Callable[[], Figures]) -> HttpListener:
    """Makes the listener for `/metrics` and `/healthz`.

    Args:
        figures: Called for each answer.
    """

    async def get_metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Metrics(figures()))
        ProcessCollector(registry=registry)
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def get_health(request: web.Request) -> web.Response:
        now = figures()
        return health(now["failed"], now["full"])

    return HttpListener({"/metrics": get_metrics, "/healthz": get_health}, log)
