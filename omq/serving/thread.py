"""A server in a background thread, for programs without an event loop."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Protocol, Self

from omq.errors import UsageError
from omq.unpatched import threading


class RunningServer(Protocol):
    """A server in the running event loop.

    Attributes:
        endpoints: The endpoints of the server by name, once it has started.
    """

    endpoints: dict[str, str]

    async def start(self) -> None:
        """Starts the server."""

    async def close(self) -> None:
        """Answers requests that were received, and ends."""


class ServerThread:
    """Runs a server in a background thread with its own event loop.

    Args:
        server: The server.
        name: The noun for the server in the thread's name and in errors.

    Attributes:
        endpoints: The endpoints of the server by name, once it has started.
    """

    def __init__(self, server: RunningServer, name: str) -> None:
        self._server: Any = server
        self._name = name
        self.endpoints = server.endpoints
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._failed: BaseException | None = None

    def start(self) -> None:
        """Starts the server, and waits until it runs; `with` calls it.

        Raises:
            UsageError: It was started before.
            Exception: The server's `start` has raised it.
        """
        if self._thread is not None:
            raise UsageError(f"this {self._name} was started already: make another one")
        self._thread = threading.Thread(target=self._run, name=f"omq {self._name}", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self._failed is not None:
            self._thread.join()
            raise self._failed

    def _run(self) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        try:
            await self._server.start()
        except BaseException as error:
            self._failed = error
            return
        finally:
            self._begun.set()
        try:
            await self._end.wait()
            await self._server.close()
        except BaseException as error:
            self._failed = error

    def close(self) -> None:
        """Answers requests that were received, saves the store, and ends. Idempotent."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        try:
            self._loop.call_soon_threadsafe(self._end.set)
        except RuntimeError:
            pass  # the loop has ended in the meantime
        thread.join()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
