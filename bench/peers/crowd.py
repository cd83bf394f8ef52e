"""Many connections of one process that say little: bare ZMTP, so that only the other side is a library.

Each shakes hands, then says one thing: a PUSH sends a message, a SUB subscribes to everything and takes a message. It
waits for the other side's READY first, without which libzmq drops a connection.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, Final

import uvloop

from bench.link import Link

GREETING: Final = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL".ljust(64, b"\0")
AT_ONCE: Final = 16  # connections under way at a time: all processes together stay below the usual backlog of 100
SPARE: Final = 100  # descriptors for everything else


def raise_limit(wanted: int) -> None:
    """Lets the process open *wanted* descriptors, and some.

    Raises:
        OSError: The system allows fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + SPARE:
        if hard != resource.RLIM_INFINITY and hard < wanted + SPARE:
            raise OSError(f"{wanted + SPARE} descriptors are needed, and this process may open {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + SPARE, hard))


def _ready(kind: str) -> bytes:
    name = kind.encode()
    body = b"\x05READY\x0bSocket-Type" + len(name).to_bytes(4, "big") + name
    return bytes([4, len(body)]) + body


SAID: Final = {"PUSH": b"\0\4here", "SUB": b"\0\1\1"}


class Member(asyncio.Protocol):
    """One connection.

    Attributes:
        spoken: Done when it has shaken hands and said its thing.
        served: Done when it has got a message.
    """

    def __init__(self, kind: str) -> None:
        loop = asyncio.get_running_loop()
        self.spoken: asyncio.Future[None] = loop.create_future()
        self.served: asyncio.Future[None] = loop.create_future()
        self._kind = kind
        self._got = b""
        self._wanted = len(GREETING)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        if self.spoken.done():
            if not self.served.done():
                self.served.set_result(None)
            return
        self._got += data
        if self._wanted == len(GREETING) and len(self._got) >= self._wanted:
            self._transport.write(_ready(self._kind))
            self._wanted += 2
        if self._wanted > len(GREETING) and len(self._got) >= self._wanted:
            # READY is short; a byte of the next frame is not there before we have spoken.
            if len(self._got) < self._wanted + self._got[len(GREETING) + 1]:
                return
            self._got = b""
            self._transport.write(SAID[self._kind])
            self.spoken.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self.spoken, self.served):
            if not future.done():
                future.set_exception(error or ConnectionError("the other side has closed a connection"))


async def gather(host: str, port: int, kind: str, count: int) -> list[Member]:
    """Makes so many connections."""
    loop = asyncio.get_running_loop()
    turns = asyncio.Semaphore(AT_ONCE)

    async def join() -> Member:
        async with turns:
            _, member = await loop.create_connection(lambda: Member(kind), host, port)
            await member.spoken
            return member

    return list(await asyncio.gather(*[join() for _ in range(count)]))


def crowd(link: Link, job: dict[str, Any]) -> None:
    """Adds `count` connections at each order and tells when they are there, or waits until all have been served."""
    raise_limit(job["most"])
    host, _, port = job["endpoint"].removeprefix("tcp://").rpartition(":")

    async def play() -> None:
        members: list[Member] = []
        while True:
            order = await link.next()
            if "count" in order:
                members += await gather(host, int(port), job["kind"], order["count"])
                link.tell(joined=len(members))
            else:
                await asyncio.gather(*[member.served for member in members])
                link.tell(served=len(members))

    uvloop.run(play())
