"""Decodes one direction of a captured ZMTP connection (RFC 23, RFC 37), sans-I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

GREETING_BYTES: Final = 64
SIGNATURE_START: Final = 0xFF
SIGNATURE_END: Final = 0x7F
VERSION_AT: Final = 10
MECHANISM: Final = slice(12, 32)
AS_SERVER_AT: Final = 32
MORE, LONG, COMMAND = 1, 2, 4  # flags of a frame
ENCRYPTED: Final = b"\x07MESSAGE"
ENCRYPTION_BYTES: Final = len(ENCRYPTED) + 8 + 16 + 1  # the name, the nonce, the authenticator, the flags
TTL_BYTES: Final = 2


@dataclass(frozen=True)
class ZmtpItem:
    """A decoded unit.

    Attributes:
        kind: `greeting`, `command`, `message`, `encrypted` (a message) or `invalid`: nothing after that is decoded.
        name: The name of a command.
        values: The values of a greeting or a command, as text.
        parts: The parts of a message.
        size: Bytes of all parts; of an encrypted message those of its content.
    """

    kind: str
    name: str = ""
    values: dict[str, str] = field(default_factory=dict)
    parts: tuple[bytes, ...] = ()
    size: int = 0


class ZmtpDecoder:
    """Decodes the bytes of one direction.

    Attributes:
        ended: Whether nothing more is decoded: the bytes are not ZMTP 3, or not valid.
    """

    def __init__(self) -> None:
        self.ended = False
        self._buffer = bytearray()
        self._mechanism = ""
        self._parts: list[bytes] = []

    @property
    def is_zmtp(self) -> bool:
        """Returns whether a greeting was decoded."""
        return bool(self._mechanism)

    @property
    def pending(self) -> int:
        """Returns the bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[ZmtpItem]:
        """Yields what is complete with these bytes."""
        self._buffer += data
        if not self._mechanism and not self.ended:
            yield from self._greeting()
        while self._mechanism and not self.ended and (frame := self._frame()) is not None:
            yield from self._items(*frame)
        if self.ended:
            self._buffer.clear()

    def _greeting(self) -> Iterator[ZmtpItem]:
        head = self._buffer
        if (head and head[0] != SIGNATURE_START) or (len(head) >= VERSION_AT and head[VERSION_AT - 1] != SIGNATURE_END):
            self.ended = True
        elif len(head) > VERSION_AT and head[VERSION_AT] < 3:
            self.ended = True
            yield ZmtpItem("invalid", values={"reason": f"ZMTP {head[VERSION_AT]} is not decoded"})
        elif len(head) >= GREETING_BYTES:
            self._mechanism = bytes(head[MECHANISM]).rstrip(b"\0").decode("ascii", "replace") or "?"
            version = f"{head[VERSION_AT]}.{head[VERSION_AT + 1]}"
            values = {"version": version, "mechanism": self._mechanism}
            if head[AS_SERVER_AT]:
                values["as_server"] = "yes"
            del head[:GREETING_BYTES]
            yield ZmtpItem("greeting", values=values)

    def _frame(self) -> tuple[int, bytes] | None:
        """Takes the next frame: its flags and its body."""
        head = self._buffer
        if not head:
            return None
        flags = head[0]
        width = 9 if flags & LONG else 2
        if len(head) < width:
            return None
        size = struct.unpack_from(">Q", head, 1)[0] if flags & LONG else head[1]
        if len(head) < width + size and not flags & ~(MORE | LONG | COMMAND):
            return None
        body = bytes(head[width : width + size])
        del head[: width + size]
        return flags, body

    def _items(self, flags: int, body: bytes) -> Iterator[ZmtpItem]:
        if flags & ~(MORE | LONG | COMMAND) or (flags & COMMAND and flags & MORE):
            self.ended = True
            yield ZmtpItem("invalid", values={"reason": f"a frame has the flags {flags:#04x}"})
        elif body.startswith(ENCRYPTED) and self._mechanism == "CURVE":
            yield ZmtpItem("encrypted", size=max(0, len(body) - ENCRYPTION_BYTES))
        elif flags & COMMAND:
            yield self._command(body)
        else:
            self._parts.append(body)
            if not flags & MORE:
                parts, self._parts = tuple(self._parts), []
                yield ZmtpItem("message", parts=parts, size=sum(map(len, parts)))

    def _command(self, body: bytes) -> ZmtpItem:
        length = body[0] if body else 0
        name, data = body[1 : 1 + length], body[1 + length :]
        if not name:
            self.ended = True
            return ZmtpItem("invalid", values={"reason": "a command has no name"})
        return ZmtpItem("command", name.decode("ascii", "replace"), self._values(name, data), size=len(data))

    def _values(self, name: bytes, data: bytes) -> dict[str, str]:
        if self._mechanism == "CURVE" and name in (b"HELLO", b"WELCOME", b"INITIATE", b"READY"):
            return {}  # what it has is encrypted
        match name:
            case b"READY" | b"INITIATE":
                return {shown(key): shown(value) for key, value in properties(data)}
            case b"HELLO" if self._mechanism == "PLAIN" and data:
                return {"username": shown(data[1 : 1 + data[0]]), "password": "***"}
            case b"ERROR" if data:
                return {"reason": shown(data[1 : 1 + data[0]])}
            case b"SUBSCRIBE" | b"CANCEL" | b"JOIN" | b"LEAVE":
                return {"prefix" if name in (b"SUBSCRIBE", b"CANCEL") else "group": shown(data)}
            case b"PING" if len(data) >= TTL_BYTES:
                return {"ttl": f"{int.from_bytes(data[:TTL_BYTES], 'big') / 10:g}"}
        return {}


def properties(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the names and values of metadata (RFC 37), up to the first that is not complete."""
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        size = int.from_bytes(data[at : at + 4], "big")
        value = data[at + 4 : at + 4 + size]
        if len(value) < size or at + 4 > len(data):
            return
        yield name, value
        at += 4 + size


def shown(data: bytes) -> str:
    """Returns bytes as text, with escapes for what is not UTF-8."""
    return data.decode("utf-8", "backslashreplace")
