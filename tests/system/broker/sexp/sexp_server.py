"""Fixtures: a broker with its S-expression server in a thread, and clients that are plain sockets."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from omq._core import blocks
from omq.broker.core.broker import Broker
from omq.broker.core.permissions import Permission
from omq.broker.sexp.connection import Limits
from omq.broker.sexp.server import SexpServer

T = TypeVar("T")

ERROR, PING, MESSAGE, SUBSCRIBED, UNSUBSCRIBED, PUBLISHED, CREATED = range(7)


class ServerThread:
    """A broker with its S-expression server.

    Args:
        limits: Of the server.
        directory: Where the broker keeps its topics; everything is in memory by default.
        permissions: Who may do what.
        max_connections: The most clients that the server serves.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        directory: Any = None,
        permissions: tuple[Permission, ...] = (),
        max_connections: int | None = None,
    ):
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker")
        self.broker = Broker(directory, permissions=permissions)
        self.server = SexpServer(self.broker, limits=limits, max_connections=max_connections)
        self._numbers = itertools.count(1)
        self._faults: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._loop.set_exception_handler(lambda _, context: self._faults.append(context))
        self._thread.start()
        self.call(self.broker.start())
        self.endpoint = self.call(self.server.start("tcp://127.0.0.1:*"))
        host, _, port = self.endpoint.removeprefix("tcp://").rpartition(":")
        self.address = (host, int(port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call(self.server.close())
        self.call(self.broker.close())
        assert not self.server.connections
        assert not self.server.clients
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert not self._faults

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def on_loop(self, call: Callable[[], None]) -> None:
        """Makes a call in the broker's loop."""
        self._loop.call_soon_threadsafe(call)

    def create(self, name: str, delivery: str = "broadcast", persistence: str = "weak", **settings: Any) -> int:
        """Creates a topic, and returns its id."""
        return self.call(self.broker.create(name, delivery=delivery, persistence=persistence, settings=settings)).id

    def delete(self, name: str) -> None:
        """Deletes a topic."""
        self.call(self.broker.delete(name))

    def publish(self, topic: str, *bodies: bytes, records: bytes | None = None, count: int = 0) -> int:
        """Publishes as another server would, and returns the first id."""

        async def append() -> int:
            done = asyncio.get_running_loop().create_future()
            data = blocks.encode(bodies) if records is None else records
            self.broker.topic(topic).append(
                data,
                count or len(bodies),
                done=lambda first, error: done.set_exception(error) if error else done.set_result(first),
            )
            return await done

        return self.call(append())

    def peer(self, version: int = 1, client: bytes | None = None, **options: Any) -> Peer:
        """Yields a connected client."""
        peer = Peer(self.address, **options)
        peer.shake(version)
        peer.send(b"(Connect %d %b)\n" % (version, client or b"client-%d" % next(self._numbers)))
        return peer


class Peer:
    """A plain socket that can split the stream into frames."""

    def __init__(self, address: tuple[str, int], receive_buffer: int = 0) -> None:
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(10)
        self.sock.connect(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def shake(self, version: int) -> None:
        """Sends the handshake, and reads the answer."""
        version_bytes = struct.pack(">q", version)
        self.sock.sendall(version_bytes)
        assert self.exactly(8) == version_bytes

    def send(self, data: bytes) -> None:
        """Sends bytes."""
        self.sock.sendall(data)

    def exactly(self, size: int) -> bytes:
        """Reads a number of bytes; raises `EOFError` if the connection ends before."""
        data = bytearray()
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise EOFError(bytes(data))
            data += piece
        return bytes(data)

    def frame(self) -> tuple[int, bytes]:
        """Reads the next frame: its type and its payload."""
        (length,) = struct.unpack(">I", self.exactly(4))
        data = self.exactly(length)
        return data[0], data[1:]

    def error(self) -> str:
        """Reads the next frame, which must be an error, and returns its text."""
        kind, payload = self.frame()
        assert kind == ERROR, (kind, payload)
        return payload.decode()

    def message(self) -> tuple[int, int, bytes]:
        """Reads the next frame, which must be a message: its id, the topic's id, the body."""
        kind, payload = self.frame()
        assert kind == MESSAGE, (kind, payload)
        return (*struct.unpack_from(">QI", payload), payload[12:])

    def over(self) -> bool:
        """Returns whether the server has closed the connection without another frame."""
        return self.sock.recv(1) == b""

    def subscribe(self, topic: bytes, replay: bytes = b"From_current") -> bytes:
        """Subscribes, and returns the record of the answer."""
        self.send(b"(Subscribe %b %b)\n" % (topic, replay))
        kind, payload = self.frame()
        assert kind == SUBSCRIBED, (kind, payload)
        return payload
