"""What the clients of both twins know about their connections: options, pauses, and whether one is over."""

from __future__ import annotations

import random
from typing import Any, Final, Protocol

from omq.broker.errors import PermissionDenied
from omq.errors import ClosedError
from omq.event import Event, EventKind, HandshakeFailure

#: Options of a client's socket: it dials until it is connected, and then not again, because a new connection is a new
#: session. What it has not sent then is sent in the new one.
SESSION_OPTIONS: Final[dict[str, Any]] = {
    "reconnect_interval": (0.02, 1.0),
    "reconnect_stop": "after disconnect",
    "heartbeat_interval": 2.0,
    "heartbeat_timeout": 10.0,
    "linger": 0,
}

_FIRST_PAUSE: Final = 0.02  # seconds
_LAST_PAUSE: Final = 1.0


class Events(Protocol):
    """A monitor of either twin."""

    def take(self) -> Event | None:
        """The next event, if one is there."""


class Watch:
    """Knows from a socket's monitor whether its one connection is over.

    Attributes:
        trouble: Why the last attempt to connect failed; empty if none did.
        refused: Whether the broker has refused this client's key or password: no attempt leads further.
        unwelcome: Whether the last attempt reached a peer, and its handshake failed.
    """

    def __init__(self, monitor: Events) -> None:
        self.trouble = ""
        self.refused = False
        self.unwelcome = False
        self._monitor = monitor
        self._connected = False
        self._over = False

    def is_over(self) -> bool:
        """Whether there was a connection, and it has ended."""
        while not self._over:
            try:
                event = self._monitor.take()
            except ClosedError:
                self._over = True
            else:
                if event is None:
                    break
                self._over = self.takes(event)
        return self._over

    def refusal(self, endpoint: str) -> PermissionDenied | None:
        """Why no attempt leads further, if that is so."""
        if not self.refused:
            return None
        return PermissionDenied(
            f"{endpoint}: the broker does not let this client in: its key, user or password is wrong"
        )

    def failure(self, endpoint: str, timeout: float | None) -> str:
        """Why there is no connection in time."""
        if self.unwelcome:
            return f"{endpoint}: the handshake fails, for {timeout} s: {self.trouble}"
        trouble = f"; last failure: {self.trouble}" if self.trouble else ""
        return f"{endpoint}: no broker is there within {timeout} s{trouble}"

    def takes(self, event: Event) -> bool:
        """Takes an event in. Gives whether it is the end of the connection."""
        if event.kind is EventKind.HANDSHAKE_SUCCEEDED:
            self._connected, self.trouble, self.unwelcome = True, "", False
        elif event.kind is EventKind.DISCONNECTED and self._connected:
            return True
        elif event.kind in (EventKind.CONNECT_FAILED, EventKind.HANDSHAKE_FAILED):
            self.trouble = event.detail
            self.unwelcome = event.kind is EventKind.HANDSHAKE_FAILED
            # An ERROR with this status (RFC 27); 300 and 500 may pass.
            if event.category is HandshakeFailure.AUTHENTICATION and self.trouble.endswith("'400'"):
                self.refused = True
        return event.kind is EventKind.MONITOR_STOPPED


class Pause:
    """How long to wait before dialling again.

    Not at all after a connection that lasted; a moment after one that the broker welcomed; longer each time else.
    """

    def __init__(self) -> None:
        self._delay = 0.0
        self._until = float("-inf")

    def lost(self, now: float, welcomed: bool) -> None:
        """A connection is lost, or came to nothing.

        Args:
            now: Seconds of a clock that only goes forward.
            welcomed: Whether the broker had answered.
        """
        if not welcomed:
            self._delay = min(max(2 * self._delay, _FIRST_PAUSE), _LAST_PAUSE)
        else:
            self._delay = 0.0 if now - self._until > _LAST_PAUSE else _FIRST_PAUSE
        # Jitter keeps the clients of a broker that returns from coming all at once.
        self._until = now + self._delay * random.uniform(0.75, 1.0)

    def left(self, now: float) -> float:
        """Seconds until the next attempt; 0 or less: at once."""
        return self._until - now


class Retreat:
    """How long to leave a busy broker alone before it is asked again; longer each time, until it answers."""

    def __init__(self) -> None:
        self._delay = 0.0

    def next(self) -> float:
        """Seconds until the next attempt."""
        self._delay = min(max(2 * self._delay, _FIRST_PAUSE), _LAST_PAUSE)
        return self._delay * random.uniform(0.75, 1.0)

    def over(self) -> None:
        """The broker has answered."""
        self._delay = 0.0
