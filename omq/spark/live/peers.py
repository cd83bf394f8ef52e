"""The peers of a socket: the wait for the first one with its connect timeout, and counts."""

from __future__ import annotations

import logging
import math
import time
from typing import Any, Final

import omq
from omq.unpatched import threading

log = logging.getLogger("omq.spark")

POLL_INTERVAL_S: Final = 0.05
EVENTS: Final = 1000  # that may wait until they are read
_TROUBLE: Final = frozenset({omq.EventKind.CONNECT_FAILED, omq.EventKind.HANDSHAKE_FAILED})


class Peers:
    """The peers of a socket, by its events. Threads may share it.

    Args:
        socket: A socket that was opened just now.
        endpoint: Its endpoint, for messages.
        seconds: The connect timeout; `None` for any time.
        fails: Whether that is an error. Else it is logged, once.
    """

    def __init__(self, socket: omq.Socket, endpoint: str, seconds: float | None, fails: bool) -> None:
        self._socket = socket
        self._endpoint = endpoint
        self._seconds = seconds
        self._fails = fails
        self._until = math.inf if seconds is None else time.monotonic() + seconds
        self._reported = self._noted = False
        self._trouble = ""
        self._is_known = False  # there is, or was, a peer
        self._met = 0
        self._gone = 0  # messages of peers that have gone
        self._lock = threading.Lock()
        self._monitor = socket.monitor(EVENTS)

    @property
    def left(self) -> float:
        """Seconds until the connect timeout; 0 or less once it has passed."""
        return self._until - time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """True if the connect timeout has passed without a peer, and that was not reported yet."""
        return not self._is_met() and self.left <= 0 and not self._reported

    def wait(self, seconds: float, interrupted: threading.Event | None = None) -> bool:
        """Waits for the first peer, for *seconds* at most, or until interrupted; returns whether there is, or was, one.

        Raises:
            ConnectError: The connect timeout has passed.
        """
        end = time.monotonic() + seconds
        while not self._is_met():
            if self.left <= 0 and not self._reported:
                text = self._nobody(f"after connectTimeout={self._seconds:g} s")
                if self._fails:
                    raise omq.ConnectError(text)
                self._reported = True
                log.warning("%s", text)
            left = end - time.monotonic()
            if left <= 0 or (interrupted is not None and interrupted.is_set()):
                if not self._noted:
                    self._noted = True
                    log.warning("%s", self._nobody("yet"))
                return False
            self._read_event(min(POLL_INTERVAL_S, left))
        return True

    def health(self) -> dict[str, Any]:
        """Returns how many peers are connected, how often they have come back, and how many messages have arrived."""
        self._read_events()
        with self._lock:
            peers = self._socket.peers
            return {
                "connected": len(peers),
                "reconnects": max(self._met - max(len(peers), 1), 0),
                "arrived": self._gone + sum(peer.messages_in for peer in peers),
            }

    def close(self) -> None:
        """Ends the counts; the socket stays open."""
        self._monitor.close()

    def _is_met(self) -> bool:
        """Returns whether there is, or was, a peer. It may have come before the monitor, whose events lack it then."""
        if not self._is_known:
            self._read_events()
            self._is_known = bool(self._met or self._socket.peers or self._socket.poll(0, omq.POLL_IN))
        return self._is_known

    def _nobody(self, when: str) -> str:
        why = f"; last failure: {self._trouble}" if self._trouble else ""
        return f"{self._endpoint}: no peer is connected {when}{why}"

    def _read_events(self) -> None:
        while self._read_event(0):
            pass

    def _read_event(self, seconds: float) -> bool:
        """Waits for the next event of the socket; returns whether there was one."""
        try:
            event = self._monitor.recv(timeout=seconds)
        except (omq.ReceiveTimeout, omq.ClosedError):
            return False
        with self._lock:
            if event.kind in _TROUBLE:
                self._trouble = event.detail
            elif event.kind is omq.EventKind.HANDSHAKE_SUCCEEDED:
                self._met += 1
            elif event.kind is omq.EventKind.DISCONNECTED and event.peer is not None:
                self._gone += event.peer.messages_in
        return True
