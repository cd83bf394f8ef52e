"""The HTTP server of a broker, which is read-only."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from aiohttp import web

from omq.broker.core.stats import BrokerStats, TopicStats
from omq.broker.http.metrics import MetricsPage
from omq.broker.http.query import Query
from omq.broker.http.rates import Rates
from omq.broker.http.view import Each, JsonPage
from omq.executor import in_yielding_thread, resting
from omq.serving.http import HttpListener, health, readiness

LOG: Final = logging.getLogger("omq.broker")

T = TypeVar("T")

SAMPLE_INTERVAL_S: Final = 1.0  # between two samples of the counters
COLLECT_SLICE_S: Final = 0.001  # of collecting statistics, before the loop gets a turn
REFRESH_FACTOR: Final = 20.0  # a page waits this many times as long as its last answer took, or longer
CACHE_FACTOR: Final = 5.0  # statistics are cached this many times as long as collecting them took
MAX_LOOP_SHARE: Final = 0.01  # the part of the loop's time that sampling may take
MAX_INLINE_TOPICS: Final = 50  # with more topics, answers are encoded in a thread
MAX_INLINE_READERS: Final = 200  # with more subscriptions, groups or connections, too


class HttpServer:
    """Serves the broker's statistics, on the broker's event loop.

    Args:
        stats: Returns the statistics; called in the loop.
        topics: Yields the statistics of all topics, if *stats* leaves them out.
    """

    def __init__(
        self, stats: Callable[[], BrokerStats], topics: Callable[[], Iterable[TopicStats]] | None = None
    ) -> None:
        self._stats = stats
        self._topics = topics
        self._collecting = asyncio.Lock()
        self._last: BrokerStats | None = None
        self._cost = 0.0  # seconds that the last answer of /topics.json took
        self._cached_until = 0.0  # on the loop's clock
        self._rates = Rates(stats())
        self._json = JsonPage()
        self._metrics = MetricsPage()
        page = Path(__file__).with_name("page.htm").read_text(encoding="utf-8")
        self._page = page.encode()
        self._policy = _policy(page)
        self._listener = HttpListener(
            {
                "/": self._get_page,
                "/topics.json": self._get_topics,
                "/metrics": self._get_metrics,
                "/healthz": self._get_health,
                "/readyz": self._get_readiness,
            },
            LOG,
        )
        self._sampler: asyncio.Task[None] | None = None

    async def start(self, address: str) -> str:
        """Starts to listen.

        Args:
            address: `host:port`, `:port` or `port`. The default host is 127.0.0.1; port 0 or `*` is any free port.

        Returns:
            The URL with the resolved port: `http://127.0.0.1:8222`.

        Raises:
            UsageError: The address is not valid.
            BindError: The address cannot be bound.
        """
        url = await self._listener.start(address)
        self._sampler = asyncio.get_running_loop().create_task(self._sample())
        return url

    async def close(self) -> None:
        """Stops listening and closes all connections. Idempotent."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.cancel()
            await asyncio.wait([sampler])
        await self._listener.close()

    async def _sample(self) -> None:
        """Samples the counters once a second, and less often if that takes long."""
        loop = asyncio.get_running_loop()
        pause = SAMPLE_INTERVAL_S
        while True:
            await asyncio.sleep(pause)
            began = loop.time()
            try:
                stats = await self._collect()
                await _run_encoder(stats, partial(self._rates.add, stats))
            except Exception:
                LOG.exception("the broker cannot collect its statistics")
            pause = max(SAMPLE_INTERVAL_S, (loop.time() - began) / MAX_LOOP_SHARE)

    async def _collect(self) -> BrokerStats:
        """Collects the statistics of all topics, in slices of a millisecond, so that messages do not wait."""
        if self._topics is None:
            return self._stats()
        loop = asyncio.get_running_loop()
        async with self._collecting:
            began, slice_start = loop.time(), time.perf_counter()
            if self._last is not None and began < self._cached_until:
                return self._last
            found: list[TopicStats] = []
            for topic in self._topics():
                found.append(topic)
                if time.perf_counter() - slice_start > COLLECT_SLICE_S:
                    await asyncio.sleep(0)
                    slice_start = time.perf_counter()
            self._last = {**self._stats(), "topics": found}
            now = loop.time()
            self._cached_until = now + CACHE_FACTOR * (now - began)
            return self._last

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
        body = await _run_encoder(stats, lambda each: self._json.encode(stats, self._rates, query, refresh, each))
        self._cost = time.perf_counter() - began
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    async def _get_metrics(self, request: web.Request) -> web.Response:
        stats = await self._collect()
        accept = request.headers.get("Accept", "")
        body, content_type = await _run_encoder(stats, lambda each: self._metrics.encode(stats, accept, each))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _get_health(self, request: web.Request) -> web.Response:
        stats = self._stats()
        return health(stats["store"]["failed"], stats["store"]["full"], _trouble(stats))

    async def _get_readiness(self, request: web.Request) -> web.Response:
        stats = self._stats()
        return readiness(stats["store"]["failed"], _trouble(stats))


def _trouble(stats: BrokerStats) -> str:
    """Returns the reason for which the broker takes no part in its cluster; empty if it does, or is in none."""
    return "" if stats["cluster"] is None else stats["cluster"]["trouble"]


async def _run_encoder(stats: BrokerStats, work: Callable[[Each], T]) -> T:
    """Encodes statistics; those of many topics or readers in a thread, so that messages do not wait."""
    return work(iter) if _is_small(stats) else await in_yielding_thread(work, resting)


def _is_small(stats: BrokerStats) -> bool:
    topics = stats["topics"]
    if len(topics) > MAX_INLINE_TOPICS or sum(stats["connections"].values()) > MAX_INLINE_READERS:
        return False
    readers = sum(len(topic["names"]) + len(topic["groups"]) + len(topic["subscriptions"]) for topic in topics)
    return readers <= MAX_INLINE_READERS


def _policy(page: str) -> str:
    """Returns the content security policy of a page, which allows its own style, script and JSON only."""
    style, script = (
        base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()
        for name in ("style", "script")
        for found in re.findall(f"<{name}>(.*?)</{name}>", page, re.DOTALL)
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
