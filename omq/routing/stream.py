"""STREAM: plain TCP, with peers that do not speak ZMTP (zmq_socket(3), ZMQ_STREAM)."""

from __future__ import annotations

from omq._core.queues.recv_queue import RouterRecvQueue
from omq._core.queues.routed import StreamSendQueue
from omq._core.queues.wait_queue import WaitQueue
from omq.option_values import PEER_NOTICES
from omq.options import Options
from omq.routing.base import Pattern, RoutedSession
from omq.routing.dealer_router import FreshIdentities
from omq.types import SocketType


class Stream(Pattern):
    """Each connection has an id: the first part of a message names the sender of the bytes, or their destination."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.recv_queue = RouterRecvQueue(readable)
        self.send_queue: StreamSendQueue = StreamSendQueue(writable, options.send_hwm)
        self._identities = FreshIdentities()

    def connected(self, session: RoutedSession) -> None:
        taken = self.send_queue.table
        named = session.is_named and session.identity not in taken
        session.peer.identity = session.identity if named else self._identities.next(taken)
        super().connected(session)

    def notices(self, session: RoutedSession) -> frozenset[str]:
        return frozenset(PEER_NOTICES if session.options.stream_notify else ())

    def departed(self, session: RoutedSession) -> None:
        disconnected = not (session.accepted or session.redials)
        if session.peer.dismissed or disconnected:
            self._watched.discard(session)  # as in libzmq: the end of a peer that the user has closed is not reported
        super().departed(session)
