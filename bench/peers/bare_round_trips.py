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

from bench.control import Control
from bench.peers.bare import accept, dial
from bench.peers.blocking_roles import time_round_trips

READ_BYTES = 4096  # of one call at most


def _receiver(connection: socket.socket, waits: str) -> Callable[[], bytes]:
    """Returns a call that waits for bytes and receives them; b"" at the end."""
    connection.setblocking(False)
    recv = connection.recv
    if waits == "epoll":
        waiting = select.epoll()
        waiting.register(connection.fileno(), select.EPOLLIN)
        poll = waiting.poll

        def sleeping() -> bytes:
            poll()
            return recv(READ_BYTES)

        return sleeping

    def spinning() -> bytes:
        while True:
            try:
                return recv(READ_BYTES)
            except BlockingIOError:
                pass

    return spinning


def _rep(connection: socket.socket, waits: str) -> None:
    receive, send = _receiver(connection, waits), connection.send
    while message := receive():
        send(message)


class _Echo(asyncio.Protocol):
    """Answers with the bytes that came."""

    transport: Any  # uvloop's is not an asyncio.Transport

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


class _RoundTripTimer(_Echo):
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


def _on_loop(role: str, connection: socket.socket, control: Control, size: int) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def attach() -> _Echo:
            kind = _RoundTripTimer if role == "req" else _Echo
            _, protocol = await asyncio.get_running_loop().create_connection(kind, sock=connection)
            return protocol

        async def burst(count: int) -> list[int]:
            return await protocol.begin(count, size)

        async def end() -> None:
            await protocol.ended

        connection.setblocking(False)
        protocol: Any = runner.run(attach())
        while role == "req":
            control.report(trips=runner.run(burst(control.receive()["burst"])))
        runner.run(end())


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs `rep`, which listens, or `req`."""
    waits = job["options"]["waits"]
    connection = accept(control, job["endpoint"]) if role == "rep" else dial(job["endpoint"])
    if waits == "protocol":
        _on_loop(role, connection, control, job["size"])
    elif role == "rep":
        _rep(connection, waits)
    else:
        receive = _receiver(connection, waits)
        time_round_trips(connection.send, receive, control, job)
