"""The quiet peers: they send a stamped message now and then, and mind whether they are served.

They are libzmq's, where it has the type.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from tests.liveness.busy_peers import CONNECT_TIMEOUT_S, OPPOSITE, dialled
from tests.liveness.scenarios import ONE_PART_KINDS, SUBSCRIPTIONS
from tests.liveness.stamped_messages import QUIET, STAMP

HEARTBEAT_IVL, HEARTBEAT_TIMEOUT = 100, 500  # milliseconds


class QuietPeers:
    """The quiet peers of one owner.

    Attributes:
        trips: Seconds from each question to its answer, where the owner answers.
        lost: How often one of them has lost its connection.
    """

    def __init__(self, kind: str, endpoint: str, peers: int, heartbeats: bool) -> None:
        self._kind = kind
        self._poller = zmq.Poller()
        self._monitors: list[Any] = []
        self._sockets = [self._open(OPPOSITE[kind], endpoint, heartbeats) for _ in range(peers)]
        for monitor in self._monitors:
            assert monitor.poll(CONNECT_TIMEOUT_S * 1000), "no connection"
            monitor.recv_multipart()
            self._poller.register(monitor, zmq.POLLIN)
        for sock in self._sockets:
            if sock.type == zmq.XPUB:
                sock.rcvtimeo = int(CONNECT_TIMEOUT_S * 1000)
                sock.recv()  # the owner's subscription
            elif sock.type == zmq.DEALER:
                self._poller.register(sock, zmq.POLLIN)
        self.trips: list[float] = []
        self.lost = 0
        self._asked = 0

    def _open(self, kind: str, endpoint: str, heartbeats: bool) -> Any:
        sock = zmq.Context.instance().socket(getattr(zmq, kind))
        sock.linger = 0
        if heartbeats:
            sock.heartbeat_ivl, sock.heartbeat_timeout = HEARTBEAT_IVL, HEARTBEAT_TIMEOUT
        self._monitors.append(sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED))
        sock.connect(endpoint)
        return sock

    def send(self, after: float, count: int, rest: float) -> None:
        """Sends in turn, one message at a time.

        Args:
            after: Seconds before the first.
            count: How many.
            rest: Seconds between two.
        """
        due = time.monotonic() + after
        for number in range(count):
            self.watch(lambda due=due: time.monotonic() < due, due)  # type: ignore[misc]
            peer = number % len(self._sockets)
            body = STAMP.pack(QUIET, peer, number // len(self._sockets), time.monotonic_ns())
            if self._kind == SUBSCRIPTIONS:
                body = b"\1" + body
            self._asked += self._kind in ("ROUTER", "REP")
            self._sockets[peer].send_multipart([b"", body] if self._kind == "REP" else [body])
            due += rest

    def watch(self, go_on: Callable[[], bool], until: float = float("inf")) -> None:
        """Takes answers, and notes lost connections, until a command to stop."""
        while go_on():
            left = min(0.005, max(0.0, until - time.monotonic()))
            for sock, _ in self._poller.poll(left * 1000):
                message = sock.recv_multipart()
                if sock.type == zmq.DEALER:
                    self.trips.append((time.monotonic_ns() - STAMP.unpack(message[-1])[3]) / 1e9)
                elif parse_monitor_message(message)["event"] == zmq.EVENT_DISCONNECTED:
                    self.lost += 1

    def finish(self) -> None:
        """Waits for the last answers, not without end."""
        end = time.monotonic() + CONNECT_TIMEOUT_S / 5
        self.watch(lambda: len(self.trips) < self._asked and time.monotonic() < end)

    def close(self) -> None:
        for sock in self._sockets:
            sock.disable_monitor()
            sock.close()


class OmqQuietPeers:
    """The same of the types that pyzmq lacks; their owner answers nothing, for no style gives the number of a peer."""

    def __init__(self, kind: str, endpoint: str, peers: int, heartbeats: bool) -> None:
        beats = {"heartbeat_interval": HEARTBEAT_IVL / 1000, "heartbeat_timeout": HEARTBEAT_TIMEOUT / 1000}
        self._peers = [dialled(OPPOSITE[kind], endpoint, **(beats if heartbeats else {})) for _ in range(peers)]
        self._since = [sock.peers[0].since for sock, _ in self._peers]
        self.trips: list[float] = []
        self.lost = 0

    def send(self, after: float, count: int, rest: float) -> None:
        """Sends in turn, one message at a time; see `QuietPeers.send`."""
        due = time.monotonic() + after
        for number in range(count):
            time.sleep(max(0.0, due - time.monotonic()))
            peer = number % len(self._peers)
            sock, route = self._peers[peer]
            body = STAMP.pack(QUIET, peer, number // len(self._peers), time.monotonic_ns())
            sock.send(body, timeout=CONNECT_TIMEOUT_S, **route)
            due += rest

    def watch(self, go_on: Callable[[], bool]) -> None:
        """Waits until a command to stop."""
        while go_on():
            time.sleep(0.005)

    def finish(self) -> None:
        """Notes lost connections."""
        now = [[peer.since for peer in sock.peers] for sock, _ in self._peers]
        self.lost = sum(found != [since] for found, since in zip(now, self._since, strict=True))

    def close(self) -> None:
        for sock, _ in self._peers:
            sock.stop()


def quiet(kind: str, endpoint: str, peers: int, heartbeats: bool) -> QuietPeers | OmqQuietPeers:
    """The quiet peers of an owner of some kind."""
    return (OmqQuietPeers if kind in ONE_PART_KINDS else QuietPeers)(kind, endpoint, peers, heartbeats)
