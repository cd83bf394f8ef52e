"""SERVER and PEER: each peer has a number, its routing id (RFC 41, RFC 51)."""

from __future__ import annotations

import os
from typing import Final

from omq._core.queues.peer import RecvQueue
from omq._core.queues.routed import RoutedSendQueue
from omq._core.queues.wait_queue import WaitQueue
from omq.options import Options
from omq.routing.base import Pattern, RoutedSession
from omq.types import SocketType

_NUMBERS: Final = 1 << 32  # a routing id is an unsigned number of 32 bits, and not 0 (RFC 41)


class Server(Pattern):
    """Messages carry the number of their sender, and are sent to the peer with a given number."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.recv_queue = RecvQueue(readable)
        # RFC 41: SHALL NOT discard messages for a peer that is full; one that is unknown or gone is an error.
        self.send_queue: RoutedSendQueue = RoutedSendQueue(writable, options.send_hwm, True)
        # The next number. It starts at random, as in libzmq: a late answer to a peer of an earlier socket must not
        # reach another peer of this one.
        self._number = int.from_bytes(os.urandom(4), "big")

    def connected(self, session: RoutedSession) -> None:
        session.peer.routing_id = self._free_number()
        super().connected(session)

    def _free_number(self) -> int:
        """Returns a number for one more peer; a number is used again only after all others."""
        while True:
            number, self._number = self._number, (self._number + 1) % _NUMBERS
            if number and number not in self.send_queue.table:
                return number
