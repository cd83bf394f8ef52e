"""What every bare client reads with: large reads into one buffer, with whatever was not used yet in front."""

from __future__ import annotations

import socket
from collections.abc import Callable

ROOM = 1 << 20


class Inlet:
    """Bytes of a connection.

    Attributes:
        data: The buffer: its bytes up to `end` have arrived.
        end: Where they end.
    """

    def __init__(self, connection: socket.socket, room: int = ROOM) -> None:
        self._socket = connection
        self.data = bytearray(room)
        self.end = 0

    def more(self, used: int = 0) -> None:
        """Waits for more bytes; those before `used` are forgotten, the rest starts at 0 then.

        Raises:
            ConnectionError: The server closed the connection.
        """
        left = self.end - used
        if used and left:
            self.data[:left] = self.data[used : self.end]
        if left > len(self.data) // 2:
            self.data.extend(bytes(len(self.data)))
        got = self._socket.recv_into(memoryview(self.data)[left:])
        if not got:
            raise ConnectionError(f"the server closed the connection: {bytes(self.data[:left])[-200:]!r}")
        self.end = left + got

    def text(self) -> bytes:
        """What is there, for messages of errors."""
        return bytes(self.data[: min(self.end, 500)])


def slide(count: int, depth: int, send: Callable[[int], None], acknowledged: Callable[[], int]) -> None:
    """Publishes through a window.

    Args:
        count: How many.
        depth: How many may wait for their acknowledgements.
        send: Sends so many, in one write where it can.
        acknowledged: Waits for acknowledgements, gives how many came.
    """
    sent = done = 0
    while done < count:
        if free := min(depth - (sent - done), count - sent):
            send(free)
            sent += free
        done += acknowledged()


def slide_batches(count: int, depth: int, send: Callable[[int], None], acknowledged: Callable[[], int]) -> None:
    """As `slide`, in batches of half a window: two are under way."""
    sent = done = 0
    while done < count:
        while sent < count and sent - done + (step := min(max(1, depth // 2), count - sent)) <= depth:
            send(step)
            sent += step
        done += acknowledged()
