"""The worker's end of its control pipe: orders on standard input, reports on standard output, a line of JSON each."""

from __future__ import annotations

import asyncio
import json
import os
import select
from typing import Any


class Control:
    """Receives orders from standard input, and sends reports to the former standard output."""

    def __init__(self) -> None:
        # The output of a library must not end up between the reports.
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._buffer = b""
        self._reader: asyncio.StreamReader | None = None

    def report(self, **values: Any) -> None:
        """Sends one report."""
        os.write(self._out, json.dumps(values).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
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
        """Returns whether an order comes within *seconds* (blocking peers)."""
        return b"\n" in self._buffer or bool(select.select([0], [], [], seconds)[0])

    async def receive_async(self) -> dict[str, Any]:
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
