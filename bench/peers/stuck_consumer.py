"""A PUSH that feeds several PULL processes, of which one may be stuck. Each role for blocking and for asyncio peers."""

from __future__ import annotations

import asyncio
from time import perf_counter, sleep
from typing import Any

from bench.control import Control

BATCH_MESSAGES = 100  # messages after which a consumer rests
#: A wait like that for a disk: the rate of a consumer is then its own, and not the scheduler's.
WORK_DELAY_S = 0.001
STUCK = "stuck"  # the stall of a consumer that takes one message and never calls `recv` again


def sender(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Sends without end."""
    sock = sockets.open("PUSH")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    while True:
        send(message)


def consumer(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Reports its first message; then receives on and counts for a while at each order, or is stuck."""
    sock = sockets.open("PULL")
    sockets.connect(sock, job["endpoint"])
    recv = sock.recv
    recv()
    control.report(up=True)
    if job["stall"] == STUCK:
        control.receive()
    while True:
        while not control.has_order(0):
            for _ in range(BATCH_MESSAGES):
                recv()
            sleep(WORK_DELAY_S)
        control.receive()
        count, now = 0, perf_counter()
        started, end = now, now + job["seconds"]
        while now < end:
            for _ in range(BATCH_MESSAGES):
                recv()
            sleep(WORK_DELAY_S)
            count += BATCH_MESSAGES
            now = perf_counter()
        control.report(count=count, seconds=now - started)


async def sender_async(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Does the same as `sender`, in a loop."""
    sock = sockets.open("PUSH")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    while True:
        await send(message)


async def consumer_async(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Does the same as `consumer`, in a loop."""
    sock = sockets.open("PULL")
    sockets.connect(sock, job["endpoint"])
    recv = sock.recv
    await recv()
    control.report(up=True)
    if job["stall"] == STUCK:
        await control.receive_async()
    while True:
        order = asyncio.ensure_future(control.receive_async())
        while not order.done():
            for _ in range(BATCH_MESSAGES):
                await recv()
            await asyncio.sleep(WORK_DELAY_S)
        count, now = 0, perf_counter()
        started, end = now, now + job["seconds"]
        while now < end:
            for _ in range(BATCH_MESSAGES):
                await recv()
            await asyncio.sleep(WORK_DELAY_S)
            count += BATCH_MESSAGES
            now = perf_counter()
        control.report(count=count, seconds=now - started)
