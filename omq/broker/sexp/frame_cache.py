"""Frames of a block that several subscribers get."""

from __future__ import annotations

import asyncio

from omq.broker.sexp.protocol import write_block

__all__ = ["FrameCache"]


class FrameCache:
    """Encodes each block once for all connections that get it in one turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._found: dict[tuple[int, bytes], tuple[bytes, list[int]]] = {}

    def encode(self, header: bytes, records: memoryview, topic_id: int) -> tuple[bytes, list[int]]:
        """Returns the frames of a block, and the offset at which each of them ends."""
        key = (topic_id, header)
        found = self._found.get(key)
        if found is None:
            if not self._found:
                self._loop.call_soon(self._found.clear)
            found = self._found[key] = write_block(header, records, topic_id)
        return found
