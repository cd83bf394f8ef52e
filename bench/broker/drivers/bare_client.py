"""The parts of every bare client: a buffer for large reads, and publishing through a window."""

from __future__ import annotations

import socket
from collections.abc import Callable

BUFFER_BYTES = 1 << 20


class ReceiveBuffer:
    """The received bytes of a connection. Unused ones stay in front of the next read.

    Attributes:
        data: The buffer: its bytes up to `end` have arrived.
        end: The number of bytes that have arrived.
    """

    def __init__(self, connection: socket.socket, room: int = BUFFER_BYTES) -> None:
        self._socket = connection
        self.data = bytearray(room)
        self.end = 0

    def more(self, used: int = 0) -> None:
        """Waits for more bytes; drops those before *used* and moves the rest to 0.

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
        """Returns the first bytes, for error messages."""
        return bytes(self.data[: min(self.end, 500)])


def slide(count: int, depth: int, send: Callable[[int], None], acknowledged: Callable[[], int]) -> None:
    """Publishes through a window.

    Args:
        count: The number of messages.
        depth: Messages in flight at most.
        send: Sends a number of messages, in one write if possible.
        acknowledged: Waits for acknowledgements and returns their number.
    """
    sent = done = 0
    while done < count:
        if free := min(depth - (sent - done), count - sent):
            send(free)
            sent += free
        done += acknowledged()


def slide_batches(count: int, depth: int, send: Callable[[int], None], acknowledged: Callable[[], int]) -> None:
    """Publishes like `slide`, in batches of half a window: two are in flight."""
    sent = done = 0
    while done < count:
        while sent < count and sent - done + (step := min(max(1, depth // 2), count - sent)) <= depth:
            send(step)
            sent += step
        done += acknowledged()
