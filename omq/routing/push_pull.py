"""PUSH and PULL: a pipeline (RFC 30)."""

from __future__ import annotations

from omq._core.queues.peer import RecvQueue
from omq._core.queues.recv_queue import ConflatedRecvQueue
from omq._core.queues.send_queue import RoundRobin
from omq._core.queues.wait_queue import WaitQueue
from omq.options import Options
from omq.routing.base import Pattern
from omq.types import SocketType


class Push(Pattern):
    """Each message goes to one of the peers that can take it, in turn."""

    queues_messages = False

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.send_queue = RoundRobin(writable, options.send_hwm, options.conflate, options.immediate)


class Pull(Pattern):
    """Messages are received from all peers in turn."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.recv_queue = ConflatedRecvQueue(readable) if options.conflate else RecvQueue(readable)
