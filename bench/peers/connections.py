"""The socket with many connections: a PULL that receives from each, or a PUB that sends to each.

The roles of blocking and asyncio peers differ in nothing but `await`.
"""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from time import process_time
from typing import Any

from bench.control import Control
from bench.peers.bare_connections import raise_limit

PUBLISH_INTERVAL_S = 0.2  # between two messages


def resident() -> int:
    """Returns the KiB of memory that the process holds."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0])


def pull(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Receives a message from each client at each order, and reports it; then reports memory and CPU."""
    raise_limit(job["max_connections"])
    sock = sockets.open("PULL")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    while True:
        for _ in range(control.receive()["expect"]):
            sock.recv()
        control.report(received=True)
        control.receive()
        control.report(resident=resident(), cpu=process_time())


def pub(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Publishes from time to time until the next order; reports memory and CPU when asked."""
    raise_limit(job["max_connections"])
    sock = sockets.open("PUB")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    while True:
        if "publish" in control.receive():
            while not control.has_order(PUBLISH_INTERVAL_S):
                sock.send(b"served")
        else:
            control.report(resident=resident(), cpu=process_time())


async def pull_async(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Does the same as `pull`, in a loop."""
    raise_limit(job["max_connections"])
    sock = sockets.open("PULL")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    while True:
        for _ in range((await control.receive_async())["expect"]):
            await sock.recv()
        control.report(received=True)
        await control.receive_async()
        control.report(resident=resident(), cpu=process_time())


async def pub_async(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Does the same as `pub`, in a loop."""
    raise_limit(job["max_connections"])
    sock = sockets.open("PUB")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    order = await control.receive_async()
    while True:
        following = asyncio.ensure_future(control.receive_async())
        if "publish" in order:
            while not following.done():
                await sock.send(b"served")
                await asyncio.wait([following], timeout=PUBLISH_INTERVAL_S)
        else:
            control.report(resident=resident(), cpu=process_time())
        order = await following
