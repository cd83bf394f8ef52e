"""PUSH and PULL: a pipeline (RFC 30)."""

from __future__ import annotations

from omq._core.queues.gate import Gate
from omq._core.queues.inlet import ConflateInlet
from omq._core.queues.outlet import RoundRobin
from omq._core.queues.peer import Inlet
from omq.options import Options
from omq.routing.base import Pattern
from omq.types import SocketType


class Push(Pattern):
    """Each message goes to one of the peers that can take it, in turn."""

    queues_messages = False

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.outlet = RoundRobin(writable, options.send_hwm, options.conflate, options.immediate)


class Pull(Pattern):
    """Messages are taken from all peers in turn."""

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.inlet = ConflateInlet(readable) if options.conflate else Inlet(readable)
