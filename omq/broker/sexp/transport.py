"""One tcp connection on an event loop, where it is known to the byte what the kernel has taken.

A transport of asyncio forgets what it had not written when its connection breaks; here a message counts as delivered
when the kernel has it, so the socket is written to directly. What is written in one turn of the loop goes out in one
call, from where it stands: nothing is copied.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from itertools import islice
from typing import Final, Protocol

from omq.unpatched import socket

MAX_READ_BYTES: Final = 32 << 10  # of one read: the commands in it are one connection's turn
_MIN_READ_BYTES: Final = 512
_TIME_SLICE_S: Final = 0.002  # of a turn after which the next one is half as large
_MAX_WRITE_BYTES: Final = 1 << 20  # written before others have their turn
_MAX_PIECES: Final = 256  # pieces of one call


class TransportOwner(Protocol):
    """The callbacks of a transport. None is called after `connection_lost`."""

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the peer."""

    def eof_received(self) -> None:
        """The peer sends nothing more."""

    def data_written(self) -> None:
        """Notes that the kernel has taken more of what was sent."""

    def connection_lost(self) -> None:
        """The connection is over; what was not taken never will be."""


class SexpTransport:
    """A connected socket, which it owns.

    Args:
        loop: Whose loop.
        sock: Connected, and not blocking.
        owner: Its callbacks are called.

    Attributes:
        queued: Bytes that were given to be sent.
        written: How many of them the kernel has taken.
        open: Whether it is not closed.
    """

    __slots__ = (
        "_flushing",
        "_loop",
        "_owner",
        "_pieces",
        "_reading",
        "_size",
        "_sock",
        "_timer",
        "_writing",
        "open",
        "queued",
        "written",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, owner: TransportOwner) -> None:
        self._loop = loop
        self._sock = sock
        self._size = MAX_READ_BYTES
        self._owner = owner
        self._pieces: deque[bytes | memoryview] = deque()
        self._flushing: asyncio.Handle | None = None  # a flush at the end of this turn
        self._timer: asyncio.Handle | None = None  # the end of the peer's time to end
        self._reading = False
        self._writing = False  # the loop reports when the kernel takes more
        self.queued = 0
        self.written = 0
        self.open = True

    @property
    def unsent(self) -> int:
        """The bytes that wait for the kernel."""
        return self.queued - self.written

    @property
    def reading(self) -> bool:
        """Returns whether the transport reads from its peer."""
        return self._reading

    def write(self, data: bytes) -> None:
        """Sends bytes, at the end of this turn at the latest."""
        if not self.open or not data:  # the kernel never takes an empty piece
            return
        self._pieces.append(data)
        self.queued += len(data)
        if self._flushing is None and not self._writing:
            self._flushing = self._loop.call_soon(self.flush)

    def drop(self) -> None:
        """Forgets what waits, but for the piece that has gone out in part."""
        kept = self._pieces[0] if self._pieces and isinstance(self._pieces[0], memoryview) else None
        self._pieces.clear()
        if kept is not None:
            self._pieces.append(kept)
        self.queued = self.written + (0 if kept is None else len(kept))

    def read(self, on: bool) -> None:
        """Listens to the peer, or not. A transport that has finished listens by itself."""
        if self.open and self._timer is None:
            self._read(on)

    def _read(self, on: bool) -> None:
        if on is not self._reading:
            self._reading = on
            if on:
                self._loop.add_reader(self._sock, self._readable)
            else:
                self._loop.remove_reader(self._sock)

    def close(self) -> None:
        """Ends the connection at once, and calls `connection_lost`. Idempotent."""
        if not self.open:
            return
        self._read(False)
        self.open = False
        if self._writing:
            self._loop.remove_writer(self._sock)
        for handle in (self._flushing, self._timer):
            if handle is not None:
                handle.cancel()
        self._sock.close()
        self._pieces.clear()
        self._owner.connection_lost()

    def finish(self, timeout: float) -> None:
        """Shuts the sending side down, and closes once the peer does so as well, or the time is over.

        A socket that is closed while bytes of the peer lie unread in it resets the connection, and the peer might
        never see what it was sent last.
        """
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self._read(True)
        self._timer = self._loop.call_later(timeout, self.close)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(self._size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if self._timer is not None:  # finished: what comes is dropped
            if not data:
                self.close()
        elif data:
            began = time.perf_counter()
            self._owner.data_received(data)
            elapsed_s = time.perf_counter() - began
            # Thousands of small commands are more work than as many bytes of one message.
            if elapsed_s > _TIME_SLICE_S:
                self._size = max(_MIN_READ_BYTES, self._size // 2)
            elif elapsed_s < _TIME_SLICE_S / 4:
                self._size = min(MAX_READ_BYTES, self._size * 2)
        else:
            self._read(False)
            self._owner.eof_received()

    def flush(self) -> None:
        """Gives the kernel what it takes, now."""
        if not self.open:
            return
        if self._flushing is not None:
            self._flushing.cancel()
        self._flushing = None
        limit = self.written + _MAX_WRITE_BYTES
        before = self.written
        pieces = self._pieces
        try:
            while pieces and self.written < limit:
                self._advance(self._sock.sendmsg(islice(pieces, _MAX_PIECES)))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
            return
        if bool(pieces) is not self._writing:
            self._writing = bool(pieces)
            if pieces:
                self._loop.add_writer(self._sock, self.flush)
            else:
                self._loop.remove_writer(self._sock)
        if self.written != before:
            self._owner.data_written()

    def _advance(self, count: int) -> None:
        self.written += count
        pieces = self._pieces
        while count:
            piece = pieces[0]
            if len(piece) > count:
                pieces[0] = memoryview(piece)[count:]
                return
            count -= len(piece)
            pieces.popleft()


def set_up(sock: socket.socket) -> None:
    """Readies an accepted socket."""
    sock.setblocking(False)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
