"""The loops of the asyncio peers: `await send`, `await recv`, one message a call, on uvloop.

Every peer runs exactly these; only the way to open sockets differs (`SocketFactory`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter, perf_counter_ns
from typing import Any, Protocol

import uvloop

from bench.control import Control
from bench.peers import connections, stuck_consumer

PROBE = b"?"
FAN_BATCH_MESSAGES = 100
FAN_CHUNK_MESSAGES = 64
FAN_WARMUP_S = 0.2  # of traffic before a subscriber starts to count


class SocketFactory(Protocol):
    """Opens the sockets of a library."""

    def open(self, kind: str) -> Any:
        """Returns a socket of the type with that name; a SUB subscribes to everything."""

    def bind(self, socket: Any, endpoint: str) -> str:
        """Binds, and returns the endpoint to connect to."""

    def connect(self, socket: Any, endpoint: str) -> None:
        """Starts connecting."""


def bind_or_connect(sockets: SocketFactory, sock: Any, control: Control, job: dict[str, Any], *, binds: bool) -> None:
    """Binds and reports the endpoint, or connects; *binds* is the default of the job's option `binds`."""
    if job.get("binds", binds):
        control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    else:
        sockets.connect(sock, job["endpoint"])


async def pull(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Times bursts from the first message to the last."""
    sock = sockets.open("PULL")
    bind_or_connect(sockets, sock, control, job, binds=True)
    recv = sock.recv
    while True:
        count = (await control.receive_async())["burst"]
        control.report(armed=True)
        await recv()
        started = perf_counter()
        for _ in range(count - 1):
            await recv()
        control.report(seconds=perf_counter() - started)


async def push(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts as fast as `send` takes them."""
    sock = sockets.open("PUSH")
    bind_or_connect(sockets, sock, control, job, binds=False)
    send, message = sock.send, b"x" * job["size"]
    while True:
        count = (await control.receive_async())["burst"]
        for _ in range(count):
            await send(message)


async def rep(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Answers every request with itself."""
    sock = sockets.open("REP")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    send, recv = sock.send, sock.recv
    while True:
        await send(await recv())


async def req(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Times each round trip."""
    sock = sockets.open("REQ")
    sockets.connect(sock, job["endpoint"])
    send, recv, message = sock.send, sock.recv, b"x" * job["size"]
    while True:
        count = (await control.receive_async())["burst"]
        trips = [0] * count
        last = perf_counter_ns()
        for index in range(count):
            await send(message)
            await recv()
            now = perf_counter_ns()
            trips[index] = now - last
            last = now
        control.report(trips=trips)


async def pub(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Probes until every subscriber has answered the bench, then publishes until the next order.

    The loop's turn ends after each 100 messages, for every peer: the rest of the loop's work gets done.
    """
    sock = sockets.open("PUB")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    go = asyncio.ensure_future(control.receive_async())
    while not go.done():
        await send(PROBE)
        await asyncio.wait([go], timeout=0.005)
    stop = asyncio.ensure_future(control.receive_async())
    published, started = 0, perf_counter()
    while not stop.done():
        for _ in range(FAN_BATCH_MESSAGES):
            await send(message)
        published += FAN_BATCH_MESSAGES
        await asyncio.sleep(0)
    control.report(published=published / (perf_counter() - started))


async def sub(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Counts the messages that arrive in a window of time, and goes on receiving after it."""
    sock = sockets.open("SUB")
    sockets.connect(sock, job["endpoint"])
    recv, size, window = sock.recv, job["size"], job["seconds"]
    await recv()
    control.report(subscribed=True)
    while len(await recv()) != size:
        pass
    warm = perf_counter() + FAN_WARMUP_S
    while perf_counter() < warm:
        for _ in range(FAN_CHUNK_MESSAGES):
            await recv()
    count, now = 0, perf_counter()
    started, end = now, now + window
    while now < end:
        for _ in range(FAN_CHUNK_MESSAGES):
            await recv()
        count += FAN_CHUNK_MESSAGES
        now = perf_counter()
    control.report(count=count, seconds=now - started)
    while True:
        await recv()


async def inproc(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Times bursts between two sockets and two tasks of one loop."""
    pull_sock, push_sock = sockets.open("PULL"), sockets.open("PUSH")
    sockets.bind(pull_sock, "inproc://bench")
    sockets.connect(push_sock, "inproc://bench")
    send, recv, message = push_sock.send, pull_sock.recv, b"x" * job["size"]

    async def feed(count: int) -> None:
        for _ in range(count):
            await send(message)

    while True:
        count = (await control.receive_async())["burst"]
        feeder = asyncio.create_task(feed(count))
        await recv()
        started = perf_counter()
        for _ in range(count - 1):
            await recv()
        control.report(seconds=perf_counter() - started)
        await feeder


Role = Callable[[SocketFactory, Control, dict[str, Any]], Awaitable[None]]
ROLES: dict[str, Role] = {
    "pull": pull,
    "push": push,
    "rep": rep,
    "req": req,
    "pub": pub,
    "sub": sub,
    "inproc": inproc,
    "sender": stuck_consumer.sender_async,
    "consumer": stuck_consumer.consumer_async,
    "pull-connections": connections.pull_async,
    "pub-connections": connections.pub_async,
}


def run(sockets: SocketFactory, role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role on a fresh uvloop."""

    async def main() -> None:
        await ROLES[role](sockets, control, job)

    uvloop.run(main())
