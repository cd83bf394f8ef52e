"""DEALER and ROUTER: the asynchronous halves of request and reply (RFC 28)."""

from __future__ import annotations

import os
from collections.abc import Container
from weakref import WeakValueDictionary

from omq._core.queues.peer import RecvQueue
from omq._core.queues.recv_queue import ConflatedRecvQueue, RouterRecvQueue
from omq._core.queues.routed import RoutedSendQueue
from omq._core.queues.send_queue import RoundRobin
from omq._core.queues.wait_queue import WaitQueue
from omq.options import Options
from omq.routing.base import Pattern, RoutedSession
from omq.types import SocketType


class IdentityOrigin:
    """Identifies all peers that have had one identity, to keep their messages in order."""

    __slots__ = ("__weakref__",)


class Dealer(Pattern):
    """Messages go to the peers in turn, and are received from all in turn."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.recv_queue = ConflatedRecvQueue(readable) if options.conflate else RecvQueue(readable)
        self.send_queue = RoundRobin(writable, options.send_hwm, options.conflate, options.immediate)

    def greet(self, session: RoutedSession) -> None:
        super().greet(session)
        if self.options.probe_router:
            session.peer.send_parts([b""])


class FreshIdentities:
    """Generates identities for peers without one: five bytes that begin with a zero (RFC 28)."""

    def __init__(self) -> None:
        # The number in the next one. It starts at random, as in libzmq: a late answer to a peer of an earlier socket
        # must not reach another peer of this one.
        self._serial = int.from_bytes(os.urandom(4), "big")

    def next(self, taken: Container[bytes | int]) -> bytes:
        """Returns an identity that is not *taken*."""
        while True:
            identity = b"\0" + self._serial.to_bytes(4, "big")
            self._serial = (self._serial + 1) & 0xFFFFFFFF
            if identity not in taken:
                return identity


class Router(Pattern):
    """Each peer has an identity: the first part of a message names its sender, or its destination."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.recv_queue = RouterRecvQueue(readable)
        self.send_queue: RoutedSendQueue = RoutedSendQueue(writable, options.send_hwm, options.router_mandatory)
        self._identities = FreshIdentities()
        # Peers whose identity is in use by another peer: they wait, unread, until it is free.
        self._waiting: list[RoutedSession] = []
        self._no_waiters = WaitQueue()
        # By identity, while messages of its last peer have not been received.
        self._origins: WeakValueDictionary[bytes, IdentityOrigin] = WeakValueDictionary()
        # Peers that have left routing, and whose end was not reported to the user yet, by identity.
        self._ending: dict[bytes, RoutedSession] = {}

    def connected(self, session: RoutedSession) -> None:
        identity = b"" if self.options.router_rename and not session.is_named else session.identity
        if not identity:
            identity = self._identities.next(self.send_queue.table)
        while (holder := self.send_queue.table.get(identity)) is not None:
            if not self.options.router_handover:
                self._waiting.append(session)
                session.peer.hand_to(RecvQueue(self._no_waiters))
                return
            holder.session.end(None)
            # A session of another thread ends later; its identity is free now.
            self.disconnected(holder.session)
            self.departed(holder.session)
        session.peer.identity = identity
        former = self._ending.pop(identity, None)
        if former is not None:
            super().departed(former)
        origin = self._origins.get(identity)
        if origin is not None:
            # Its messages come after all messages of the peer that had the identity before.
            session.peer.origin = origin
        super().connected(session)

    def greet(self, session: RoutedSession) -> None:
        super().greet(session)
        if self.options.probe_router:
            session.peer.send_parts([b""])

    def disconnected(self, session: RoutedSession) -> None:
        if session in self._waiting:
            self._waiting.remove(session)
            session.peer.leave_queue()  # its own queue
            return
        if session in self.sessions:
            peer = session.peer
            if not isinstance(peer.origin, IdentityOrigin):
                peer.origin = IdentityOrigin()
            self._origins[peer.identity] = peer.origin
            if session in self._watched:
                self._ending[peer.identity] = session
        super().disconnected(session)
        if session not in self._watched:
            self._promote(session)

    def departed(self, session: RoutedSession) -> None:
        if session in self._watched:
            # The peer that takes its identity comes after the messages about its end.
            self._ending.pop(session.peer.identity, None)
            super().departed(session)
            self._promote(session)

    def _next_in_line(self, session: RoutedSession) -> RoutedSession | None:
        """Returns the peer that waits for the identity of one that has gone."""
        name = session.peer.identity  # may be one made here: another peer may have chosen the same
        return next((one for one in self._waiting if one.identity == name), None)

    def _promote(self, session: RoutedSession) -> None:
        """Gives the identity of a peer that has gone to a peer that waits for it."""
        successor = self._next_in_line(session)
        if successor is not None and successor.identity not in self.send_queue.table:
            self._waiting.remove(successor)
            self.connected(successor)
            assert self.recv_queue is not None
            successor.peer.hand_to(self.recv_queue)

    def reconfigure(self, options: Options) -> None:
        super().reconfigure(options)
        for session in tuple(self._waiting):
            self._tune(session)
        self.send_queue.set_mandatory(options.router_mandatory)
