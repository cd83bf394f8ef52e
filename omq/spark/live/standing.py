"""A connection that stays from one microbatch to the next, and from a query's run to the next."""

from __future__ import annotations

from typing import Any, Final

import omq
from omq.spark.live import reading
from omq.spark.live.receive import Connection
from omq.spark.live.settings import Settings
from omq.spark.memory import Memory
from omq.unpatched import threading

EVENTS: Final = 1000  # that may wait until somebody asks how it is


class StandingConnection(Connection):
    """A connection that can be taken up again after its socket was closed: what it held is read first.

    Args:
        settings: The options of the read.
        endpoint: Its endpoint.
        memory: Where bodies are put.
        ends_memory: Where their ends are put.
    """

    def __init__(self, settings: Settings, endpoint: str, memory: Memory, ends_memory: Memory) -> None:
        sock, meeting = reading.socket(settings, endpoint)
        self._settings = settings
        self._health = _Health(sock)
        self._before = 0  # messages that came through former sockets
        super().__init__(sock, endpoint, settings.batch_bytes, reading.most(settings), meeting, memory, ends_memory)

    def awake(self, settings: Settings) -> None:
        """Opens the socket again, if it is closed, or if it is to have other options."""
        if (settings.keys, settings.options) != (self._settings.keys, self._settings.options):
            self.retire()
        self._settings = settings
        self.ahead = settings.batch_bytes
        self._most = reading.most(settings)
        if self.closed:
            self.socket, self._meeting = reading.socket(self._settings, self.endpoint)
            self._before = self.sequence + self.held
            self._health = _Health(self.socket, self._health)
            self.pause()

    def health(self) -> dict[str, Any]:
        """How many are connected, and how often they have come back; what waits here unread."""
        found = self._health.told()
        waiting = self._before + found.pop("arrived") - self.sequence
        return {**found, "waiting": max(waiting, self.held), "taken": self.sequence}


class _Health:
    """What a socket's events and peers say of it."""

    def __init__(self, socket: omq.Socket, before: _Health | None = None) -> None:
        self._socket = socket
        self._monitor = socket.monitor(EVENTS)
        self._met: int = before._met if before else 0
        self._gone = 0  # messages of peers that have gone
        self._lock = threading.Lock()

    def told(self) -> dict[str, Any]:
        """What is known now; for any thread."""
        with self._lock:
            self._hear()
            peers = self._socket.peers
            return {
                "connected": len(peers),
                "reconnects": max(self._met - max(len(peers), 1), 0),
                "arrived": self._gone + sum(peer.messages_in for peer in peers),
            }

    def _hear(self) -> None:
        try:
            while True:
                event = self._monitor.recv(timeout=0)
                if event.kind is omq.EventKind.HANDSHAKE_SUCCEEDED:
                    self._met += 1
                elif event.kind is omq.EventKind.DISCONNECTED and event.peer is not None:
                    self._gone += event.peer.messages_in
        except (omq.ReceiveTimeout, omq.ClosedError):
            pass
