"""A PUSH that feeds several PULL processes, of which one may be stuck. Each role for blocking and for asyncio peers."""

from __future__ import annotations

import asyncio
from time import perf_counter, sleep
from typing import Any

from bench.link import Link

BATCH = 100  # messages after which a worker rests
REST = 0.001  # seconds: as one that waits for a disk; what a worker takes is then its own measure, not the scheduler's
STUCK = "stuck"  # the manner of a worker that takes one message and never calls `recv` again


def spout(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """Sends without end."""
    sock = sockets.open("PUSH")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    while True:
        send(message)


def worker(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """Tells that it has got a message; then receives on and at each order counts for a while, or is stuck."""
    sock = sockets.open("PULL")
    sockets.connect(sock, job["endpoint"])
    recv = sock.recv
    recv()
    link.tell(up=True)
    if job["manner"] == STUCK:
        link.take()
    while True:
        while not link.has_order(0):
            for _ in range(BATCH):
                recv()
            sleep(REST)
        link.take()
        count, now = 0, perf_counter()
        started, end = now, now + job["seconds"]
        while now < end:
            for _ in range(BATCH):
                recv()
            sleep(REST)
            count += BATCH
            now = perf_counter()
        link.tell(count=count, seconds=now - started)


async def spout_async(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """As `spout`."""
    sock = sockets.open("PUSH")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    while True:
        await send(message)


async def worker_async(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """As `worker`."""
    sock = sockets.open("PULL")
    sockets.connect(sock, job["endpoint"])
    recv = sock.recv
    await recv()
    link.tell(up=True)
    if job["manner"] == STUCK:
        await link.next()
    while True:
        order = asyncio.ensure_future(link.next())
        while not order.done():
            for _ in range(BATCH):
                await recv()
            await asyncio.sleep(REST)
        count, now = 0, perf_counter()
        started, end = now, now + job["seconds"]
        while now < end:
            for _ in range(BATCH):
                await recv()
            await asyncio.sleep(REST)
            count += BATCH
            now = perf_counter()
        link.tell(count=count, seconds=now - started)
