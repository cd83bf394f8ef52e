"""REQ and REP: a request, then its reply (RFC 28)."""

from __future__ import annotations

from omq._core.queues.recv_queue import ReplyRecvQueue, RequestRecvQueue
from omq._core.queues.routed import ReplySendQueue
from omq._core.queues.send_queue import RequestSendQueue
from omq._core.queues.wait_queue import WaitQueue
from omq.options import Options
from omq.routing.base import Pattern, RoutedSession
from omq.types import SocketType


class Request(Pattern):
    """Requests go to the peers in turn; only the peer that got a request can reply."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.recv_queue: RequestRecvQueue = RequestRecvQueue(readable)
        self.send_queue: RequestSendQueue = RequestSendQueue(
            writable,
            options.send_hwm,
            self.recv_queue,
            options.immediate,
        )
        self._configure(options)

    def _configure(self, options: Options) -> None:
        """Applies the options that may change in use."""
        self.send_queue.configure(relaxed=options.req_relaxed, correlate=options.req_correlate)

    def reconfigure(self, options: Options) -> None:
        super().reconfigure(options)
        self._configure(options)

    def greet(self, session: RoutedSession) -> None:
        if self.options.probe_router:
            session.peer.send_parts([b""])

    def disconnected(self, session: RoutedSession) -> None:
        super().disconnected(session)
        # No other peer can answer the request that this one got: the next request may go out.
        self.recv_queue.forget(session.peer)


class Reply(Pattern):
    """Requests are received from all peers in turn; each reply goes back the way of its request."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.recv_queue = ReplyRecvQueue(readable)
        self.send_queue = ReplySendQueue(writable, options.send_hwm, self.recv_queue)
