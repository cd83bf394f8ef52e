"""A broker in a program: its core, its doors, and a thread for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from omq.broker.broker import Broker
from omq.broker.config import TopicSpec
from omq.broker.permissions import Permission
from omq.types import Security


class AsyncServer:
    """A broker in the running event loop (`omq.asyncio.broker.Server`).

    async with Server("data", bind="tcp://127.0.0.1:*") as server: print(server.endpoints)

    Args:
        directory: Where the topics are kept; made if it is not there. `None` with `memory`.
        bind: The endpoint, or endpoints, of the ZMTP door; `None` for none.
        sexp: The endpoint of the S-expressions' door (`tcp://host:port`); `None` for none.
        http: The address of the status page (`host:port`); `None` for none.
        topics: Made at the start.
        security: A `PlainServer` or `CurveServer` for the ZMTP door.
        permissions: Who may do what; none: everybody everything.
        memory: Keeps everything in memory; there is no `directory`, and no `strong` topic.

    Attributes:
        endpoints: Where it serves: `zmtp`, `sexp`, `http`, once it is entered.
        broker: The core.
    """

    endpoints: dict[str, str]
    broker: Broker

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        bind: str | Iterable[str] | None = "tcp://127.0.0.1:*",
        sexp: str | None = None,
        http: str | None = None,
        topics: Iterable[TopicSpec] = (),
        security: Security | None = None,
        permissions: Iterable[Permission] = (),
        memory: bool = False,
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Opens the store and serves; `async with` does it."""

    async def close(self) -> None:
        """Answers what was taken, and ends. Idempotent."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Server:
    """A broker in a thread of its own; see `AsyncServer` for what it takes."""

    endpoints: dict[str, str]

    def __init__(self, directory: str | Path | None = None, **options: Any) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Opens the store and serves; `with` does it."""

    def close(self) -> None:
        """Answers what was taken, and ends. Idempotent."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
