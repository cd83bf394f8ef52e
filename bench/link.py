"""The worker's end of the pipes to the bench: one JSON object a line, orders in, facts out."""

from __future__ import annotations

import asyncio
import json
import os
import select
from typing import Any


class Link:
    """Takes orders from standard input and tells facts on what was standard output."""

    def __init__(self) -> None:
        # Whatever a library prints must not end up between the facts.
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._buffer = b""
        self._reader: asyncio.StreamReader | None = None

    def tell(self, **facts: Any) -> None:
        """Sends one line of facts."""
        os.write(self._out, json.dumps(facts).encode() + b"\n")

    def take(self) -> dict[str, Any]:
        """Waits for the next order (blocking peers)."""
        while b"\n" not in self._buffer:
            chunk = os.read(0, 65536)
            if not chunk:
                raise SystemExit(0)
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        order: dict[str, Any] = json.loads(line)
        return order

    def has_order(self, seconds: float) -> bool:
        """Whether an order came within `seconds` (blocking peers)."""
        return b"\n" in self._buffer or bool(select.select([0], [], [], seconds)[0])

    async def next(self) -> dict[str, Any]:
        """Waits for the next order without blocking the loop (asyncio peers)."""
        if self._reader is None:
            loop = asyncio.get_running_loop()
            reader = self._reader = asyncio.StreamReader()
            stdin = os.fdopen(0, "rb", buffering=0, closefd=False)
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
        line = await self._reader.readline()
        if not line:
            raise SystemExit(0)
        order: dict[str, Any] = json.loads(line)
        return order
