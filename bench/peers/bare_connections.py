"""Many connections of one process with little traffic: bare ZMTP, so that only the other side is a library.

Each shakes hands, then sends one frame: a PUSH sends a message, a SUB subscribes to everything and takes a message. It
waits for the other side's READY first, without which libzmq drops a connection.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, Final

import uvloop

from bench.control import Control
from bench.pzq.clients import ready_command

GREETING: Final = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL".ljust(64, b"\0")
#: Connections under way at a time: all processes together stay below the usual backlog of 100.
MAX_CONNECTING: Final = 16
SPARE_DESCRIPTORS: Final = 100  # for everything else
FIRST_FRAMES: Final = {"PUSH": b"\0\4here", "SUB": b"\0\1\1"}


def raise_limit(wanted: int) -> None:
    """Lets the process open *wanted* descriptors and a few more.

    Raises:
        OSError: The system allows fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + SPARE_DESCRIPTORS:
        if hard != resource.RLIM_INFINITY and hard < wanted + SPARE_DESCRIPTORS:
            raise OSError(f"{wanted + SPARE_DESCRIPTORS} descriptors are needed, and this process may open {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + SPARE_DESCRIPTORS, hard))


class BareClient(asyncio.Protocol):
    """One connection.

    Attributes:
        ready: Done when it has shaken hands and sent its frame.
        served: Done when it has got a message.
    """

    def __init__(self, kind: str) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.served: asyncio.Future[None] = loop.create_future()
        self._kind = kind
        self._got = b""
        self._wanted = len(GREETING)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        if self.ready.done():
            if not self.served.done():
                self.served.set_result(None)
            return
        self._got += data
        if self._wanted == len(GREETING) and len(self._got) >= self._wanted:
            self._transport.write(ready_command(self._kind.encode()))
            self._wanted += 2
        if self._wanted > len(GREETING) and len(self._got) >= self._wanted:
            # READY is short; no byte of a next frame can follow before this side has sent its frame.
            if len(self._got) < self._wanted + self._got[len(GREETING) + 1]:
                return
            self._got = b""
            self._transport.write(FIRST_FRAMES[self._kind])
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self.ready, self.served):
            if not future.done():
                future.set_exception(error or ConnectionError("the other side has closed a connection"))


async def connect(host: str, port: int, kind: str, count: int) -> list[BareClient]:
    """Makes *count* connections."""
    loop = asyncio.get_running_loop()
    connecting = asyncio.Semaphore(MAX_CONNECTING)

    async def connect_one() -> BareClient:
        async with connecting:
            _, client = await loop.create_connection(lambda: BareClient(kind), host, port)
            await client.ready
            return client

    return list(await asyncio.gather(*[connect_one() for _ in range(count)]))


def add_connections(control: Control, job: dict[str, Any]) -> None:
    """Adds `count` connections at each order and reports them, or waits until all have received a message."""
    raise_limit(job["max_connections"])
    host, _, port = job["endpoint"].removeprefix("tcp://").rpartition(":")

    async def run() -> None:
        clients: list[BareClient] = []
        while True:
            order = await control.receive_async()
            if "count" in order:
                clients += await connect(host, int(port), job["kind"], order["count"])
                control.report(joined=len(clients))
            else:
                await asyncio.gather(*[client.served for client in clients])
                control.report(served=len(clients))

    uvloop.run(run())
