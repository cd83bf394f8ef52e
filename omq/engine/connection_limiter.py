"""Limits of the connections of a bound endpoint: silent and surplus connections do not keep others out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from omq.engine.views import ConnectedSession, SocketView
from omq.errors import HandshakeError
from omq.options import Options

# Seconds that a connection has for its handshake before it may have to make room for another one. Peers send their
# greeting as soon as they are connected, and finish within a round trip or two.
UNANSWERED_S: Final = 2.0  # since it was accepted: it cannot have sent a message, so it loses none
ANSWERED_S: Final = 3.0  # since it was answered: the peer may have sent its first message

_TIMER_SLACK_S = 0.001  # seconds: a loop may count in milliseconds


class ConnectionLimiter:
    """The connections that one listener has accepted.

    A connection costs its peer nothing, so it has no claim to its place before its handshake has finished. When there
    are too many such connections, or too few descriptors, the oldest that has used up its time is closed. A good client
    needs less time than that. While none has used up its time, new connections wait in the kernel's backlog.

    A peer sends its first message once it has our whole side of the handshake (NULL: our READY). Closing the connection
    then loses that message. So a peer is answered only when there is a place for it. From then on it has more time, and
    what the kernel has received from it is read before its connection is closed.

    All handshakes of a listener have the same timeout, so one timer, for the oldest, is enough.

    Args:
        engine: The socket.
        options: The options of the endpoint; `max_handshakes`, `max_connections` and `handshake_timeout` apply.

    Attributes:
        on_leave: Called in the loop, once, when a handshake has finished or failed.
    """

    def __init__(self, engine: SocketView, options: Options) -> None:
        self._engine = engine
        self._options = options
        self.on_leave: Callable[[], None] | None = None
        # When each was accepted, or answered, in seconds of the loop's clock. A connection in its handshake is in the
        # first dict and in one of the others.
        self._handshaking: dict[ConnectedSession, float] = {}
        self._unanswered: dict[ConnectedSession, float] = {}
        self._answered: dict[ConnectedSession, float] = {}
        self._admitted: set[ConnectedSession] = set()
        self._timer: asyncio.TimerHandle | None = None  # set while there are handshakes, and a timeout

    @property
    def refusal(self) -> str | None:
        """Returns the reason why one more connection cannot be accepted, or `None` if it can."""
        return self._surplus(len(self._admitted))

    def _surplus(self, count: int) -> str | None:
        limit = self._options.max_connections
        return None if limit is None or count < limit else f"max_connections={limit} is reached"

    @property
    def full(self) -> bool:
        """Returns whether `max_handshakes` are in progress."""
        limit = self._options.max_handshakes
        return limit is not None and len(self._handshaking) >= limit

    def has_room(self) -> bool:
        """Returns whether one more handshake may begin; closes one that has used up its time to make room."""
        if not self.full:
            return True
        limit = self._options.max_handshakes
        reason = f"more than max_handshakes={limit} are in their handshake, and this is the oldest"
        return self.shed(reason) or not self.full

    def enter(self, session: ConnectedSession) -> None:
        """Adds a connection that was accepted and begins its handshake."""
        self._handshaking[session] = self._unanswered[session] = self._engine.loop.time()
        if self._timer is None:
            self._arm()

    def claim(self, session: ConnectedSession) -> str | None:
        """Reserves a place before the peer is answered; returns why there is none, or `None`."""
        if session in self._answered:
            return None
        while refusal := self._surplus(len(self._admitted) + len(self._answered)):
            if not self._shed(self._answered, ANSWERED_S, refusal):
                return refusal
        self._unanswered.pop(session, None)
        self._answered[session] = self._engine.loop.time()
        return None

    def _arm(self) -> None:
        """Sets the timer for the oldest connection, if there is one."""
        timeout = self._options.handshake_timeout
        came = next(iter(self._handshaking.values()), None)
        if timeout is not None and came is not None:
            loop = self._engine.loop
            self._timer = loop.call_later(max(0.0, came + timeout - loop.time()), self._end_timed_out)

    def _end_timed_out(self) -> None:
        """Ends the handshakes that have lasted too long."""
        self._timer = None
        timeout = self._options.handshake_timeout
        assert timeout is not None
        now = self._engine.loop.time() + _TIMER_SLACK_S
        try:
            for session, came in tuple(self._handshaking.items()):
                if now - came < timeout:
                    break
                session.time_out()
        finally:
            if self._timer is None:
                self._arm()

    def leave_loop(self) -> None:
        """Stops the timer: the loop ends, or has ended."""
        if self._timer is not None:
            if self._engine.in_loop:
                self._timer.cancel()
            self._timer = None

    def enter_loop(self) -> None:
        """Restarts the timer in another loop."""
        self._arm()

    def shed(self, reason: str) -> bool:
        """Closes a connection whose handshake has used up its time; returns whether there was one."""
        return self._shed(self._unanswered, UNANSWERED_S, reason) or self._shed(self._answered, ANSWERED_S, reason)

    def _shed(self, candidates: dict[ConnectedSession, float], time: float, reason: str) -> bool:
        """Closes the oldest of *candidates* that has used up *time* and makes no progress."""
        now = self._engine.loop.time() + _TIMER_SLACK_S
        while candidates:
            oldest, since = next(iter(candidates.items()))
            if now - since < time:
                break
            oldest.catch_up()
            if oldest in candidates:
                oldest.end(HandshakeError(reason))
                return True
        return False

    def admit(self, session: ConnectedSession) -> None:
        """Keeps the place of a connection whose handshake has finished."""
        self._forget(session)
        self._admitted.add(session)

    def leave(self, session: ConnectedSession) -> None:
        """Removes a connection that has ended."""
        self._forget(session)
        self._admitted.discard(session)

    def _forget(self, session: ConnectedSession) -> None:
        if self._handshaking.pop(session, None) is None:
            return
        self._unanswered.pop(session, None)
        self._answered.pop(session, None)
        if self.on_leave is not None:
            if self._engine.in_loop:
                self._engine.loop.call_soon(self.on_leave)
            self.on_leave = None
        if self._timer is not None and not self._handshaking:
            if self._engine.in_loop:
                self._timer.cancel()
            self._timer = None
