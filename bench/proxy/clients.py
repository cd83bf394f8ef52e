"""What stands around a proxy: senders, receivers and workers on bare sockets, which cost next to nothing.

All messages have one size, so what comes is counted in bytes. How far a receiver is stands in memory that all processes
share: a sender is never more than a window ahead, so nobody has to drop anything.
"""

from __future__ import annotations

import mmap
import selectors
import socket
import struct
import time
from typing import Final

from bench.pzq.bare import Bare, frame

WINDOW: Final = 20_000  # messages
CHUNK: Final = 500  # messages that leave in one call
_PAUSE: Final = 0.0001  # seconds


class Progress:
    """Whether a receiver is there, and how many messages it has."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 9)

    @property
    def count(self) -> int:
        """Messages."""
        return int(struct.unpack("=Q", self._memory[:8])[0])

    @count.setter
    def count(self, value: int) -> None:
        self._memory[:8] = struct.pack("=Q", value)

    @property
    def there(self) -> bool:
        """Whether it has shaken hands."""
        return self._memory[8] == 1

    def arrive(self) -> None:
        """It has shaken hands."""
        self._memory[8] = 1


def send(endpoint: str, kind: bytes, message: bytes, *progress: Progress) -> None:
    """Sends a message for ever, no further ahead of the slowest receiver than a window."""
    bare = Bare(endpoint, kind)
    if kind == b"PUB":
        bare.take(2)  # a subscription has come
    chunk = frame(message, False) * CHUNK
    sent = 0
    while True:
        while sent - min(one.count for one in progress) > WINDOW:
            time.sleep(_PAUSE)
        bare.socket.sendall(chunk)
        sent += CHUNK


def receive(endpoint: str, kind: bytes, size: int, progress: Progress, topic: bytes = b"") -> None:
    """Receives for ever; a subscriber what begins with *topic*."""
    bare = Bare(endpoint, kind)
    if kind == b"SUB":
        bare.socket.sendall(bytes((4, 10 + len(topic))) + b"\x09SUBSCRIBE" + topic)
    progress.arrive()
    whole = len(frame(b"x" * size, False))
    buffer = bytearray(1 << 18)
    got = 0
    while count := bare.socket.recv_into(buffer):
        got += count
        progress.count = got // whole


def ask(endpoint: str, size: int, progress: Progress) -> None:
    """Sends requests, with at most a window of them unanswered, for ever."""
    bare = Bare(endpoint, b"DEALER")
    one = frame(b"x" * size, False)
    chunk = memoryview(one * CHUNK)
    buffer = bytearray(1 << 18)
    bare.socket.setblocking(False)
    out, sent, got = chunk[:0], 0, 0
    while True:
        if not out and sent - got // len(one) <= WINDOW:
            out, sent = chunk, sent + CHUNK
        try:
            if out:
                out = out[bare.socket.send(out) :]
        except BlockingIOError:
            time.sleep(_PAUSE)
        try:
            got += bare.socket.recv_into(buffer)
            progress.count = got // len(one)
        except BlockingIOError:
            if not out:
                time.sleep(_PAUSE)


def answer(endpoint: str, progress: Progress) -> None:
    """Sends back what comes, for ever: a reply has the envelope of its request."""
    bare = Bare(endpoint, b"DEALER")
    progress.arrive()
    buffer = memoryview(bytearray(1 << 18))
    while count := bare.socket.recv_into(buffer):
        bare.socket.sendall(buffer[:count])


def copy_through(kinds: tuple[str, str], told: socket.socket) -> None:
    """The floor: a process that only copies bytes from one connection to the other, after the handshakes."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in kinds]
    told.sendall(" ".join(f"tcp://127.0.0.1:{one.getsockname()[1]}" for one in listeners).encode() + b"\n")
    # The receiver comes first.
    back, front = (_greet(one.accept()[0], kind) for one, kind in zip(listeners[::-1], kinds[::-1], strict=True))
    if kinds[0] == "XSUB":
        front.sendall(back.recv(64, socket.MSG_PEEK))
        back.recv(64)
    front.setblocking(False)
    back.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(front, selectors.EVENT_READ, back)
        selector.register(back, selectors.EVENT_READ, front)
        buffer = memoryview(bytearray(1 << 17))
        while True:
            for key, _ in selector.select():
                source = key.fileobj
                assert isinstance(source, socket.socket)
                count = source.recv_into(buffer)
                if not count:
                    return
                rest = buffer[:count]
                while rest:
                    try:
                        rest = rest[key.data.send(rest) :]
                    except BlockingIOError:
                        time.sleep(_PAUSE)


def _greet(connection: socket.socket, kind: str) -> socket.socket:
    """The listening side of the handshake."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48))
    connection.recv(64, socket.MSG_WAITALL)
    _, size = connection.recv(2, socket.MSG_WAITALL)
    connection.recv(size, socket.MSG_WAITALL)
    ready = b"\x05READY\x0bSocket-Type" + struct.pack("!I", len(kind)) + kind.encode()
    connection.sendall(bytes((4, len(ready))) + ready)
    return connection
