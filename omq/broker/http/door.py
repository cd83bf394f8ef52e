"""The HTTP door: it only ever looks. Nothing that comes through it changes anything."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from aiohttp import web

from omq.broker.core.stats import BrokerStats, TopicStats
from omq.broker.http.metrics import MetricsPage
from omq.broker.http.query import Query
from omq.broker.http.rates import Rates
from omq.broker.http.view import Each, JsonPage
from omq.errors import BindError
from omq.executor import in_yielding_thread, resting
from omq.serving.address import parse_http_address

__all__ = ["HttpDoor"]

LOG: Final = logging.getLogger("omq.broker")

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

INTERVAL: Final = 1.0  # seconds between two looks at the counters
COLLECT_SLICE_S: Final = 0.001  # of looks at topics, after which the loop serves others
REFRESH_FACTOR: Final = 20.0  # a page waits at least this many times as long as its last answer took
CACHE_FACTOR: Final = 5.0  # statistics serve all requests this many times as long as they took
SHARE: Final = 0.01  # of the loop's time that these looks may take
MANY: Final = 50  # topics: more of them are encoded outside of the loop
IDLE: Final = 30.0  # seconds that a connection may wait for its next request
MOST: Final = 256  # connections; beyond them the oldest ends, as one that says nothing never does by itself
PARTING: Final = 1.0  # seconds that an answer under way is given when the broker ends


class HttpDoor:
    """Serves what the broker tells about itself, on the broker's event loop.

    Args:
        stats: Called in the loop.
        topics: Yields the statistics of all topics, where *stats* leaves them out.
    """

    def __init__(
        self, stats: Callable[[], BrokerStats], topics: Callable[[], Iterable[TopicStats]] | None = None
    ) -> None:
        self._stats = stats
        self._topics = topics
        self._collecting = asyncio.Lock()
        self._last: BrokerStats | None = None
        self._cost = 0.0  # seconds that the last answer with all topics has taken
        self._until = 0.0  # how long the last look at all topics serves, on the loop's clock
        self._rates = Rates(stats())
        self._json = JsonPage()
        self._metrics = MetricsPage()
        page = Path(__file__).with_name("page.htm").read_text(encoding="utf-8")
        self._page = page.encode()
        self._policy = _policy(page)
        self._runner: web.AppRunner | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, address: str) -> str:
        """Listens.

        Args:
            address: `host:port`, `:port` or `port`; without a host 127.0.0.1; port 0 or `*`: any free one.

        Returns:
            The URL, with the port resolved: `http://127.0.0.1:8222`.

        Raises:
            UsageError: The address is not valid.
            BindError: It cannot be listened on.
        """
        host, port = parse_http_address(address)
        app = web.Application(middlewares=[_hardened])
        # GET also answers HEAD; anything else is refused by the router, 405.
        app.router.add_get("/", self._get_page)
        app.router.add_get("/topics.json", self._get_topics)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/healthz", self._get_health)
        runner = web.AppRunner(
            app, logger=_Quiet(LOG), access_log=None, keepalive_timeout=IDLE, shutdown_timeout=PARTING
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise BindError(error.errno, f"http {address}: {error.strerror or error}") from None
        self._runner = runner
        self._watch = asyncio.get_running_loop().create_task(self._look())
        bound_host, bound_port = runner.addresses[0][:2]
        return f"http://[{bound_host}]:{bound_port}" if ":" in bound_host else f"http://{bound_host}:{bound_port}"

    async def close(self) -> None:
        """Stops listening and ends what is open. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _look(self) -> None:
        """Remembers the counters again and again; with many topics less often."""
        loop = asyncio.get_running_loop()
        pause = INTERVAL
        while True:
            await asyncio.sleep(pause)
            began = loop.time()
            self._thin_out()
            try:
                stats = await self._collect()
                await _aside(stats, partial(self._rates.note, stats))
            except Exception:
                LOG.exception("the broker cannot tell how it is")
            pause = max(INTERVAL, (loop.time() - began) / SHARE)

    async def _collect(self) -> BrokerStats:
        """Looks at all topics, in slices of a millisecond: messages do not wait for a scrape."""
        if self._topics is None:
            return self._stats()
        loop = asyncio.get_running_loop()
        async with self._collecting:
            began, turned = loop.time(), time.perf_counter()
            if self._last is not None and began < self._until:
                return self._last
            found: list[TopicStats] = []
            for topic in self._topics():
                found.append(topic)
                if time.perf_counter() - turned > COLLECT_SLICE_S:
                    await asyncio.sleep(0)
                    turned = time.perf_counter()
            self._last = {**self._stats(), "topics": found}
            now = loop.time()
            self._until = now + CACHE_FACTOR * (now - began)
            return self._last

    def _thin_out(self) -> None:
        server = self._runner.server if self._runner is not None else None
        connections = server.connections if server is not None else []
        for oldest in connections[: max(0, len(connections) - MOST)]:
            oldest.force_close()

    async def _get_page(self, request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": self._policy}
        return web.Response(body=self._page, content_type="text/html", charset="utf-8", headers=headers)

    async def _get_topics(self, request: web.Request) -> web.Response:
        try:
            query = Query.parse(request.query)
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        began = time.perf_counter()
        stats = await self._collect()
        refresh = round(self._cost * REFRESH_FACTOR, 1)
        body = await _aside(stats, lambda each: self._json.encode(stats, self._rates, query, refresh, each))
        self._cost = time.perf_counter() - began
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    async def _get_metrics(self, request: web.Request) -> web.Response:
        stats = await self._collect()
        accept = request.headers.get("Accept", "")
        body, content_type = await _aside(stats, lambda each: self._metrics.encode(stats, accept, each))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _get_health(self, request: web.Request) -> web.Response:
        """200 as long as the broker does its work; a disk that is full is no reason to take it out of service."""
        store = self._stats()["store"]
        if store["failed"] is not None:
            return web.Response(status=503, text=f"the store has failed: {store['failed']}\n")
        return web.Response(text="ok, but the disk is full\n" if store["full"] else "ok\n")


async def _aside(stats: BrokerStats, work: Callable[[Each], T]) -> T:
    """Does something with statistics; with those of many topics in a thread, as messages shall not wait for it."""
    return work(iter) if len(stats["topics"]) <= MANY else await in_yielding_thread(work, resting)


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp says, most of all of requests that are none: nothing that the broker should worry about."""

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Says it to whoever looks for faults."""
        super().log(logging.DEBUG, msg, *args, **options)


@web.middleware
async def _hardened(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives every answer, an error too, what keeps browsers from guessing and from keeping it."""
    response: web.StreamResponse
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        response = web.Response(status=refusal.status, text=f"{refusal.reason}\n", headers=_allow(refusal))
    except Exception:
        LOG.exception("%s has failed", request.path)
        response = web.Response(status=500, text="the broker has failed to tell\n")
    response.headers["Server"] = "omq"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def _allow(refusal: web.HTTPException) -> dict[str, str]:
    return {"Allow": refusal.headers["Allow"]} if "Allow" in refusal.headers else {}


def _policy(page: str) -> str:
    """The content security policy of a page: its own style and script, its own JSON, and nothing else."""
    style, script = (
        base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()
        for name in ("style", "script")
        for found in re.findall(f"<{name}>(.*?)</{name}>", page, re.DOTALL)
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
