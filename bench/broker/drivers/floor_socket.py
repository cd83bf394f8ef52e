"""A floor: the same bytes over one bare socket to a process that only receives or sends them."""

from __future__ import annotations

import socket

from bench.broker.drivers import ClientJob
from bench.broker.floor_server import CHUNK_BYTES, REQUEST

ANSWERS_PER_WINDOW = 10  # so that the window slides, as with the others


class Client:
    """Sends and receives bytes."""

    def __init__(self, job: ClientJob) -> None:
        self._size, self._depth = job.size, job.depth
        self._socket = socket.create_connection(job.host, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._window = memoryview(job.body() * job.depth)

    def create(self) -> None: ...

    def publish(self, count: int) -> None:
        step = max(1, self._depth // ANSWERS_PER_WINDOW) * self._size
        total = -(-count * self._size // step) * step
        self._socket.sendall(REQUEST.pack(b"P", total, step))
        sent = acknowledged = 0
        while acknowledged < total:
            while sent < total and sent - acknowledged < len(self._window):
                sent += self._socket.send(self._window[: min(step, total - sent)])
            acknowledged += step * len(self._socket.recv(4096))

    def trip(self) -> None:
        self._socket.sendall(REQUEST.pack(b"P", self._size, self._size) + self._window[: self._size])
        self._socket.recv(1)

    def arm(self) -> None: ...

    def consume(self, count: int) -> None:
        self.replay(count)

    def replay(self, count: int) -> None:
        left = count * self._size
        self._socket.sendall(REQUEST.pack(b"R", left, 1))
        room = bytearray(CHUNK_BYTES)
        while left:
            left -= self._socket.recv_into(room, min(CHUNK_BYTES, left))
