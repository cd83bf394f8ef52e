"""The other side of a crowd: a PULL that hears from each of many connections, or a PUB that serves each.

The roles of blocking and asyncio peers differ in nothing but `await`.
"""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from time import process_time
from typing import Any

from bench.link import Link
from bench.peers.crowd import raise_limit

PAUSE = 0.2  # seconds between two messages


def resident() -> int:
    """KiB of memory that the process holds."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0])


def pull_crowd(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """Takes a message of each member at each order; tells when it has them all, then what it took."""
    raise_limit(job["most"])
    sock = sockets.open("PULL")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    while True:
        for _ in range(link.take()["expect"]):
            sock.recv()
        link.tell(heard=True)
        link.take()
        link.tell(resident=resident(), cpu=process_time())


def pub_crowd(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """Publishes from time to time until the bench has heard that all were served; tells what it took when asked."""
    raise_limit(job["most"])
    sock = sockets.open("PUB")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    while True:
        if "publish" in link.take():
            while not link.has_order(PAUSE):
                sock.send(b"served")
        else:
            link.tell(resident=resident(), cpu=process_time())


async def pull_crowd_async(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """As `pull_crowd`."""
    raise_limit(job["most"])
    sock = sockets.open("PULL")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    while True:
        for _ in range((await link.next())["expect"]):
            await sock.recv()
        link.tell(heard=True)
        await link.next()
        link.tell(resident=resident(), cpu=process_time())


async def pub_crowd_async(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """As `pub_crowd`."""
    raise_limit(job["most"])
    sock = sockets.open("PUB")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    order = await link.next()
    while True:
        following = asyncio.ensure_future(link.next())
        if "publish" in order:
            while not following.done():
                await sock.send(b"served")
                await asyncio.wait([following], timeout=PAUSE)
        else:
            link.tell(resident=resident(), cpu=process_time())
        order = await following
