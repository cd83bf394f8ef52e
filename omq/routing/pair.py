"""PAIR and CHANNEL: exactly two sockets (RFC 31, RFC 52)."""

from __future__ import annotations

from omq._core.queues.peer import RecvQueue
from omq._core.queues.send_queue import RoundRobin
from omq._core.queues.wait_queue import WaitQueue
from omq.options import Options
from omq.routing.base import Pattern
from omq.types import SocketType


class Pair(Pattern):
    """One peer at a time; a second one is refused until the first has gone."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.recv_queue = RecvQueue(readable)
        self.send_queue = RoundRobin(writable, options.send_hwm, False, options.immediate)

    def refusal(self, identity: bytes) -> str | None:
        # RFC 31, RFC 52: SHALL refuse a second connection. Only a peer that has finished its handshake counts.
        return f"a {self.socket_type.value} socket has a peer already" if self.sessions else None
