"""The library `websockets`: binary messages, awaited one by one, on uvloop.

Nothing is compressed, no PING is sent, and no size is refused: the framing alone is left.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import uvloop
from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import serve

from bench.control import Control

OPTIONS: dict[str, Any] = {"compression": None, "max_size": None, "ping_interval": None}


async def _serve(control: Control) -> Connection:
    """Listens, reports the endpoint, and returns the first connection."""
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def hold(connection: Connection) -> None:
        accepted.set_result(connection)
        await connection.wait_closed()

    server = await serve(hold, "127.0.0.1", 0, **OPTIONS)
    control.report(endpoint="ws://{}:{}".format(*next(iter(server.sockets)).getsockname()))
    return await accepted


async def _join(control: Control, job: dict[str, Any]) -> Connection:
    return await _serve(control) if job["binds"] else await connect(job["endpoint"], **OPTIONS)


async def pull(control: Control, job: dict[str, Any]) -> None:
    """Times bursts from the first message to the last."""
    joining = asyncio.ensure_future(_join(control, job))  # the sender connects once it has the endpoint
    while True:
        count = (await control.receive_async())["burst"]
        control.report(armed=True)
        recv = (await joining).recv
        await recv()
        started = perf_counter()
        for _ in range(count - 1):
            await recv()
        control.report(seconds=perf_counter() - started)


async def push(control: Control, job: dict[str, Any]) -> None:
    """Sends bursts as fast as `send` takes them."""
    connection = await _join(control, job)
    send, message = connection.send, b"x" * job["size"]
    while True:
        for _ in range((await control.receive_async())["burst"]):
            await send(message)


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    uvloop.run({"pull": pull, "push": push}[role](control, job))
