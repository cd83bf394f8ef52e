"""A device that stores nothing: the same sockets, the same frames, and a queue in memory.

Its rate is that of Python and the sockets. `python -m bench.pzq.stub_device READY_FILE` serves until it is ended.
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

BATCH_MESSAGES: Final = 256
MAX_INFLIGHT_BYTES: Final = 31_457_280


class StubDevice:
    """Receives, keeps and delivers messages."""

    def __init__(self) -> None:
        self.receive = omq.ROUTER(send_hwm=0)
        self.send = omq.DEALER(send_hwm=0)
        self.monitor = omq.ROUTER()
        self.waiting: deque[list[bytes]] = deque()
        self.held: dict[bytes, list[bytes]] = {}
        self.size = 0
        self.number = 0

    async def take_messages(self) -> None:
        """Receives messages, and answers producers."""
        while True:
            batch: list[Any] = await self.receive.recv_many(BATCH_MESSAGES)
            self.waiting += [parts for _, _, _, *parts in batch]
            await self.receive.send_many([(peer, id, b"1", b"") for peer, id, *_ in batch])
            await self.deliver()
            await asyncio.sleep(0)

    async def take_acks(self) -> None:
        """Receives acknowledgements."""
        while True:
            batch: list[Any] = await self.send.recv_many(BATCH_MESSAGES)
            for key, _ in batch:
                self.size -= sum(map(len, self.held.pop(key)))
            await self.deliver()
            await asyncio.sleep(0)

    async def deliver(self) -> None:
        """Delivers the messages that there is room for."""
        if not self.send.peers:
            return
        now = b"%d" % (time.time_ns() // 1000)
        deliveries: list[tuple[bytes, ...]] = []
        while self.waiting and self.size <= MAX_INFLIGHT_BYTES and len(deliveries) < 2 * BATCH_MESSAGES:
            parts = self.waiting.popleft()
            self.number += 1
            key = b"%b|%036d" % (now, self.number)
            self.held[key] = parts
            self.size += sum(map(len, parts))
            deliveries.append((key, now, b"5000000", b"", *parts))
        if deliveries:
            await self.send.send_many(deliveries)

    async def answer_monitor(self) -> None:
        """Answers the monitor."""
        while True:
            peer, *_ = await self.monitor.recv_multipart()
            text = b"messages: %d\n" % (len(self.waiting) + len(self.held))
            await self.monitor.send_multipart((peer, text))

    async def poll_consumers(self) -> None:
        """Delivers to consumers that connect between two messages."""
        while True:
            await self.deliver()
            await asyncio.sleep(0.01)


async def serve(ready: Path) -> None:
    """Serves, and writes its endpoints to the ready file."""
    stub = StubDevice()
    sockets = {"receive": stub.receive, "send": stub.send, "monitor": stub.monitor}
    endpoints = {name: one.bind("tcp://127.0.0.1:*") for name, one in sockets.items()}
    new_file = ready.with_suffix(".new")
    new_file.write_text(json.dumps(endpoints))
    new_file.rename(ready)
    await asyncio.gather(stub.take_messages(), stub.take_acks(), stub.answer_monitor(), stub.poll_consumers())


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
