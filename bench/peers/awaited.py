"""The loops of the asyncio peers: `await send`, `await recv`, one message a call, on uvloop.

Every peer runs exactly these; what differs is how its sockets are opened (`Sockets`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter, perf_counter_ns
from typing import Any, Protocol

import uvloop

from bench.link import Link
from bench.peers import hub, workers

PROBE = b"?"
FAN_BATCH = 100
FAN_CHUNK = 64
FAN_WARM = 0.2  # seconds of traffic before a subscriber starts to count


class Sockets(Protocol):
    """How a library opens its sockets."""

    def open(self, kind: str) -> Any:
        """A socket of the type with that name; a SUB subscribes to everything."""

    def bind(self, socket: Any, endpoint: str) -> str:
        """Binds and gives the endpoint to connect to."""

    def connect(self, socket: Any, endpoint: str) -> None:
        """Starts connecting."""


def meet(sockets: Sockets, sock: Any, link: Link, job: dict[str, Any], *, binds: bool) -> None:
    """Binds and sends the endpoint to the bench, or connects: as the job says, else as *binds* does."""
    if job.get("binds", binds):
        link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    else:
        sockets.connect(sock, job["endpoint"])


async def pull(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Times bursts from the first message to the last."""
    sock = sockets.open("PULL")
    meet(sockets, sock, link, job, binds=True)
    recv = sock.recv
    while True:
        count = (await link.next())["burst"]
        link.tell(armed=True)
        await recv()
        started = perf_counter()
        for _ in range(count - 1):
            await recv()
        link.tell(seconds=perf_counter() - started)


async def push(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Sends bursts as fast as `send` takes them."""
    sock = sockets.open("PUSH")
    meet(sockets, sock, link, job, binds=False)
    send, message = sock.send, b"x" * job["size"]
    while True:
        count = (await link.next())["burst"]
        for _ in range(count):
            await send(message)


async def rep(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Answers every request with itself."""
    sock = sockets.open("REP")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    send, recv = sock.send, sock.recv
    while True:
        await send(await recv())


async def req(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Times each round trip."""
    sock = sockets.open("REQ")
    sockets.connect(sock, job["endpoint"])
    send, recv, message = sock.send, sock.recv, b"x" * job["size"]
    while True:
        count = (await link.next())["burst"]
        trips = [0] * count
        last = perf_counter_ns()
        for index in range(count):
            await send(message)
            await recv()
            now = perf_counter_ns()
            trips[index] = now - last
            last = now
        link.tell(trips=trips)


async def pub(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Probes until every subscriber has answered the bench, then publishes until told to stop.

    The loop's turn ends after each 100 messages, for every peer: the rest of the loop's work gets done.
    """
    sock = sockets.open("PUB")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    go = asyncio.ensure_future(link.next())
    while not go.done():
        await send(PROBE)
        await asyncio.wait([go], timeout=0.005)
    stop = asyncio.ensure_future(link.next())
    published, started = 0, perf_counter()
    while not stop.done():
        for _ in range(FAN_BATCH):
            await send(message)
        published += FAN_BATCH
        await asyncio.sleep(0)
    link.tell(published=published / (perf_counter() - started))


async def sub(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Counts what arrives in a window of time, and goes on receiving after it."""
    sock = sockets.open("SUB")
    sockets.connect(sock, job["endpoint"])
    recv, size, window = sock.recv, job["size"], job["seconds"]
    await recv()
    link.tell(subscribed=True)
    while len(await recv()) != size:
        pass
    warm = perf_counter() + FAN_WARM
    while perf_counter() < warm:
        for _ in range(FAN_CHUNK):
            await recv()
    count, now = 0, perf_counter()
    started, end = now, now + window
    while now < end:
        for _ in range(FAN_CHUNK):
            await recv()
        count += FAN_CHUNK
        now = perf_counter()
    link.tell(count=count, seconds=now - started)
    while True:
        await recv()


async def inproc(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Times bursts between two sockets and two tasks of one loop."""
    pull_sock, push_sock = sockets.open("PULL"), sockets.open("PUSH")
    sockets.bind(pull_sock, "inproc://bench")
    sockets.connect(push_sock, "inproc://bench")
    send, recv, message = push_sock.send, pull_sock.recv, b"x" * job["size"]

    async def feed(count: int) -> None:
        for _ in range(count):
            await send(message)

    while True:
        count = (await link.next())["burst"]
        feeder = asyncio.create_task(feed(count))
        await recv()
        started = perf_counter()
        for _ in range(count - 1):
            await recv()
        link.tell(seconds=perf_counter() - started)
        await feeder


Role = Callable[[Sockets, Link, dict[str, Any]], Awaitable[None]]
ROLES: dict[str, Role] = {
    "pull": pull,
    "push": push,
    "rep": rep,
    "req": req,
    "pub": pub,
    "sub": sub,
    "inproc": inproc,
    "spout": workers.spout_async,
    "worker": workers.worker_async,
    "pull-crowd": hub.pull_crowd_async,
    "pub-crowd": hub.pub_crowd_async,
}


def run(sockets: Sockets, role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role on a fresh uvloop."""

    async def play() -> None:
        await ROLES[role](sockets, link, job)

    uvloop.run(play())
