"""REQ and REP: a request, then its reply (RFC 28)."""

from __future__ import annotations

from omq._core.queues.addressed import ReplyOutlet
from omq._core.queues.gate import Gate
from omq._core.queues.inlet import ReplyInlet, RequestInlet
from omq._core.queues.outlet import RequestOutlet
from omq.options import Options
from omq.routing.base import Pattern, Session
from omq.types import SocketType


class Request(Pattern):
    """Requests rotate over the peers; only the peer that was asked can reply."""

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.inlet: RequestInlet = RequestInlet(readable)
        self.outlet = RequestOutlet(
            writable,
            options.send_hwm,
            self.inlet,
            options.req_relaxed,
            options.req_correlate,
            options.immediate,
        )

    def greet(self, session: Session) -> None:
        if self.options.probe_router:
            session.peer.send_parts([b""])

    def disconnected(self, session: Session) -> None:
        super().disconnected(session)
        # No other peer can answer what this one was asked: the next request may go out.
        self.inlet.forget(session.peer)


class Reply(Pattern):
    """Requests are taken from all peers in turn; the reply goes back the way the request came."""

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.inlet = ReplyInlet(readable)
        self.outlet = ReplyOutlet(writable, options.send_hwm, self.inlet)
