"""A proxy that marks the copies of messages with their direction."""

from __future__ import annotations

from typing import Any

from omq.zmq.constants import POLLIN, ROUTER
from omq.zmq.poll import Poller
from omq.zmq.socket import Socket


def monitored_queue(
    in_socket: Socket[Any],
    out_socket: Socket[Any],
    mon_socket: Socket[Any],
    in_prefix: bytes = b"in",
    out_prefix: bytes = b"out",
) -> int:
    """Forwards messages between two sockets until their context is terminated.

    Between two ROUTERs, a message begins with the peer that gets it; the first two parts change places.

    Args:
        in_socket: One socket.
        out_socket: The other one.
        mon_socket: Sends a copy of each message, after a part that shows where it came from.
        in_prefix: That part for messages of the first socket.
        out_prefix: That part for messages of the other one.

    Raises:
        ContextTerminated: The context is terminated.
        ZMQError: A socket is closed.
    """
    ways = {in_socket: (out_socket, bytes(in_prefix)), out_socket: (in_socket, bytes(out_prefix))}
    swaps = in_socket.type == out_socket.type == ROUTER
    poller = Poller()
    for socket in ways:
        poller.register(socket, POLLIN)
    while True:
        for socket, _ in poller.poll():
            target, prefix = ways[socket]
            parts = socket.recv_multipart()
            if swaps:
                parts[:2] = parts[1::-1]
            target.send_multipart(parts)
            mon_socket.send_multipart([prefix, *parts])


__all__ = ["monitored_queue"]
