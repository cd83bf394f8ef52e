"""Blocking stream sockets without any protocol: what the machine itself gives.

Messages have a size that both sides know; the kernel's default buffers; Nagle off.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

from bench.link import Link
from bench.peers import sparse
from bench.peers.crowd import crowd


def _listen(endpoint: str) -> tuple[socket.socket, str]:
    scheme, address = endpoint.split("://")
    if scheme == "ipc":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
    else:
        listener = socket.socket()
        listener.bind((address.rsplit(":", 1)[0], 0))
        endpoint = "tcp://{}:{}".format(*listener.getsockname())
    listener.listen()
    return listener, endpoint


def accept(link: Link, endpoint: str) -> socket.socket:
    """Listens, tells where, and gives the first connection."""
    listener, resolved = _listen(endpoint)
    link.tell(endpoint=resolved)
    return _prompt(listener.accept()[0])


def dial(endpoint: str) -> socket.socket:
    """Connects."""
    scheme, address = endpoint.split("://")
    if scheme == "ipc":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        return connection
    host, port = address.rsplit(":", 1)
    return _prompt(socket.create_connection((host, int(port))))


def _prompt(connection: socket.socket) -> socket.socket:
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _fill(connection: socket.socket, view: memoryview) -> None:
    got = 0
    while got < len(view):
        count = connection.recv_into(view[got:])
        if not count:
            raise SystemExit(0)
        got += count


def pull(link: Link, job: dict[str, Any]) -> None:
    """Times bursts from the first message to the last."""
    connection = accept(link, job["endpoint"])
    view = memoryview(bytearray(job["size"]))
    while True:
        count = link.take()["burst"]
        link.tell(armed=True)
        _fill(connection, view)
        started = perf_counter()
        for _ in range(count - 1):
            _fill(connection, view)
        link.tell(seconds=perf_counter() - started)


def push(link: Link, job: dict[str, Any]) -> None:
    """Sends bursts, one `sendall` a message."""
    connection = dial(job["endpoint"])
    message = b"x" * job["size"]
    while True:
        count = link.take()["burst"]
        for _ in range(count):
            connection.sendall(message)


def rep(link: Link, job: dict[str, Any]) -> None:
    """Answers every request with itself."""
    connection = accept(link, job["endpoint"])
    size = job["size"]
    while True:
        connection.sendall(connection.recv(size, socket.MSG_WAITALL))


def req(link: Link, job: dict[str, Any]) -> None:
    """Times each round trip."""
    connection = dial(job["endpoint"])
    size = job["size"]
    message = b"x" * size
    while True:
        count = link.take()["burst"]
        trips = [0] * count
        last = perf_counter_ns()
        for index in range(count):
            connection.sendall(message)
            connection.recv(size, socket.MSG_WAITALL)
            now = perf_counter_ns()
            trips[index] = now - last
            last = now
        link.tell(trips=trips)


class _Plain:
    """A stream socket with the calls that `bench.peers.sparse` makes; it accepts when it is first read."""

    listener: socket.socket
    connection: socket.socket | None = None

    def __init__(self, size: int) -> None:
        self._size = size

    def open(self, _kind: str) -> _Plain:
        return self

    def bind(self, _sock: _Plain, endpoint: str) -> str:
        self.listener, resolved = _listen(endpoint)
        return resolved

    def connect(self, _sock: _Plain, endpoint: str) -> None:
        self.connection = dial(endpoint)

    def send(self, message: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(message)

    def recv(self) -> bytes:
        if self.connection is None:
            self.connection = _prompt(self.listener.accept()[0])
        return self.connection.recv(self._size, socket.MSG_WAITALL)


def drip(link: Link, job: dict[str, Any]) -> None:
    """Every message of a burst is a system call of its own: what the machine itself takes to deliver the last."""
    sparse.drip(_Plain(job["size"]), link, job)


def drops(link: Link, job: dict[str, Any]) -> None:
    """The other side of `drip`."""
    sparse.drops(_Plain(job["size"]), link, job)


def compute(link: Link, job: dict[str, Any]) -> None:
    """No socket at all: what a process that computes in pure Python gets done in a second."""
    while True:
        seconds = link.take()["seconds"]
        rounds, started = 0, perf_counter()
        while perf_counter() < started + seconds:
            for _ in range(1000):
                pass
            rounds += 1
        link.tell(computed=rounds / (perf_counter() - started))


ROLES: dict[str, Callable[[Link, dict[str, Any]], None]] = {
    "compute": compute,
    "crowd": crowd,
    "drip": drip,
    "drops": drops,
    "pull": pull,
    "push": push,
    "rep": rep,
    "req": req,
}


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    ROLES[role](link, job)
