"""HTTP for monitoring a server: read-only requests, with limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from omq.errors import BindError
from omq.serving.address import parse_http_address

__all__ = ["Handler", "HttpListener", "health", "readiness"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

IDLE_TIMEOUT_S: Final = 30.0  # for the next request of a connection
MAX_CONNECTIONS: Final = 256  # above, the oldest is closed: a connection without a first request has no idle timeout
CHECK_INTERVAL_S: Final = 1.0  # between two checks of that number
SHUTDOWN_TIMEOUT_S: Final = 1.0  # for the answers in progress

#: Headers of all answers, also of errors: browsers must not guess content types, cache answers, or get a version.
HEADERS: Final = {
    "Server": "omq",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}


class HttpListener:
    """Answers GET and HEAD on the running event loop. Other methods are answered with 405.

    Args:
        handlers: The handlers by path.
        log: The log for handlers that fail.
    """

    def __init__(self, handlers: Mapping[str, Handler], log: logging.Logger) -> None:
        self._handlers = handlers
        self._log = log
        self._runner: web.AppRunner | None = None
        self._bounding: asyncio.Task[None] | None = None

    async def start(self, address: str) -> str:
        """Starts to listen.

        Args:
            address: `host:port`, `:port` or `port`; the default host is 127.0.0.1; for port 0 or `*` the system
                chooses.

        Returns:
            The URL, with the port resolved: `http://127.0.0.1:8222`.

        Raises:
            UsageError: The address is not valid.
            BindError: The address cannot be bound.
        """
        host, port = parse_http_address(address)
        app = web.Application(middlewares=[self._harden])
        for path, handler in self._handlers.items():
            app.router.add_get(path, handler)
        runner = web.AppRunner(
            app,
            logger=_Debug(self._log),
            access_log=None,
            keepalive_timeout=IDLE_TIMEOUT_S,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise BindError(error.errno, f"http {address}: {error.strerror or error}") from None
        self._runner = runner
        self._bounding = asyncio.get_running_loop().create_task(self._bound_connections(runner))
        bound_host, bound_port = runner.addresses[0][:2]
        return f"http://[{bound_host}]:{bound_port}" if ":" in bound_host else f"http://{bound_host}:{bound_port}"

    async def close(self) -> None:
        """Stops listening and ends all connections. Idempotent."""
        bounding, self._bounding = self._bounding, None
        if bounding is not None:
            bounding.cancel()
            await asyncio.wait([bounding])
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _bound_connections(self, runner: web.AppRunner) -> None:
        assert runner.server is not None
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            connections = runner.server.connections
            for oldest in connections[: max(0, len(connections) - MAX_CONNECTIONS)]:
                oldest.force_close()

    @web.middleware
    async def _harden(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            response = await handler(request)
        except web.HTTPException as refusal:
            response = web.Response(status=refusal.status, text=f"{refusal.reason}\n")
            if "Allow" in refusal.headers:
                response.headers["Allow"] = refusal.headers["Allow"]
        except Exception:
            self._log.exception("%s has failed", request.path)
            response = web.Response(status=500, text="the server has failed to answer\n")
        response.headers.update(HEADERS)
        return response


def health(failed: str | None, full: bool, trouble: str = "") -> web.Response:
    """Returns the answer to `/healthz`, by which a supervisor restarts the process.

    A restart mends a store that has failed. It mends neither a full disk nor what is wrong with a cluster.

    Args:
        failed: The error of a store that has failed.
        full: The disk is full.
        trouble: The reason for which the server takes no part in its cluster; empty if it does.
    """
    if failed is not None:
        return web.Response(status=503, text=f"the store has failed: {failed}\n")
    but = "the disk is full" if full else trouble
    return web.Response(text=f"ok, but {but}\n" if but else "ok\n")


def readiness(failed: str | None, obstacle: str) -> web.Response:
    """Returns the answer to `/readyz`, by which a load balancer selects servers.

    Args:
        failed: The error of a store that has failed.
        obstacle: The reason for which others serve better; empty without one.
    """
    if failed is not None or obstacle:
        return web.Response(status=503, text=f"{obstacle or f'the store has failed: {failed}'}\n")
    return web.Response(text="ok\n")


class _Debug(logging.LoggerAdapter[logging.Logger]):
    """Demotes aiohttp's log, mostly about malformed requests, to DEBUG."""

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """See `logging.LoggerAdapter`."""
        super().log(logging.DEBUG, msg, *args, **options)
