"""Listeners made by hand, for what a socket of omq dials."""

import asyncio
import contextlib
import socket
import struct

FAST = {"reconnect_interval": 0.01}


def listening(family=socket.AF_INET, address=("127.0.0.1", 0), backlog=16):
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    sock.listen(backlog)
    sock.setblocking(False)
    return sock


def port_of(sock):
    return sock.getsockname()[1]


async def accept(sock):
    async with asyncio.timeout(5):
        connected, _ = await asyncio.get_running_loop().sock_accept(sock)
    return connected


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@contextlib.contextmanager
def mute(host="127.0.0.1"):
    """A listener with a full backlog: it answers no attempt to connect. Gives its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with listening(family, (host, 0), backlog=0) as server, contextlib.ExitStack() as fillers:
        for _ in range(4):
            filler = fillers.enter_context(socket.socket(family))
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield port_of(server)
