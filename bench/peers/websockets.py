"""The library `websockets`: binary messages, awaited one by one, on uvloop.

Nothing is compressed, no PING is sent, and no size is refused: what is left is the framing.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import uvloop
from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import serve

from bench.link import Link

OPTIONS: dict[str, Any] = {"compression": None, "max_size": None, "ping_interval": None}


async def _serve(link: Link) -> Connection:
    """Listens, tells where, and gives the first connection."""
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def hold(connection: Connection) -> None:
        accepted.set_result(connection)
        await connection.wait_closed()

    server = await serve(hold, "127.0.0.1", 0, **OPTIONS)
    link.tell(endpoint="ws://{}:{}".format(*next(iter(server.sockets)).getsockname()))
    return await accepted


async def _join(link: Link, job: dict[str, Any]) -> Connection:
    return await _serve(link) if job["binds"] else await connect(job["endpoint"], **OPTIONS)


async def pull(link: Link, job: dict[str, Any]) -> None:
    """Times bursts from the first message to the last."""
    joining = asyncio.ensure_future(_join(link, job))  # the sender comes once it knows where
    while True:
        count = (await link.next())["burst"]
        link.tell(armed=True)
        recv = (await joining).recv
        await recv()
        started = perf_counter()
        for _ in range(count - 1):
            await recv()
        link.tell(seconds=perf_counter() - started)


async def push(link: Link, job: dict[str, Any]) -> None:
    """Sends bursts as fast as `send` takes them."""
    connection = await _join(link, job)
    send, message = connection.send, b"x" * job["size"]
    while True:
        for _ in range((await link.next())["burst"]):
            await send(message)


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    uvloop.run({"pull": pull, "push": push}[role](link, job))
