"""The reasons that a socket gives for the end of its connections: the name of an error, through its monitor.

The oracles here judge bytes by the RFCs' grammar alone, so that a mistake in omq's parsers cannot hide.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from omq import errors
from omq.event import Event, EventKind, HandshakeFailure
from tests.support.raw_zmtp import COMMAND, LONG, header

EVENT_TIMEOUT_S = 10.0  # seconds for any one event
COMMAND_LIMIT = 65 * 1024  # bytes of a handshake's command that are waited for

#: The error behind each category. A peer that is "refused" reports it itself, and no narrower name fits.
NAMES: dict[HandshakeFailure, type[BaseException] | tuple[type[BaseException], ...]] = {
    HandshakeFailure.MECHANISM: errors.MechanismError,
    HandshakeFailure.PROTOCOL: errors.RemoteProtocolError,
    HandshakeFailure.AUTHENTICATION: errors.AuthenticationError,
    HandshakeFailure.REFUSED: errors.HandshakeError,
    HandshakeFailure.TIMEOUT: errors.HandshakeTimeout,
    HandshakeFailure.HUNG_UP: (EOFError, ConnectionError),
}


class DisconnectReasons:
    """The ends of a socket's handshakes and connections, one after another."""

    def __init__(self, monitor: Any) -> None:
        self._monitor = monitor

    async def _next(self, *kinds: EventKind) -> Event:
        async with asyncio.timeout(EVENT_TIMEOUT_S):
            while True:
                event: Event = await self._monitor.recv()
                assert event.kind is not EventKind.MISSED
                if event.kind in kinds:
                    return event

    async def failed(self, category: HandshakeFailure, reason: str = "") -> Event:
        """The next handshake that ends has failed like this, and its connection is over."""
        event = await self._next(EventKind.HANDSHAKE_SUCCEEDED, EventKind.HANDSHAKE_FAILED)
        assert event.kind is EventKind.HANDSHAKE_FAILED, event
        assert event.category is category, event
        assert isinstance(event.error, NAMES[category]), event
        assert re.search(reason, event.reason), event
        gone = await self._next(*EventKind)
        assert (gone.kind, gone.error) == (EventKind.DISCONNECTED, event.error)
        return event

    async def succeeded(self) -> Event:
        """The next handshake that ends has succeeded."""
        event = await self._next(EventKind.HANDSHAKE_SUCCEEDED, EventKind.HANDSHAKE_FAILED)
        assert event.kind is EventKind.HANDSHAKE_SUCCEEDED, event
        return event

    async def lost(self, reason: str, error: type[BaseException] = errors.RemoteProtocolError) -> Event:
        """The next connection that ends had finished its handshake, and ended by this error."""
        event = await self._next(EventKind.DISCONNECTED)
        assert event.peer is not None, event
        assert isinstance(event.error, error), event
        assert re.search(reason, event.reason), event
        return event


@asynccontextmanager
async def verdicts(socket: Any) -> AsyncIterator[DisconnectReasons]:
    """Those of a socket from now on."""
    async with socket.monitor(limit=100_000) as monitor:
        yield DisconnectReasons(monitor)


def ends_by_itself(sent: bytes) -> bool:
    """Returns whether spoilt bytes of one command end a handshake by RFC 23's framing; if not, omq waits for more."""
    if not sent:
        return False
    if sent[0] & ~(LONG | COMMAND) or not sent[0] & COMMAND:
        return True
    head = 9 if sent[0] & LONG else 2
    if len(sent) < head:
        return False
    size = int.from_bytes(sent[1:head], "big")
    return size > COMMAND_LIMIT or len(sent) >= head + size


def judged(sent: bytes) -> HandshakeFailure:
    """Returns how a handshake ends when a peer sends this spoilt command, and hangs up."""
    return HandshakeFailure.PROTOCOL if ends_by_itself(sent) else HandshakeFailure.HUNG_UP


def body_of(sent: bytes) -> bytes:
    """The body of a command's frame."""
    return sent[9:] if sent[0] & LONG else sent[2:]


def flipped(sent: bytes) -> Iterator[bytes]:
    """Each byte changed by one bit."""
    for at in range(len(sent)):
        yield sent[:at] + bytes([sent[at] ^ 1 << at % 8]) + sent[at + 1 :]


def cut(sent: bytes) -> Iterator[bytes]:
    """The body at each length, in a frame that announces it; and the frame at each length."""
    body = body_of(sent)
    name = 1 + body[0]
    for size in range(name, len(body)):
        short = bytes((COMMAND, size)) if size < 256 else header(size, COMMAND)
        yield short + body[:size]
    for size in range(len(sent)):
        yield sent[:size]


def renamed(sent: bytes, spoilt: bytes, name: bytes) -> bool:
    """Returns whether they differ only in the case of a property's name, which means nothing (RFC 23, Metadata)."""
    at = sent.index(name)
    end = at + len(name)
    same = sent[:at] == spoilt[:at] and sent[end:] == spoilt[end:]
    return same and spoilt[at:end].lower() == name.lower()
