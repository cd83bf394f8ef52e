"""Bare sockets that wait as omq does: a round trip in Python cannot take less.

The three kinds of waiting are `epoll` (one send, one wait, one receive a side), `spin` (a receive that is tried
until it succeeds) and `protocol` (an `asyncio.Protocol` on uvloop, without Futures or tasks).
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import uvloop

from bench.link import Link
from bench.peers.bare import accept, dial
from bench.peers.blocking import time_trips

ROOM = 4096  # bytes that a call receives at most


def _receiver(connection: socket.socket, waits: str) -> Callable[[], bytes]:
    """Gives a call that waits for bytes, and takes them; b"" at the end."""
    connection.setblocking(False)
    recv = connection.recv
    if waits == "epoll":
        waiting = select.epoll()
        waiting.register(connection.fileno(), select.EPOLLIN)
        poll = waiting.poll

        def sleeping() -> bytes:
            poll()
            return recv(ROOM)

        return sleeping

    def spinning() -> bytes:
        while True:
            try:
                return recv(ROOM)
            except BlockingIOError:
                pass

    return spinning


def _rep(connection: socket.socket, waits: str) -> None:
    receive, send = _receiver(connection, waits), connection.send
    while message := receive():
        send(message)


class _Echo(asyncio.Protocol):
    """Answers with what came."""

    transport: Any  # uvloop's is no asyncio.Transport

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


class _Asker(_Echo):
    """Times each round trip of a burst."""

    def begin(self, count: int, size: int) -> asyncio.Future[list[int]]:
        self.message = b"x" * size
        self.trips = [0] * count
        self.index = 0
        self.whole: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.last = perf_counter_ns()
        self.transport.write(self.message)
        return self.whole

    def data_received(self, data: bytes) -> None:
        now = perf_counter_ns()
        self.trips[self.index] = now - self.last
        self.last = now
        self.index += 1
        if self.index == len(self.trips):
            self.whole.set_result(self.trips)
        else:
            self.transport.write(self.message)


def _on_loop(role: str, connection: socket.socket, link: Link, size: int) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def attach() -> _Echo:
            kind = _Asker if role == "req" else _Echo
            _, protocol = await asyncio.get_running_loop().create_connection(kind, sock=connection)
            return protocol

        async def burst(count: int) -> list[int]:
            return await protocol.begin(count, size)

        async def end() -> None:
            await protocol.ended

        connection.setblocking(False)
        protocol: Any = runner.run(attach())
        while role == "req":
            link.tell(trips=runner.run(burst(link.take()["burst"])))
        runner.run(end())


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays `rep`, which listens, or `req`."""
    waits = job["options"]["waits"]
    connection = accept(link, job["endpoint"]) if role == "rep" else dial(job["endpoint"])
    if waits == "protocol":
        _on_loop(role, connection, link, job["size"])
    elif role == "rep":
        _rep(connection, waits)
    else:
        receive = _receiver(connection, waits)
        time_trips(connection.send, receive, link, job)
