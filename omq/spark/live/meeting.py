"""The first peer of a socket: a wait for it, and what is said where nobody comes."""

from __future__ import annotations

import logging
import math
import time
from typing import Final

import omq
from omq.unpatched import threading

log = logging.getLogger("omq.spark")

LOOK: Final = 0.05  # seconds between two looks at whether somebody is there
EVENTS: Final = 100  # that may wait until somebody looks at them
_TROUBLE: Final = frozenset({omq.EventKind.CONNECT_FAILED, omq.EventKind.HANDSHAKE_FAILED})


class Meeting:
    """Knows whether a socket has ever had a peer.

    Args:
        socket: A socket that was opened just now.
        endpoint: Its endpoint, for messages.
        seconds: How long nobody may be there; `None` for any time.
        fails: Whether that is an error. Else it is logged, once.
    """

    def __init__(self, socket: omq.Socket, endpoint: str, seconds: float | None, fails: bool) -> None:
        self._socket = socket
        self._endpoint = endpoint
        self._seconds = seconds
        self._fails = fails
        self._until = math.inf if seconds is None else time.monotonic() + seconds
        self._said = self._noted = False
        self._trouble = ""
        self._monitor: omq.Monitor | None = socket.monitor(EVENTS)

    @property
    def left(self) -> float:
        """Seconds until somebody has to be there; 0 or less once the time is up."""
        return self._until - time.monotonic()

    def wait(self, seconds: float, interrupted: threading.Event | None = None) -> bool:
        """Waits for the first peer, for so long at most, or until interrupted. Gives whether there is, or was, one.

        Raises:
            ConnectError: Nobody was there in all the time that was given.
        """
        if self._monitor is None:
            return True
        end = time.monotonic() + seconds
        while not (self._socket.peers or self._socket.poll(0, omq.POLL_IN)):
            if self.left <= 0 and not self._said:
                self._complain()
            left = min(end, math.inf if self._said else self._until) - time.monotonic()
            if end <= time.monotonic() or (interrupted is not None and interrupted.is_set()):
                self._note()
                return False
            self._hear(max(min(LOOK, left), 0))
        self._monitor.close()
        self._monitor = None
        return True

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            log.warning("%s: nobody is connected yet%s", self._endpoint, self._last_trouble())

    def _complain(self) -> None:
        text = f"{self._endpoint}: nobody is connected after connectTimeout={self._seconds:g} s{self._last_trouble()}"
        if self._fails:
            raise omq.ConnectError(text)
        self._said = True
        log.warning("%s", text)

    def _hear(self, seconds: float) -> bool:
        """Waits for the next that happens to the socket; gives whether anything did."""
        assert self._monitor is not None
        try:
            event = self._monitor.recv(timeout=seconds)
        except (omq.ReceiveTimeout, omq.ClosedError):
            return False
        if event.kind in _TROUBLE:
            self._trouble = event.detail
        return True

    def _last_trouble(self) -> str:
        """Why the last attempt has failed, if one has."""
        while self._hear(0):
            pass
        return f"; last failure: {self._trouble}" if self._trouble else ""
