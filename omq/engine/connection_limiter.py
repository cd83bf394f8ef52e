"""Who is let in at a bound endpoint: limits that keep silent and surplus connections from keeping good ones out."""

from __future__ import annotations

from omq.engine.views import RunningSocket, Session
from omq.errors import HandshakeError
from omq.options import Options

#: Seconds that a handshake has before it may have to make room for want of descriptors.
MOMENT = 1.0


class ConnectionLimiter:
    """The connections that one listener has accepted.

    A connection costs a stranger nothing: until its handshake is done it has no claim to its place. When there are too
    many such connections, or descriptors are short, the oldest goes. A good client needs a moment only, and gets
    through. Where descriptors are short each connection has that moment (`MOMENT`): clients that come together would
    else keep each other out for ever.

    Args:
        engine: The socket.
        options: What holds for the endpoint; `max_handshakes` and `max_connections` apply.
    """

    def __init__(self, engine: RunningSocket, options: Options) -> None:
        self._engine = engine
        self._options = options
        self._strangers: dict[Session, float] = {}  # when each came, in seconds of the loop's clock
        self._admitted: set[Session] = set()

    @property
    def refusal(self) -> str | None:
        """Why one more connection cannot be let in, or `None` if it can."""
        limit = self._options.max_connections
        if limit is not None and len(self._admitted) >= limit:
            return f"there are max_connections={limit} already"
        return None

    def enter(self, session: Session) -> None:
        """A connection has been accepted; its handshake is to begin."""
        limit = self._options.max_handshakes
        if limit is not None and len(self._strangers) >= limit:
            self.shed(f"more than max_handshakes={limit} are in their handshake, and this is the oldest")
        self._strangers[session] = self._engine.loop.time()

    def shed(self, reason: str, patience: float = 0.0) -> bool:
        """Ends the connection whose handshake has lasted longest, *patience* seconds at least. Gives whether it did."""
        oldest = next(iter(self._strangers), None)
        if oldest is None or self._engine.loop.time() - self._strangers[oldest] < patience:
            return False
        oldest.end(HandshakeError(reason))
        return True

    def admit(self, session: Session) -> str | None:
        """The handshake is done. Gives why the connection cannot be let in, or `None` if it is."""
        refusal = self.refusal
        if refusal is None:
            self._strangers.pop(session, None)
            self._admitted.add(session)
        return refusal

    def leave(self, session: Session) -> None:
        """The connection is over."""
        self._strangers.pop(session, None)
        self._admitted.discard(session)
