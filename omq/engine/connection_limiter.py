"""Who is let in at a bound endpoint: limits that keep silent and surplus connections from keeping good ones out."""

from __future__ import annotations

import asyncio

from omq.engine.views import RunningSocket, Stranger
from omq.errors import HandshakeError
from omq.options import Options

#: Seconds that a handshake has before it may have to make room for want of descriptors.
MOMENT = 1.0

_EARLY = 0.001  # seconds: a loop may count in milliseconds


class ConnectionLimiter:
    """The connections that one listener has accepted.

    A connection costs a stranger nothing: until its handshake is done it has no claim to its place. When there are too
    many such connections, or descriptors are short, the oldest goes. A good client needs a moment only, and gets
    through. Where descriptors are short each connection has that moment (`MOMENT`): clients that come together would
    else keep each other out for ever.

    All handshakes of a listener may last equally long, so one timer, for the oldest, does for them all.

    Args:
        engine: The socket.
        options: What holds for the endpoint; `max_handshakes`, `max_connections` and `handshake_timeout` apply.
    """

    def __init__(self, engine: RunningSocket, options: Options) -> None:
        self._engine = engine
        self._options = options
        self._strangers: dict[Stranger, float] = {}  # when each came, in seconds of the loop's clock
        self._admitted: set[Stranger] = set()
        self._timer: asyncio.TimerHandle | None = None  # there is one while there are strangers, and a timeout

    @property
    def refusal(self) -> str | None:
        """Why one more connection cannot be let in, or `None` if it can."""
        limit = self._options.max_connections
        if limit is not None and len(self._admitted) >= limit:
            return f"there are max_connections={limit} already"
        return None

    def enter(self, session: Stranger) -> None:
        """A connection has been accepted; its handshake is to begin."""
        limit = self._options.max_handshakes
        if limit is not None and len(self._strangers) >= limit:
            self.shed(f"more than max_handshakes={limit} are in their handshake, and this is the oldest")
        self._strangers[session] = self._engine.loop.time()
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        """Sets the timer for the oldest, if there is one."""
        timeout = self._options.handshake_timeout
        came = next(iter(self._strangers.values()), None)
        if timeout is not None and came is not None:
            loop = self._engine.loop
            self._timer = loop.call_later(max(0.0, came + timeout - loop.time()), self._look)

    def _look(self) -> None:
        """Ends the handshakes that have lasted too long."""
        self._timer = None
        timeout = self._options.handshake_timeout
        assert timeout is not None
        now = self._engine.loop.time() + _EARLY
        try:
            for session, came in tuple(self._strangers.items()):
                if now - came < timeout:
                    break
                session.time_out()
        finally:
            if self._timer is None:
                self._arm()

    def leave_loop(self) -> None:
        """The loop ends, or has ended."""
        if self._timer is not None:
            if self._engine.in_loop:
                self._timer.cancel()
            self._timer = None

    def enter_loop(self) -> None:
        """The socket goes on in another loop."""
        self._arm()

    def shed(self, reason: str, patience: float = 0.0) -> bool:
        """Ends the connection whose handshake has lasted longest, *patience* seconds at least. Gives whether it did."""
        oldest = next(iter(self._strangers), None)
        if oldest is None or self._engine.loop.time() - self._strangers[oldest] < patience:
            return False
        oldest.end(HandshakeError(reason))
        return True

    def admit(self, session: Stranger) -> str | None:
        """The handshake is done. Gives why the connection cannot be let in, or `None` if it is."""
        refusal = self.refusal
        if refusal is None:
            self._forget(session)
            self._admitted.add(session)
        return refusal

    def leave(self, session: Stranger) -> None:
        """The connection is over."""
        self._forget(session)
        self._admitted.discard(session)

    def _forget(self, session: Stranger) -> None:
        self._strangers.pop(session, None)
        if self._timer is not None and not self._strangers:
            if self._engine.in_loop:
                self._timer.cancel()
            self._timer = None
