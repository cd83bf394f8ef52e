"""A device that stores nothing: the same sockets, the same frames, and a queue in memory.

What it does a second is what Python and the sockets give. `python -m bench.pzq.stub READY_FILE` serves until it is
ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import uvloop

import omq.asyncio as omq

BATCH: Final = 256
INFLIGHT: Final = 31_457_280


class Stub:
    """Takes, keeps, gives."""

    def __init__(self) -> None:
        self.receive = omq.ROUTER(send_hwm=0)
        self.send = omq.DEALER(send_hwm=0)
        self.monitor = omq.ROUTER()
        self.waiting: deque[list[bytes]] = deque()
        self.held: dict[bytes, list[bytes]] = {}
        self.size = 0
        self.number = 0

    async def take(self) -> None:
        """Answers producers."""
        while True:
            batch: list[Any] = await self.receive.recv_many(BATCH)
            self.waiting += [parts for _, _, _, *parts in batch]
            await self.receive.send_many([(peer, id, b"1", b"") for peer, id, *_ in batch])
            await self.give()
            await asyncio.sleep(0)

    async def heed(self) -> None:
        """Takes acknowledgements."""
        while True:
            batch: list[Any] = await self.send.recv_many(BATCH)
            for key, _ in batch:
                self.size -= sum(map(len, self.held.pop(key)))
            await self.give()
            await asyncio.sleep(0)

    async def give(self) -> None:
        """Gives what there is room for."""
        if not self.send.peers:
            return
        now = b"%d" % (time.time_ns() // 1000)
        given: list[tuple[bytes, ...]] = []
        while self.waiting and self.size <= INFLIGHT and len(given) < 2 * BATCH:
            parts = self.waiting.popleft()
            self.number += 1
            key = b"%b|%036d" % (now, self.number)
            self.held[key] = parts
            self.size += sum(map(len, parts))
            given.append((key, now, b"5000000", b"", *parts))
        if given:
            await self.send.send_many(given)

    async def tell(self) -> None:
        """Answers who asks."""
        while True:
            peer, *_ = await self.monitor.recv_multipart()
            text = b"messages: %d\n" % (len(self.waiting) + len(self.held))
            await self.monitor.send_multipart((peer, text))

    async def begin(self) -> None:
        """Gives to a consumer that has come, too."""
        while True:
            await self.give()
            await asyncio.sleep(0.01)


async def serve(ready: Path) -> None:
    """Serves, and says where."""
    stub = Stub()
    sockets = {"receive": stub.receive, "send": stub.send, "monitor": stub.monitor}
    endpoints = {name: one.bind("tcp://127.0.0.1:*") for name, one in sockets.items()}
    beside = ready.with_suffix(".new")
    beside.write_text(json.dumps(endpoints))
    beside.rename(ready)
    await asyncio.gather(stub.take(), stub.heed(), stub.tell(), stub.begin())


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
