"""Waits for the first peer of a socket, and counts its peers."""

from __future__ import annotations

import logging
import math
import time
from typing import Any, Final

import omq
from omq.unpatched import threading

log = logging.getLogger("omq.spark")

MAX_EVENT_WAIT_S: Final = 0.05  # of one wait for an event
_FAILURES: Final = frozenset({omq.EventKind.CONNECT_FAILED, omq.EventKind.HANDSHAKE_FAILED})


class Peers:
    """The peers of a socket, by its events. Threads may share it.

    Args:
        socket: A socket that was just opened.
        endpoint: Its endpoint, for the texts of errors and of the log.
        connect_timeout: Seconds until the first peer must be connected; `None` for no limit.
        fails: Whether the timeout raises an error; otherwise it is logged once.
    """

    def __init__(self, socket: omq.Socket, endpoint: str, connect_timeout: float | None, fails: bool) -> None:
        self._socket = socket
        self._endpoint = endpoint
        self._connect_timeout = connect_timeout
        self._fails = fails
        self._deadline = math.inf if connect_timeout is None else time.monotonic() + connect_timeout
        self._timeout_reported = self._wait_reported = False
        self._last_failure = ""
        self._peer_seen = False
        self._handshakes = 0
        self._past_messages = 0  # from peers that have disconnected
        self._lock = threading.Lock()
        self._monitor = socket.monitor()

    @property
    def remaining_s(self) -> float:
        """Seconds until the connect timeout; 0 or less once it has passed."""
        return self._deadline - time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Returns whether the connect timeout has passed without a peer, and `wait` has not reported it yet."""
        return not self._had_peer() and self.remaining_s <= 0 and not self._timeout_reported

    def wait(self, seconds: float, interrupted: threading.Event | None = None) -> bool:
        """Waits for the first peer, *seconds* at most or until interrupted; returns whether there is or was one.

        Raises:
            ConnectError: The connect timeout has passed, and *fails* is true.
        """
        end = time.monotonic() + seconds
        while not self._had_peer():
            if self.remaining_s <= 0 and not self._timeout_reported:
                text = self._no_peer(f"after connectTimeout={self._connect_timeout:g} s")
                if self._fails:
                    raise omq.ConnectError(text)
                self._timeout_reported = True
                log.warning("%s", text)
            left = end - time.monotonic()
            if left <= 0 or (interrupted is not None and interrupted.is_set()):
                if not self._wait_reported:
                    self._wait_reported = True
                    log.warning("%s", self._no_peer("yet"))
                return False
            self._read_event(min(MAX_EVENT_WAIT_S, left))
        return True

    def stats(self) -> dict[str, Any]:
        """Returns the counts of connected peers, of reconnects, and of messages that have arrived."""
        self._read_events()
        with self._lock:
            peers = self._socket.peers
            return {
                "connected": len(peers),
                "reconnects": max(self._handshakes - max(len(peers), 1), 0),
                "arrived": self._past_messages + sum(peer.messages_in for peer in peers),
            }

    def close(self) -> None:
        """Ends the counts; the socket stays open."""
        self._monitor.close()

    def _had_peer(self) -> bool:
        """Returns whether there is or was a peer. The monitor lacks one that connected before it was created."""
        if not self._peer_seen:
            self._read_events()
            self._peer_seen = bool(self._handshakes or self._socket.peers or self._socket.poll(0, omq.POLL_IN))
        return self._peer_seen

    def _no_peer(self, when: str) -> str:
        why = f"; last failure: {self._last_failure}" if self._last_failure else ""
        return f"{self._endpoint}: no peer is connected {when}{why}"

    def _read_events(self) -> None:
        while self._read_event(0):
            pass

    def _read_event(self, seconds: float) -> bool:
        """Handles the next event of the socket; returns whether there was one in time."""
        try:
            event = self._monitor.recv(timeout=seconds)
        except (omq.ReceiveTimeout, omq.ClosedError):
            return False
        with self._lock:
            if event.kind in _FAILURES:
                self._last_failure = event.detail
            elif event.kind is omq.EventKind.HANDSHAKE_SUCCEEDED:
                self._handshakes += 1
            elif event.kind is omq.EventKind.DISCONNECTED and event.peer is not None:
                self._past_messages += event.peer.messages_in
        return True
