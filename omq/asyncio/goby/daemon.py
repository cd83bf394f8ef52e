"""The asyncio twin of the daemon."""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType
from typing import Any, Self

from omq.executor import in_thread
from omq.goby.daemon import Daemon as BlockingDaemon

__all__ = ["Daemon"]


class Daemon:
    """The manager and the router of a bus, in threads of their own. The arguments are those of `omq.goby.Daemon`.

    Attributes:
        endpoints: The endpoints for clients by their names: `manager`, `publish` (where clients publish) and
            `subscribe`. Empty until the daemon is started.
    """

    def __init__(self, **options: Any) -> None:
        self._daemon = BlockingDaemon(**options)
        self.endpoints = self._daemon.endpoints
        self._starting: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def missing(self) -> list[str]:
        """The required clients that are not ready, and the daemon itself until it is ready; empty after the release."""
        return self._daemon.missing

    async def start(self, *, ready: bool = True) -> None:
        """Starts the daemon, as `async with` does; see `omq.goby.Daemon.start`."""
        if self._starting is None or self._starting.done():
            self._starting = in_thread(partial(self._daemon.start, ready=ready))
        await asyncio.shield(self._starting)

    def ready(self) -> None:
        """Marks the started daemon as ready, which all clients wait for. Idempotent.

        Raises:
            StateError: The daemon was not started.
        """
        self._daemon.ready()

    async def close(self) -> None:
        """Stops the daemon. Idempotent. A cancelled call continues in the background, and another call waits for it."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        await in_thread(self._daemon.close)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except asyncio.CancelledError:
            await self.close()  # the caller has no other chance to
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
