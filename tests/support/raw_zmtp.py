"""Peers made by hand over plain sockets: what they send is exactly what the test wrote.

The encoders here are the tests' own, from RFC 23 and RFC 37, so that a mistake in omq's cannot hide.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MORE, LONG, COMMAND = 1, 2, 4
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
TIMEOUT_S = 10.0  # seconds for any one wait


def greeting(version: tuple[int, int] = (3, 1), mechanism: bytes = b"NULL", as_server: int = 0) -> bytes:
    """The 64 bytes of a greeting."""
    return SIGNATURE + bytes(version) + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31)


def frame(body: bytes, flags: int = 0) -> bytes:
    """A frame, short or long as its body wants it."""
    if len(body) > 255:
        return header(len(body), flags) + body
    return bytes((flags, len(body))) + body


def header(size: int, flags: int = 0) -> bytes:
    """The head of a long frame that announces `size` bytes."""
    return bytes((flags | LONG,)) + struct.pack(">Q", size)


def command(name: bytes, data: bytes = b"") -> bytes:
    """A command frame."""
    return frame(bytes((len(name),)) + name + data, COMMAND)


def properties(*pairs: tuple[bytes, bytes]) -> bytes:
    """Metadata as READY carries it."""
    return b"".join(bytes((len(name),)) + name + struct.pack(">I", len(value)) + value for name, value in pairs)


def ready(kind: str, *more: tuple[bytes, bytes]) -> bytes:
    """READY of a socket type."""
    return command(b"READY", properties((b"Socket-Type", kind.encode()), *more))


class RawPeer:
    """One end of a connection to omq."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        if writer.get_extra_info("socket").family == socket.AF_INET:
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def send(self, data: bytes) -> None:
        """Writes; a peer that has hung up is not an error here."""
        try:
            self._writer.write(data)
            async with asyncio.timeout(TIMEOUT_S):
                await self._writer.drain()
        except ConnectionError:
            pass

    async def read(self, size: int) -> bytes:
        """Reads exactly that many bytes."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self._reader.readexactly(size)

    async def frame(self) -> tuple[int, bytes]:
        """Reads one frame: its flags, without LONG, and its body."""
        flags, size = await self.read(2)
        if flags & LONG:
            (size,) = struct.unpack(">Q", bytes((size,)) + await self.read(7))
        return flags & ~LONG, await self.read(size)

    async def greet(self, version: tuple[int, int] = (3, 1)) -> bytes:
        """Exchanges greetings and gives omq's."""
        await self.send(greeting(version))
        return await self.read(64)

    async def shake(self, kind: str, *more: tuple[bytes, bytes], version: tuple[int, int] = (3, 1)) -> bytes:
        """Does the whole handshake as a socket of that type; gives the body of omq's READY."""
        await self.greet(version)
        await self.send(ready(kind, *more))
        flags, body = await self.frame()
        assert flags == COMMAND
        assert body[:6] == b"\x05READY", body
        return body[6:]

    async def ended(self) -> bytes:
        """Waits until omq has hung up; gives what it still sent."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self._reader.read(-1)
            except ConnectionError:
                return b""

    async def is_silent(self, seconds: float = 0.1) -> bool:
        """Returns whether omq sends nothing, and does not hang up, for *seconds*."""
        try:
            async with asyncio.timeout(seconds):
                await self._reader.readexactly(1)
        except TimeoutError:
            return True
        except asyncio.IncompleteReadError:
            return False
        return False

    def reset(self) -> None:
        """Ends the connection with RST."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    async def close(self) -> None:
        """Ends the connection with FIN."""
        self._writer.close()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._writer.wait_closed()
        except ConnectionError:
            pass


@asynccontextmanager
async def dialled(endpoint: str) -> AsyncIterator[RawPeer]:
    """A peer that has connected to omq and sent nothing yet."""
    scheme, address = endpoint.split("://")
    if scheme == "ipc":
        peer = RawPeer(*await asyncio.open_unix_connection(address))
    else:
        host, port = address.rsplit(":", 1)
        peer = RawPeer(*await asyncio.open_connection(host, int(port)))
    try:
        yield peer
    finally:
        await peer.close()


class Listener:
    """A listening socket of the test's own, for omq to connect to."""

    def __init__(self) -> None:
        self._arrivals: asyncio.Queue[RawPeer] = asyncio.Queue()
        self._peers: list[RawPeer] = []
        self.endpoint = ""

    async def accept(self) -> RawPeer:
        """Waits for omq's next connection."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self._arrivals.get()

    async def arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes a connection."""
        peer = RawPeer(reader, writer)
        self._peers.append(peer)
        self._arrivals.put_nowait(peer)

    async def close(self) -> None:
        """Ends every connection."""
        for peer in self._peers:
            await peer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    """A tcp listener on a port that the system picked."""
    listener = Listener()
    server = await asyncio.start_server(listener.arrived, "127.0.0.1", 0)
    listener.endpoint = "tcp://{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield listener
    finally:
        server.close()
        await listener.close()
        await server.wait_closed()
