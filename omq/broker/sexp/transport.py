"""A TCP transport that knows exactly how many bytes the kernel has taken.

A message counts as delivered when the kernel has taken it. A transport of asyncio does not report that when its
connection breaks, so this one writes to the socket itself. The writes of one turn of the loop are sent in one call,
without copying.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from itertools import islice
from typing import Final, Protocol

from omq.unpatched import socket

MAX_READ_BYTES: Final = 32 << 10  # of one read, whose commands are executed in one turn
_MIN_READ_BYTES: Final = 512
_TIME_SLICE_S: Final = 0.002  # of executing one read; after a longer one the next read is half as large
_MAX_WRITE_BYTES: Final = 1 << 20  # in one turn
_MAX_PIECES: Final = 256  # in one call


class TransportOwner(Protocol):
    """The callbacks of a transport. None is called after `connection_lost`."""

    def data_received(self, data: bytes) -> None:
        """Handles bytes of the peer."""

    def eof_received(self) -> None:
        """Handles the end of the peer's bytes."""

    def data_written(self) -> None:
        """Reacts to the kernel having taken more bytes."""

    def connection_lost(self) -> None:
        """Handles the end of the connection; bytes that the kernel has not taken are lost."""


class SexpTransport:
    """A transport over a connected socket, which it owns.

    Args:
        loop: The event loop.
        sock: A connected, non-blocking socket.
        owner: Receives the callbacks.

    Attributes:
        queued: The number of bytes that were queued so far.
        written: The number of them that the kernel has taken.
        open: The transport is not closed.
    """

    __slots__ = (
        "_flushing",
        "_loop",
        "_owner",
        "_pieces",
        "_read_size",
        "_reading",
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
        self._read_size = MAX_READ_BYTES
        self._owner = owner
        self._pieces: deque[bytes | memoryview] = deque()
        self._flushing: asyncio.Handle | None = None  # a scheduled flush
        self._timer: asyncio.Handle | None = None  # closes the transport after `finish`
        self._reading = False
        self._writing = False  # the loop watches for the socket to become writable
        self.queued = 0
        self.written = 0
        self.open = True

    @property
    def unsent(self) -> int:
        """The number of bytes that wait for the kernel."""
        return self.queued - self.written

    @property
    def reading(self) -> bool:
        """Returns whether the transport reads from its peer."""
        return self._reading

    def write(self, data: bytes) -> None:
        """Queues bytes, which are sent in the next turn of the loop or earlier."""
        if not self.open or not data:  # `_advance` never removes an empty piece
            return
        self._pieces.append(data)
        self.queued += len(data)
        if self._flushing is None and not self._writing:
            self._flushing = self._loop.call_soon(self.flush)

    def drop(self) -> None:
        """Drops the queued bytes, except the rest of a piece that was sent in part."""
        kept = self._pieces[0] if self._pieces and isinstance(self._pieces[0], memoryview) else None
        self._pieces.clear()
        if kept is not None:
            self._pieces.append(kept)
        self.queued = self.written + (0 if kept is None else len(kept))

    def read(self, on: bool) -> None:
        """Starts or stops reading. It has no effect after `finish`, which reads until the end."""
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
        """Closes the connection at once, and calls `connection_lost`. Idempotent."""
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
        """Shuts down the sending side, and closes once the peer has closed its side, or after *timeout* seconds.

        A socket that is closed with unread bytes resets the connection, and the peer may lose the last bytes.
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
            data = self._sock.recv(self._read_size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if self._timer is not None:  # after `finish`: bytes are dropped
            if not data:
                self.close()
        elif data:
            began = time.perf_counter()
            self._owner.data_received(data)
            elapsed_s = time.perf_counter() - began
            # Thousands of small commands take longer than one message of the same size.
            if elapsed_s > _TIME_SLICE_S:
                self._read_size = max(_MIN_READ_BYTES, self._read_size // 2)
            elif elapsed_s < _TIME_SLICE_S / 4:
                self._read_size = min(MAX_READ_BYTES, self._read_size * 2)
        else:
            self._read(False)
            self._owner.eof_received()

    def flush(self) -> None:
        """Writes queued bytes to the socket now, as many as the kernel takes."""
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


def set_socket_options(sock: socket.socket) -> None:
    """Sets the options of an accepted socket."""
    sock.setblocking(False)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
