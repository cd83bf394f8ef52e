"""The HTTP door: it only ever looks."""

from __future__ import annotations

from collections.abc import Callable

from omq.broker.stats import BrokerStats


class HttpDoor:
    """Serves what the broker tells about itself, on the broker's event loop.

    Args:
        stats: Called for each answer, in the loop.

    Raises:
        ImportError: aiohttp or prometheus_client is missing: `omq-zmtp[broker]` brings both.
    """

    def __init__(self, stats: Callable[[], BrokerStats]) -> None:
        self._stats = stats

    async def start(self, address: str) -> str:
        """Listens.

        Args:
            address: `host:port`, `:port` or `port`; without a host 127.0.0.1; port 0 or `*`: any free one.

        Returns:
            The URL, with the port resolved: `http://127.0.0.1:8222`.

        Raises:
            EndpointError: The address is none.
            BindError: It cannot be listened on.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Stops listening and ends what is open."""
