"""The busy peers: they send numbered messages for as long as the owner takes them."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import zmq

import omq
from tests.liveness.scenarios import SUBSCRIPTIONS
from tests.liveness.stamped_messages import CYCLE, busy_body
from tests.support.raw_zmtp import COMMAND, MORE, command, frame, greeting, ready
from tests.support.socket_types import GROUP, NUMBERED, SENDER

#: What talks to each kind of socket.
OPPOSITE = {
    **SENDER,
    "PULL": "PUSH",
    "SUB": "XPUB",
    "XSUB": "XPUB",
    "DEALER": "DEALER",
    "ROUTER": "DEALER",
    "REP": "DEALER",
    "XPUB": "XSUB",
    SUBSCRIPTIONS: "XSUB",
    "PAIR": "PAIR",
}
CONNECT_TIMEOUT_S = 5.0  # seconds for a connection
CHUNK = 256 << 10
PACE = 10_000_000  # bytes a second, where nothing else bounds what the owner's memory has to hold
RUN = 100  # messages that a library's peer sends in one go


class Raw:
    """Peers on plain sockets: they encode nothing while they send, and so are ahead of every receiver."""

    def __init__(self, kind: str, endpoint: str, peers: int, bounded: bool) -> None:
        self._bounded = bounded
        self._out: dict[int, tuple[socket.socket, memoryview, list[int]]] = {}
        for peer in range(peers):
            sock = _shaken(OPPOSITE[kind], endpoint)
            self._out[sock.fileno()] = sock, memoryview(_stream(kind, peer)), [0]

    def send(self, go_on: Callable[[], bool]) -> None:
        """Sends until a command to stop."""
        poller = select.poll()
        for number in self._out:
            poller.register(number, select.POLLIN | select.POLLOUT)
        started, sent = time.monotonic(), 0
        while go_on():
            if not self._bounded and sent > PACE * (time.monotonic() - started + 0.01):
                time.sleep(0.001)
                continue
            for number, events in poller.poll(5):
                sock, stream, at = self._out[number]
                if events & select.POLLIN:
                    sock.recv(1 << 20)  # answers
                if events & select.POLLOUT:
                    count = sock.send(stream[at[0] : at[0] + CHUNK])
                    at[0] = (at[0] + count) % len(stream)
                    sent += count

    def close(self) -> None:
        for sock, _, _ in self._out.values():
            sock.close()


def _shaken(kind: str, endpoint: str) -> socket.socket:
    host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
    sock.sendall(greeting() + ready(kind))
    _exactly(sock, 64)
    while True:
        flags, size = _exactly(sock, 2)
        assert flags & ~MORE == COMMAND, flags
        if _exactly(sock, size).startswith(b"\x05READY"):
            sock.setblocking(False)
            return sock


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        assert chunk, "the owner has hung up"
        data += chunk
    return data


@cache
def _stream(kind: str, peer: int) -> bytes:
    """The whole cycle of a peer, encoded."""
    bodies = [busy_body(peer, number) for number in range(CYCLE)]
    if kind == SUBSCRIPTIONS:
        return b"".join(command(b"SUBSCRIBE", body) + command(b"CANCEL", body) for body in bodies)
    before = {"REP": frame(b"", MORE), "DISH": frame(GROUP.encode(), MORE)}.get(kind, b"")
    return b"".join(before + frame(body) for body in bodies)


class _Library:
    """Peers on a library's sockets, each of which sends a run of messages in turn."""

    def __init__(self, kind: str, endpoint: str, peers: int, bounded: bool) -> None:
        self._delimited = kind == "REP"
        self._bounded = bounded
        self._sockets = [self.open(OPPOSITE[kind], endpoint) for _ in range(peers)]
        self._cycles = [[busy_body(peer, number) for number in range(CYCLE)] for peer in range(peers)]

    def send(self, go_on: Callable[[], bool]) -> None:
        """Sends until a command to stop."""
        at = [0] * len(self._sockets)
        started, sent = time.monotonic(), 0
        while go_on():
            before = sent
            if self._bounded or sent * len(self._cycles[0][0]) < PACE * (time.monotonic() - started + 0.01):
                for peer, sock in enumerate(self._sockets):
                    run = self._cycles[peer][at[peer] : at[peer] + RUN]
                    count = self.give(sock, run)
                    at[peer] = (at[peer] + count) % CYCLE
                    sent += count
                    self.drain(sock)
            if sent == before:
                time.sleep(0.0005)

    def open(self, kind: str, endpoint: str) -> Any:
        raise NotImplementedError

    def give(self, sock: Any, run: list[bytes]) -> int:
        """Sends what there is room for."""
        raise NotImplementedError

    def drain(self, sock: Any) -> None:
        """Throws away what the owner answers."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Libzmq(_Library):
    """libzmq's."""

    def open(self, kind: str, endpoint: str) -> Any:
        sock = zmq.Context.instance().socket(getattr(zmq, kind))
        sock.linger = 0
        if kind == "XPUB":
            sock.setsockopt(zmq.XPUB_NODROP, 1)
        monitor = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        sock.connect(endpoint)
        assert monitor.poll(CONNECT_TIMEOUT_S * 1000), "no connection"
        sock.disable_monitor()
        if kind == "XPUB":
            sock.rcvtimeo = int(CONNECT_TIMEOUT_S * 1000)
            sock.recv()
        return sock

    def give(self, sock: Any, run: list[bytes]) -> int:
        for count, body in enumerate(run):
            try:
                if self._delimited:
                    sock.send(b"", zmq.NOBLOCK | zmq.SNDMORE)
                sock.send(body, zmq.NOBLOCK)
            except zmq.Again:
                return count
        return len(run)

    def drain(self, sock: Any) -> None:
        if sock.type == zmq.DEALER:
            try:
                while True:
                    sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                pass

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def dialled(kind: str, endpoint: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """An omq socket that can send to the owner, and the keyword that `send` needs."""
    sock = getattr(omq, kind)(linger=0, **options)
    if kind == "PEER":
        return sock, {"routing_id": sock.connect_peer(endpoint, timeout=CONNECT_TIMEOUT_S)}
    sock.connect(endpoint)
    sock.wait_connected(timeout=CONNECT_TIMEOUT_S)
    if kind == "RADIO":
        sock.wait_subscribed(GROUP, timeout=CONNECT_TIMEOUT_S)
        return sock, {"group": GROUP}
    if kind in NUMBERED:
        return sock, {"routing_id": sock.recv_message(timeout=CONNECT_TIMEOUT_S).routing_id}
    if kind == "XPUB":
        sock.recv(timeout=CONNECT_TIMEOUT_S)
    return sock, {}


class Omq(_Library):
    """omq's."""

    def __init__(self, kind: str, endpoint: str, peers: int, bounded: bool) -> None:
        self._routes: dict[Any, dict[str, Any]] = {}
        # A RADIO drops what has no room, and the owner would miss it.
        self._options: dict[str, Any] = {"XPUB": {"xpub_nodrop": True}, "RADIO": {"send_hwm": 0}}.get(
            OPPOSITE[kind], {}
        )
        super().__init__(kind, endpoint, peers, bounded and kind != "DISH")

    def open(self, kind: str, endpoint: str) -> Any:
        sock, route = dialled(kind, endpoint, **self._options)
        self._routes[sock] = route
        return sock

    def give(self, sock: Any, run: list[bytes]) -> int:
        count, route = 0, self._routes[sock]
        try:
            if not self._delimited and not route:
                return int(sock.send_many(run, timeout=0))
            for body in run:
                sock.send_multipart([b"", body] if self._delimited else [body], timeout=0, **route)
                count += 1
        except omq.SendTimeout:
            pass
        return count

    def drain(self, sock: Any) -> None:
        if isinstance(sock, omq.DEALER):
            try:
                sock.recv_many(timeout=0)
            except omq.ReceiveTimeout:
                pass

    def close(self) -> None:
        for sock in self._sockets:
            sock.stop()


FLOODS = {"raw": Raw, "libzmq": Libzmq, "omq": Omq}
