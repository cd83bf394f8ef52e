"""The HTTP listener of `omq ingest`: `/metrics` and `/healthz`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from omq.broker.ingest import ACK_TIMEOUT_S, Ingest
from omq.serving.http import HttpListener

log = logging.getLogger("omq.ingest")

PREFIX: Final = "omq_ingest"


class IngestMetrics(Collector):
    """Collects the current metrics of an ingest."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        stats = self._ingest.stats
        for name, text, value in (
            ("messages_taken", "Messages received from the socket.", stats.received),
            ("taken_bytes", "Bytes of their bodies and keys.", stats.received_bytes),
            ("messages_published", "Messages that the broker has acknowledged.", stats.published),
            ("batches_published", "Requests that the broker has acknowledged.", stats.batches),
            ("requests_refused", "Requests that the broker refused and that were repeated.", stats.refused),
        ):
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value)
        for name, text, gauge in (
            ("in_flight_messages", "Messages that were received and are not acknowledged.", self._ingest.in_flight),
            (
                "waiting_seconds",
                "How long the current batch has waited for its acknowledgement.",
                self._ingest.waiting_s,
            ),
            ("peers", "Connected peers of the socket.", self._ingest.peers),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, gauge)


def http_listener(ingest: Ingest) -> HttpListener:
    """Creates the listener for `/metrics` and `/healthz` of an ingest."""

    async def get_metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(IngestMetrics(ingest))
        ProcessCollector(registry=registry)
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def get_health(request: web.Request) -> web.Response:
        # 200 even while the broker is full or down: a restart of this process would not help.
        waiting_s = ingest.waiting_s
        slow = waiting_s > ACK_TIMEOUT_S
        return web.Response(text=f"ok, but the broker has not answered for {waiting_s:.0f} s\n" if slow else "ok\n")

    return HttpListener({"/metrics": get_metrics, "/healthz": get_health}, log)
