"""Waits for a socket's first peer, and reports a connect timeout."""

from __future__ import annotations

import logging
import math
import time
from typing import Final

import omq
from omq.unpatched import threading

log = logging.getLogger("omq.spark")

POLL_INTERVAL_S: Final = 0.05
EVENTS: Final = 100  # that may wait until they are read
_TROUBLE: Final = frozenset({omq.EventKind.CONNECT_FAILED, omq.EventKind.HANDSHAKE_FAILED})


class FirstPeer:
    """The first peer of a socket.

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
        self._monitor: omq.Monitor | None = socket.monitor(EVENTS)

    @property
    def left(self) -> float:
        """Seconds until the connect timeout; 0 or less once it has passed."""
        return self._until - time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """True if the connect timeout has passed without a peer, and that was not reported yet."""
        if self._monitor is not None and self._socket.peers:
            self._met()
        return self._monitor is not None and self.left <= 0 and not self._reported

    def wait(self, seconds: float, interrupted: threading.Event | None = None) -> bool:
        """Waits for the first peer, for so long at most, or until interrupted; returns whether there is, or was, one.

        Raises:
            ConnectError: The connect timeout has passed.
        """
        if self._monitor is None:
            return True
        end = time.monotonic() + seconds
        while not (self._socket.peers or self._socket.poll(0, omq.POLL_IN)):
            if self.left <= 0 and not self._reported:
                self._report()
            left = min(end, math.inf if self._reported else self._until) - time.monotonic()
            if end <= time.monotonic() or (interrupted is not None and interrupted.is_set()):
                self._note()
                return False
            self._read_event(max(min(POLL_INTERVAL_S, left), 0))
        self._met()
        return True

    def _met(self) -> None:
        assert self._monitor is not None
        self._monitor.close()
        self._monitor = None

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            log.warning("%s: nobody is connected yet%s", self._endpoint, self._last_trouble())

    def _report(self) -> None:
        text = f"{self._endpoint}: nobody is connected after connectTimeout={self._seconds:g} s{self._last_trouble()}"
        if self._fails:
            raise omq.ConnectError(text)
        self._reported = True
        log.warning("%s", text)

    def _read_event(self, seconds: float) -> bool:
        """Waits for the next event of the socket; returns whether there was one."""
        assert self._monitor is not None
        try:
            event = self._monitor.recv(timeout=seconds)
        except (omq.ReceiveTimeout, omq.ClosedError):
            return False
        if event.kind in _TROUBLE:
            self._trouble = event.detail
        return True

    def _last_trouble(self) -> str:
        """Returns why the last attempt has failed, if one has."""
        while self._read_event(0):
            pass
        return f"; last failure: {self._trouble}" if self._trouble else ""
