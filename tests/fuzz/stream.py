"""Traffic into a bare connection of the core, without a loop: in the clear, or sealed below the mutation."""

from __future__ import annotations

import contextlib
import socket

from omq._core.codec import encode_frame
from omq._core.connection import Connection
from omq._core.crypto import Secret, Session
from omq._core.poller import Poller
from omq._core.pool import Pool
from omq.errors import RemoteProtocolError
from omq.zmtp.command import parse_traffic_command

MAX_SIZE, MAX_PARTS = 100_000, 10  # limits, so that they are hit


class Owner:
    """What the engine would be told; it ends the connection as the engine does."""

    peer: Connection

    def __init__(self) -> None:
        self.bytes = 0

    def on_command(self, body: bytes) -> None:
        try:
            parse_traffic_command(body)
        except RemoteProtocolError:
            self.peer.close()

    def on_message(self, parts: list[bytes]) -> None:
        assert len(parts) <= MAX_PARTS
        assert all(len(part) <= MAX_SIZE for part in parts)

    def on_lost(self, reason: Exception | None) -> None:
        assert reason is None or isinstance(reason, RemoteProtocolError), reason
        self.peer.close()


POOL = Pool()


def feed_stream(data: bytes, key: Secret | None) -> None:
    """Gives bytes to a connection in pieces; with a key they are taken for flags, lengths and payloads to be sealed."""
    wire = data[1:] if key is None else _seal(data[1:], Session(key, False, 2, 1))
    cut = data[0] * 37 if data else 0
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    poller = Poller(None)
    owner = Owner()
    cipher = None if key is None else Session(key, True, 1, 2)
    owner.peer = Connection(owner, near.detach(), poller, POOL, None, 0, MAX_SIZE, MAX_PARTS, None, cipher)
    try:
        owner.peer.start(wire[:cut])
        for at in range(cut, len(wire), 50_000):
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                far.send(wire[at : at + 50_000])
            poller.dispatch()
    finally:
        far.close()
        owner.peer.close()
        poller.close()


def _seal(data: bytes, session: Session) -> bytes:
    wire = b""
    at = 0
    while at + 3 <= len(data):
        flags, size = data[at], int.from_bytes(data[at + 1 : at + 3], "big")
        if flags & 0x80:
            wire += encode_frame(data[at + 3 : at + 3 + size], command=bool(flags & 1))
        else:
            body = session.seal(data[at + 3 : at + 3 + size].ljust(size, b"\0"), flags & 7)
            assert body is not None
            if flags & 0x40:
                body = body[: flags & 0x3F] + body[1 + (flags & 0x3F) :]
            wire += encode_frame(body, command=bool(flags & 0x08))
        at += 3 + size
    return wire
