"""The HTTP door: `/metrics` for Prometheus, `/healthz` for whoever restarts what is sick. It only ever looks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from omq.errors import BindError
from omq.pzq.figures import Figures

log = logging.getLogger("omq.pzq")

PREFIX: Final = "omq_pzq"
IDLE: Final = 30.0  # seconds that a connection may wait for its next request
PARTING: Final = 1.0  # seconds that an answer under way is given when the device ends

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


class HttpDoor:
    """Serves what a device tells about itself, on its event loop.

    Args:
        figures: Called for each answer.
    """

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> str:
        """Listens.

        Returns:
            The URL, with the port resolved: `http://127.0.0.1:8222`.

        Raises:
            BindError: It cannot be listened on.
        """
        app = web.Application()
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/healthz", self._get_health)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE, shutdown_timeout=PARTING)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise BindError(error.errno, f"http {host}:{port}: {error.strerror or error}") from None
        self._runner = runner
        bound_host, bound_port = runner.addresses[0][:2]
        return f"http://[{bound_host}]:{bound_port}" if ":" in bound_host else f"http://{bound_host}:{bound_port}"

    async def close(self) -> None:
        """Stops listening and ends what is open. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _get_metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Metrics(self._figures()))
        ProcessCollector(registry=registry)
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def _get_health(self, request: web.Request) -> web.Response:
        """200 as long as the device does its work; a disk that is full is no reason to take it out of service."""
        figures = self._figures()
        if figures["failed"] is not None:
            return web.Response(status=503, text=f"the store has failed: {figures['failed']}\n")
        return web.Response(text="ok, but the disk is full\n" if figures["full"] else "ok\n")
