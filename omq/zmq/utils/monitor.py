"""The messages of a monitor's socket."""

from __future__ import annotations

import struct
from collections.abc import Awaitable
from typing import Any

import omq.zmq.asyncio  # noqa: F401 - programs use it without importing it
from omq.zmq.constants import Event


def parse_monitor_message(msg: list[bytes]) -> dict[str, Any]:
    """Returns what a message of a monitor's socket contains: `event`, `value` and `endpoint`.

    Raises:
        RuntimeError: It is not such a message.
    """
    if len(msg) != 2 or len(msg[0]) != 6:
        raise RuntimeError(f"Invalid event message format: {msg}")
    event, value = struct.unpack("=hi", msg[0])
    return {"event": Event(event), "value": Event(value), "endpoint": msg[1]}


async def _parse_when_received(message: Awaitable[list[bytes]]) -> dict[str, Any]:
    return parse_monitor_message(await message)


def recv_monitor_message(socket: Any, flags: int = 0) -> Any:
    """Takes the next event of a monitor's socket.

    Args:
        socket: The PAIR of `get_monitor_socket`.
        flags: See `Socket.recv`.

    Returns:
        See `parse_monitor_message`; of an asynchronous socket, an awaitable of that.
    """
    message = socket.recv_multipart(flags)
    if isinstance(message, Awaitable):
        return _parse_when_received(message)
    return parse_monitor_message(message)


__all__ = ["parse_monitor_message", "recv_monitor_message"]
