"""A peer made by hand: bytes on a socket, for what a good peer would never do."""

from __future__ import annotations

import asyncio
import socket
from typing import Self

from omq._core.wire.framing import FrameDecoder, encode_frame

GREETING = bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 3, 1]) + b"NULL".ljust(20, b"\0") + bytes(32)


def ready(socket_type: bytes, **properties: bytes) -> bytes:
    """A READY command with this socket type (RFC 23)."""
    body = b"\5READY"
    for name, value in {"Socket-Type": socket_type, **properties}.items():
        body += bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value
    return encode_frame(body, command=True)


def frames(*parts: bytes) -> bytes:
    """One message on the wire."""
    return b"".join(encode_frame(part, more=number < len(parts) - 1) for number, part in enumerate(parts))


def command(name: bytes, data: bytes = b"") -> bytes:
    """One command on the wire."""
    return encode_frame(bytes([len(name)]) + name + data, command=True)


class RawPeer:
    """One connected socket.

    Args:
        sock: Connected; owned from here on.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._decoder = FrameDecoder()

    @classmethod
    async def dial(cls, endpoint: str) -> Self:
        """Connects to a tcp or ipc endpoint."""
        scheme, _, address = endpoint.partition("://")
        if scheme == "ipc":
            sock = socket.socket(socket.AF_UNIX)
            target: object = address
        else:
            host, _, port = address.rpartition(":")
            sock = socket.socket()
            target = (host, int(port))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, target)
        return cls(sock)

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def read(self, size: int = 65536) -> bytes:
        async with asyncio.timeout(10):
            return await asyncio.get_running_loop().sock_recv(self.sock, size)

    async def read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await self.read(size - len(data))
            if not more:
                raise EOFError(data)
            data += more
        return data

    async def read_all(self, timeout: float = 10) -> bytes:
        """Everything until the other side ends the connection, however it does."""
        data = b""
        async with asyncio.timeout(timeout):
            while True:
                try:
                    more = await self.read()
                except ConnectionResetError:
                    return data
                if not more:
                    return data
                data += more

    async def next_frame(self) -> tuple[int, bytes]:
        """The next frame: flags and body."""
        while True:
            found = self._decoder.next_frame()
            if found is not None:
                return found
            data = await self.read()
            if not data:
                raise EOFError
            self._decoder.feed(data)

    async def greet(self, greeting: bytes = GREETING) -> bytes:
        """Exchanges greetings; gives the other side's."""
        await self.send(greeting)
        return await self.read_exactly(64)

    async def ready(self, socket_type: bytes, **properties: bytes) -> None:
        await self.send(ready(socket_type, **properties))

    async def handshake(self, socket_type: bytes, minor: int = 1, **properties: bytes) -> None:
        """A whole NULL handshake as ZMTP 3.*minor*."""
        await self.greet(GREETING[:11] + bytes([minor]) + GREETING[12:])
        await self.ready(socket_type, **properties)
        flags, body = await self.next_frame()
        assert flags & 4
        assert body.startswith(b"\5READY")

    async def subscribe(self, prefix: bytes) -> None:
        await self.send(command(b"SUBSCRIBE", prefix))

    def close(self) -> None:
        self.sock.close()
