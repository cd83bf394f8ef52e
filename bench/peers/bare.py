"""Blocking stream sockets without any protocol: the limit of the machine itself.

Messages have a size that both sides know; the kernel's default buffers; Nagle off.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

from bench.control import Control
from bench.peers import sparse_traffic
from bench.peers.bare_connections import add_connections


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


def accept(control: Control, endpoint: str) -> socket.socket:
    """Listens, reports the endpoint, and returns the first connection."""
    listener, resolved = _listen(endpoint)
    control.report(endpoint=resolved)
    return _without_nagle(listener.accept()[0])


def dial(endpoint: str) -> socket.socket:
    """Returns a connection."""
    scheme, address = endpoint.split("://")
    if scheme == "ipc":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        return connection
    host, port = address.rsplit(":", 1)
    return _without_nagle(socket.create_connection((host, int(port))))


def _without_nagle(connection: socket.socket) -> socket.socket:
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


def pull(control: Control, job: dict[str, Any]) -> None:
    """Times bursts from the first message to the last."""
    connection = accept(control, job["endpoint"])
    view = memoryview(bytearray(job["size"]))
    while True:
        count = control.receive()["burst"]
        control.report(armed=True)
        _fill(connection, view)
        started = perf_counter()
        for _ in range(count - 1):
            _fill(connection, view)
        control.report(seconds=perf_counter() - started)


def push(control: Control, job: dict[str, Any]) -> None:
    """Sends bursts, one `sendall` a message."""
    connection = dial(job["endpoint"])
    message = b"x" * job["size"]
    while True:
        count = control.receive()["burst"]
        for _ in range(count):
            connection.sendall(message)


def rep(control: Control, job: dict[str, Any]) -> None:
    """Answers every request with itself."""
    connection = accept(control, job["endpoint"])
    size = job["size"]
    while True:
        connection.sendall(connection.recv(size, socket.MSG_WAITALL))


def req(control: Control, job: dict[str, Any]) -> None:
    """Times each round trip."""
    connection = dial(job["endpoint"])
    size = job["size"]
    message = b"x" * size
    while True:
        count = control.receive()["burst"]
        trips = [0] * count
        last = perf_counter_ns()
        for index in range(count):
            connection.sendall(message)
            connection.recv(size, socket.MSG_WAITALL)
            now = perf_counter_ns()
            trips[index] = now - last
            last = now
        control.report(trips=trips)


class _BareSocketFactory:
    """A stream socket with the calls of `bench.peers.sparse_traffic`; it accepts a connection when it is first read."""

    listener: socket.socket
    connection: socket.socket | None = None

    def __init__(self, size: int) -> None:
        self._size = size

    def open(self, _kind: str) -> _BareSocketFactory:
        return self

    def bind(self, _sock: _BareSocketFactory, endpoint: str) -> str:
        self.listener, resolved = _listen(endpoint)
        return resolved

    def connect(self, _sock: _BareSocketFactory, endpoint: str) -> None:
        self.connection = dial(endpoint)

    def send(self, message: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(message)

    def recv(self) -> bytes:
        if self.connection is None:
            self.connection = _without_nagle(self.listener.accept()[0])
        return self.connection.recv(self._size, socket.MSG_WAITALL)


def send_bursts(control: Control, job: dict[str, Any]) -> None:
    """Sends bursts with a system call for each message: the lag of the last one is the machine's own."""
    sparse_traffic.send_bursts(_BareSocketFactory(job["size"]), control, job)


def receive_bursts(control: Control, job: dict[str, Any]) -> None:
    """Receives what `send_bursts` sends, and reports the lags."""
    sparse_traffic.receive_bursts(_BareSocketFactory(job["size"]), control, job)


def compute(control: Control, job: dict[str, Any]) -> None:
    """Computes in pure Python, without any socket, and reports the loops a second."""
    while True:
        seconds = control.receive()["seconds"]
        rounds, started = 0, perf_counter()
        while perf_counter() < started + seconds:
            for _ in range(1000):
                pass
            rounds += 1
        control.report(computed=rounds / (perf_counter() - started))


ROLES: dict[str, Callable[[Control, dict[str, Any]], None]] = {
    "compute": compute,
    "connections": add_connections,
    "burst-sender": send_bursts,
    "burst-receiver": receive_bursts,
    "pull": pull,
    "push": push,
    "rep": rep,
    "req": req,
}


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    ROLES[role](control, job)
