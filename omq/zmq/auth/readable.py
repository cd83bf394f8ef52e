"""Waits for sockets in a loop of asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

from omq.zmq.constants import PollEvent, SocketOption
from omq.zmq.socket import Socket


async def wait_readable(*sockets: Socket[Any]) -> list[Socket[Any]]:
    """Waits until one of the sockets has a message; returns those that have one."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    try:
        for socket in sockets:
            loop.add_reader(socket.get(SocketOption.FD), woken.set)
        while True:
            woken.clear()
            ready = [socket for socket in sockets if socket.get(SocketOption.EVENTS) & PollEvent.POLLIN]
            if ready:
                return ready
            await woken.wait()
    finally:
        for socket in sockets:
            if not socket.closed:
                loop.remove_reader(socket.get(SocketOption.FD))
