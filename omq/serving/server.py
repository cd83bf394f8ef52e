"""The interface of a server."""

from __future__ import annotations

from typing import Protocol


class AsyncServer(Protocol):
    """A server in the running event loop.

    Attributes:
        endpoints: The endpoints that it serves, by name, once it has started.
    """

    endpoints: dict[str, str]

    async def start(self) -> None:
        """Begins to serve."""

    async def close(self) -> None:
        """Answers what was received, and ends."""
