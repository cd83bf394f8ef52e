"""`/metrics` for Prometheus, and `/healthz` for a supervisor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from omq.pzq.device.stats import METRICS, DeviceStats, as_number
from omq.serving.http import HttpListener, health, readiness

log = logging.getLogger("omq.pzq")

FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class DeviceMetrics(Collector):
    """Makes metrics from one snapshot of a device's statistics."""

    def __init__(self, stats: DeviceStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        for name, (kind, metric, text) in METRICS.items():
            yield FAMILIES[kind](f"omq_pzq_{metric}", text, as_number(self._stats[name]))


def http_listener(stats: Callable[[], DeviceStats]) -> HttpListener:
    """Makes the listener for `/metrics` and `/healthz`.

    Args:
        stats: Returns the statistics; called for each answer.
    """

    async def get_metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(DeviceMetrics(stats()))
        ProcessCollector(registry=registry)
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def get_health(request: web.Request) -> web.Response:
        now = stats()
        if now["aside"] is not None:
            return web.Response(status=503, text=f"this node has no part in its cluster: {now['aside']}\n")
        return health(now["failed"], now["full"], now["trouble"] or "")

    async def get_readiness(request: web.Request) -> web.Response:
        now = stats()
        obstacle = now["aside"] or now["trouble"] or ("" if now["leader"] else "another device of the cluster leads")
        return readiness(now["failed"], obstacle)

    return HttpListener({"/metrics": get_metrics, "/healthz": get_health, "/readyz": get_readiness}, log)
