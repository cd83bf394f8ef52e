"""DEALER and ROUTER: the asynchronous halves of request and reply (RFC 28)."""

from __future__ import annotations

import os

from omq._core.queues.addressed import Addressed
from omq._core.queues.gate import Gate
from omq._core.queues.inlet import ConflateInlet, RouterInlet
from omq._core.queues.outlet import RoundRobin
from omq._core.queues.peer import Inlet
from omq.options import Options
from omq.routing.base import Pattern, Session
from omq.types import SocketType


class Dealer(Pattern):
    """Messages go out to the peers in turn and come in from all in turn."""

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.inlet = ConflateInlet(readable) if options.conflate else Inlet(readable)
        self.outlet = RoundRobin(writable, options.send_hwm, options.conflate, options.immediate)

    def greet(self, session: Session) -> None:
        if self.options.probe_router:
            session.peer.send_parts([b""])


class Router(Pattern):
    """Each peer has an identity; it stands before what the peer sends and names whom a message goes to."""

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.inlet = RouterInlet(readable)
        self.outlet: Addressed = Addressed(writable, options.send_hwm, options.router_mandatory)
        # The next name for a peer that has none, begun at random as in libzmq: what a worker still holds for a peer of
        # an earlier socket is not to reach a stranger of this one.
        self._serial = int.from_bytes(os.urandom(4), "big")
        # Peers whose identity another peer has: they wait, unread, until it is free.
        self._waiting: list[Session] = []
        self._nobody = Gate()

    def connected(self, session: Session) -> None:
        identity = session.identity
        if not identity:
            identity = self._free_identity()
        while (holder := self.outlet.table.get(identity)) is not None:
            if not self.options.router_handover:
                self._waiting.append(session)
                session.peer.hand_to(Inlet(self._nobody))
                return
            holder.session.end(None)
            # Where its own thread is to end it, that comes later; the name is free now.
            self.disconnected(holder.session)
        session.peer.identity = identity
        super().connected(session)

    def greet(self, session: Session) -> None:
        if self.options.probe_router:
            session.peer.send_parts([b""])

    def _free_identity(self) -> bytes:
        """RFC 28: a peer without identity gets one that no peer can choose (it starts with a zero byte)."""
        while True:
            identity = b"\0" + self._serial.to_bytes(4, "big")
            self._serial = (self._serial + 1) & 0xFFFFFFFF
            if identity not in self.outlet.table:
                return identity

    def disconnected(self, session: Session) -> None:
        if session in self._waiting:
            self._waiting.remove(session)
            return
        super().disconnected(session)
        for heir in self._waiting:
            if heir.identity == session.identity and heir.identity not in self.outlet.table:
                self._waiting.remove(heir)
                self.connected(heir)
                assert self.inlet is not None
                heir.peer.hand_to(self.inlet)
                break

    def reconfigure(self, options: Options) -> None:
        super().reconfigure(options)
        for session in tuple(self._waiting):
            self._tune(session)
        self.outlet.set_mandatory(options.router_mandatory)
