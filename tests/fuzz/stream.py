"""Traffic into a bare connection of the core, without a loop: in the clear, or sealed below the mutation."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator

from omq._core.link.connection import Connection
from omq._core.link.poller import Poller
from omq._core.wire.codec import Codec
from omq._core.wire.crypto import CurveCipher
from omq._core.wire.framing import encode_frame
from omq._core.wire.pool import Pool
from omq.errors import RemoteProtocolError
from omq.zmtp.command import parse_traffic_command

MAX_SIZE, MAX_PARTS = 100_000, 10  # limits, so that they are hit
PIECE = 50_000  # octets that the socket pair takes at once


class Owner:
    """The engine's callbacks; it ends the connection as the engine does."""

    peer: Connection
    over = False

    def on_command(self, body: bytes) -> None:
        try:
            parse_traffic_command(body)
        except RemoteProtocolError:
            self.end()

    def on_message(self, parts: list[bytes]) -> None:
        assert len(parts) <= MAX_PARTS
        assert all(len(part) <= MAX_SIZE for part in parts)

    def on_lost(self, reason: Exception | None) -> None:
        # The other end is closed over what it has not read: a reset.
        assert reason is None or isinstance(reason, (RemoteProtocolError, ConnectionResetError)), reason
        self.end()

    def end(self) -> None:
        self.over = True
        self.peer.close()


class Line:
    """A socket pair and an epoll set that serve all inputs: to make them takes longer than to parse."""

    def __init__(self) -> None:
        self.near, self.far = _pair()
        self.poller = Poller(None)


POOL, LINES = Pool(), list[Line]()


Frames = Callable[[bytes], bytes]


def feed_stream(data: bytes, codec: Codec | None, frames: Frames, *, framed: bool = False) -> None:
    """Gives bytes to a connection; the first selects how.

    Bits 1 to 5 give the cut: what comes before came with the handshake. With bit 0, or where *framed*, the rest
    goes through *frames*. With bits 6 and 7 the connection has its own sockets, and the peer hangs up.
    """
    how = data[0] if data else 0
    wire = data[1:]
    if framed or how & 1:
        wire = frames(wire)
    cut = (how >> 1 & 0x1F) * 37
    if how & 0xC0 == 0xC0:
        near, far = _pair()
        poller = Poller(None)
        try:
            _receive(near.detach(), far, poller, wire, cut, codec, hang_up=True)
        finally:
            far.close()
            poller.close()
        return
    if not LINES:
        LINES.append(Line())
    line = LINES[0]
    try:
        _receive(os.dup(line.near.fileno()), line.far, line.poller, wire, cut, codec)
    finally:
        _drain(line.far)  # answers
        if len(wire) > cut:
            _drain(line.near)


def _receive(
    fd: int, far: socket.socket, poller: Poller, wire: bytes, cut: int, codec: Codec | None, hang_up: bool = False
) -> None:
    owner = Owner()
    peer = owner.peer = Connection(owner, fd, poller, POOL, None, 0, MAX_SIZE, MAX_PARTS, None, codec)
    try:
        peer.start(wire[:cut])
        for at in range(cut, len(wire), PIECE):
            if owner.over:
                break
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                far.send(wire[at : at + PIECE])
            poller.dispatch()
        if hang_up:
            far.close()
            poller.dispatch()
    finally:
        peer.close()


def _drain(end: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while end.recv(1 << 18):
            pass


def _pair() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


def pieces(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Flags, a length, and as much of a payload as there is, again and again; up to a bound."""
    at = total = 0
    while at + 3 <= len(data) and total < 4 * MAX_SIZE:
        size = int.from_bytes(data[at + 1 : at + 3], "big")
        yield data[at], size, data[at + 3 : at + 3 + size]
        at += 3 + size
        total += size


def plain_frames(data: bytes) -> bytes:
    """Frames in the clear."""
    return b"".join(
        encode_frame(payload.ljust(size, b"\0"), more=bool(flags & 1), command=bool(flags & 4))
        for flags, size, payload in pieces(data)
    )


def sealed_frames(data: bytes, cipher: CurveCipher) -> bytes:
    """Frames with what the cipher has sealed, and others."""
    return b"".join(
        encode_frame(sealed(cipher, flags, size, payload), command=bool(flags & (1 if flags & 0x80 else 0x08)))
        for flags, size, payload in pieces(data)
    )


def sealed(cipher: CurveCipher, flags: int, size: int, payload: bytes) -> bytes:
    """A payload in its box, an octet of which is missing with bit 6; without one with bit 7."""
    if flags & 0x80:
        return payload
    body = cipher.seal(payload.ljust(size, b"\0"), flags & 7)
    assert body is not None
    return body[: flags & 0x3F] + body[1 + (flags & 0x3F) :] if flags & 0x40 else body
