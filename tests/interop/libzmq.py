"""libzmq's side of a test, through pyzmq's asyncio sockets in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import zmq
import zmq.asyncio

Result = TypeVar("Result")


class Libzmq:
    """A context of its own, and every socket that the test opened in it."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._sockets: list[zmq.asyncio.Socket] = []

    def open(self, kind: str, **options: Any) -> zmq.asyncio.Socket:
        """Opens a socket.

        Args:
            kind: The name of the type.
            options: `bind` and `connect` take an endpoint; `subscribe` one prefix; the others are named
                as pyzmq names them, in small letters.
        """
        socket = self._context.socket(getattr(zmq, kind))
        self._sockets.append(socket)
        socket.linger = 0
        bind, connect = options.pop("bind", None), options.pop("connect", None)
        for name, value in options.items():
            socket.setsockopt(getattr(zmq, name.upper()), value)
        if bind:
            socket.bind(bind)
        if connect:
            socket.connect(connect)
        return socket

    def close(self) -> None:
        """Closes whatever the test has opened."""
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()


def endpoint_of(socket: zmq.asyncio.Socket) -> str:
    """Returns the endpoint of a bound socket, with its port."""
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


async def attended(socket: zmq.asyncio.Socket, awaited: Awaitable[Result]) -> Result:
    """Awaits something of omq's while libzmq's socket is looked after.

    libzmq takes in new connections, and so sends a SUB's subscriptions to them, only while its user calls it. What is
    awaited is not that socket's own: looking takes away the word that pyzmq's call waits for.
    """
    waiting = asyncio.ensure_future(awaited)
    while not waiting.done():
        socket.getsockopt(zmq.EVENTS)
        await asyncio.wait([waiting], timeout=0.002)
    return waiting.result()
