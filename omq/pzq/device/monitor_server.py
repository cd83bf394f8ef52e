"""The monitor socket: answers requests with the device's statistics."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Final

import omq.asyncio as omq
from omq.errors import ClosedError
from omq.pzq.device.stats import DeviceStats, as_text
from omq.pzq.wire import shown
from omq.types import Security

log = logging.getLogger("omq.pzq")

MAX_REQUEST_BYTES: Final = 1 << 16


class MonitorServer:
    """Answers `MONITOR` with the text of the original pzq, and `MONITOR | JSON` with all statistics.

    Args:
        stats: Returns the statistics.
    """

    def __init__(self, stats: Callable[[], DeviceStats]) -> None:
        self._stats = stats

    def start(self, endpoint: str, security: Security | None) -> str:
        """Binds the socket; returns the resolved endpoint.

        Raises:
            EndpointError: The endpoint is not valid.
            BindError: The endpoint cannot be bound.
        """
        self._socket = omq.ROUTER(
            router_rename=True,
            max_message_size=MAX_REQUEST_BYTES,
            max_parts=16,
            recv_hwm=16,
            security=security,
            linger=1.0,
        )
        try:
            bound = self._socket.bind(endpoint)
        except BaseException:
            self._socket.stop()
            raise
        self._serving = asyncio.create_task(self._serve(), name="omq pzq: monitor")
        return bound

    async def close(self) -> None:
        """Closes the socket. Idempotent."""
        if not hasattr(self, "_serving"):
            return
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        await self._socket.close()

    async def _serve(self) -> None:
        while True:
            try:
                peer, *question = await self._socket.recv_multipart()
            except ClosedError:
                return
            # A REQ sends an empty frame before the request, and expects it before the answer.
            envelope = [b""] if len(question) > 1 and not question[0] else []
            await self._socket.send_multipart([peer, *envelope, self._answer(question[len(envelope) :])])

    def _answer(self, question: list[bytes]) -> bytes:
        try:
            if question == [b"MONITOR"]:
                return as_text(self._stats()).encode()
            if question == [b"MONITOR", b"JSON"]:
                return json.dumps(self._stats()).encode()
        except Exception as error:
            log.exception("the device cannot collect its statistics")
            return f"error: the device cannot collect its statistics: {error}\n".encode()
        asked = ", ".join(map(shown, question[:4]))
        return f"error: the question is MONITOR, or MONITOR and JSON, not {asked}\n".encode()
