"""The clients of a proxy: senders, receivers and workers on bare sockets, whose cost is negligible.

All messages have one size, so they are counted in bytes. The progress of a receiver is in memory that all processes
share: a sender is never more than a window ahead, so no message is dropped.
"""

from __future__ import annotations

import mmap
import selectors
import socket
import struct
import time
from typing import Final

from bench.pzq.clients import GREETING, BareConnection, frame, ready_command

WINDOW_MESSAGES: Final = 20_000
CHUNK_MESSAGES: Final = 500  # of one call
_POLL_INTERVAL_S: Final = 0.0001


class ReceiveCounter:
    """The state of a receiver, shared by processes: its handshake, and the number of its messages."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 9)

    @property
    def count(self) -> int:
        """The number of messages."""
        return int(struct.unpack("=Q", self._memory[:8])[0])

    @count.setter
    def count(self, value: int) -> None:
        self._memory[:8] = struct.pack("=Q", value)

    @property
    def ready(self) -> bool:
        """True once it has shaken hands."""
        return self._memory[8] == 1

    def set_ready(self) -> None:
        """Sets `ready`."""
        self._memory[8] = 1


def send(endpoint: str, kind: bytes, message: bytes, *progress: ReceiveCounter) -> None:
    """Sends a message for ever, at most a window ahead of the slowest receiver."""
    bare = BareConnection(endpoint, kind)
    if kind == b"PUB":
        bare.take(2)  # a subscription has come
    chunk = frame(message, False) * CHUNK_MESSAGES
    sent = 0
    while True:
        while sent - min(one.count for one in progress) > WINDOW_MESSAGES:
            time.sleep(_POLL_INTERVAL_S)
        bare.socket.sendall(chunk)
        sent += CHUNK_MESSAGES


def receive(endpoint: str, kind: bytes, size: int, progress: ReceiveCounter, topic: bytes = b"") -> None:
    """Receives for ever; a SUB subscribes to *topic*."""
    bare = BareConnection(endpoint, kind)
    if kind == b"SUB":
        bare.socket.sendall(bytes((4, 10 + len(topic))) + b"\x09SUBSCRIBE" + topic)
    progress.set_ready()
    whole = len(frame(b"x" * size, False))
    buffer = bytearray(1 << 18)
    got = 0
    while count := bare.socket.recv_into(buffer):
        got += count
        progress.count = got // whole


def ask(endpoint: str, size: int, progress: ReceiveCounter) -> None:
    """Sends requests, with at most a window of them unanswered, for ever."""
    bare = BareConnection(endpoint, b"DEALER")
    one = frame(b"x" * size, False)
    chunk = memoryview(one * CHUNK_MESSAGES)
    buffer = bytearray(1 << 18)
    bare.socket.setblocking(False)
    out, sent, got = chunk[:0], 0, 0
    while True:
        if not out and sent - got // len(one) <= WINDOW_MESSAGES:
            out, sent = chunk, sent + CHUNK_MESSAGES
        try:
            if out:
                out = out[bare.socket.send(out) :]
        except BlockingIOError:
            time.sleep(_POLL_INTERVAL_S)
        try:
            got += bare.socket.recv_into(buffer)
            progress.count = got // len(one)
        except BlockingIOError:
            if not out:
                time.sleep(_POLL_INTERVAL_S)


def answer(endpoint: str, progress: ReceiveCounter) -> None:
    """Sends all bytes back, for ever: a reply has the envelope of its request."""
    bare = BareConnection(endpoint, b"DEALER")
    progress.set_ready()
    buffer = memoryview(bytearray(1 << 18))
    while count := bare.socket.recv_into(buffer):
        bare.socket.sendall(buffer[:count])


def copy_through(kinds: tuple[str, str], endpoints_pipe: socket.socket) -> None:
    """Copies bytes from one connection to the other after the handshakes: the floor."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in kinds]
    endpoints_pipe.sendall(" ".join(f"tcp://127.0.0.1:{one.getsockname()[1]}" for one in listeners).encode() + b"\n")
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
                        time.sleep(_POLL_INTERVAL_S)


def _greet(connection: socket.socket, kind: str) -> socket.socket:
    """Shakes hands as the listening side."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(GREETING)
    connection.recv(64, socket.MSG_WAITALL)
    _, size = connection.recv(2, socket.MSG_WAITALL)
    connection.recv(size, socket.MSG_WAITALL)
    connection.sendall(ready_command(kind.encode()))
    return connection
