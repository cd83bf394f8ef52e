"""Commands of ZMTP, which are sent next to the messages (RFC 23, Commands; RFC 37, likewise).

A command is one frame whose body is a counted name and data. The functions named like a command return the whole frame;
`parse_command` splits a frame's body, and the `parse_...` functions read the data of each command. Errors of this side
raise `LocalProtocolError`, those of the peer `RemoteProtocolError`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple

from omq._core.wire.framing import encode_frame
from omq.errors import LocalProtocolError, RemoteProtocolError
from omq.types import MAX_GROUP_BYTES

MAX_CONTEXT_BYTES: Final = 16  # bytes of a PING's context (RFC 37, Connection Heartbeating)
MAX_TTL_DECISECONDS: Final = 0xFFFF  # tenths of a second (RFC 37, Connection Heartbeating)

#: The largest metadata, in bytes, that is accepted from a peer. Known peers send some 40 bytes and an identity of up to
#: 255; the rest is room for an application's own properties.
MAX_PROPERTIES_BYTES: Final = 64 * 1024

_MAX_CACHED_BYTES: Final = 256  # bytes: metadata up to this size are cached
_MAX_VALUE_BYTES: Final = 0x7FFF_FFFF  # bytes (RFC 23, The NULL Security Mechanism: INT32_MAX)
_COMMAND_NAME: Final = re.compile(rb"[A-Za-z]{1,255}")  # RFC 23, Formal Grammar: 1*255 ALPHA
_PROPERTY_NAME: Final = re.compile(rb"[A-Za-z0-9_.+-]{1,255}")  # RFC 23, The NULL Security Mechanism: name-char
_REASON: Final = re.compile(rb"[!-~]{0,255}")  # RFC 23, The NULL Security Mechanism: 0*255VCHAR


class Command(NamedTuple):
    """A command with any name, also one that this version does not know."""

    name: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """PING (RFC 37, Connection Heartbeating): requests a PONG with the same context."""

    name: ClassVar[bytes] = b"PING"
    ttl: int  # tenths of a second of silence after which this side may close the connection; 0: no limit
    context: bytes


@dataclass(frozen=True, slots=True)
class Pong:
    """PONG (RFC 37, Connection Heartbeating)."""

    name: ClassVar[bytes] = b"PONG"
    context: bytes


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE (RFC 37, The Publish-Subscribe Pattern): additive, not idempotent."""

    name: ClassVar[bytes] = b"SUBSCRIBE"
    prefix: bytes


@dataclass(frozen=True, slots=True)
class Cancel:
    """CANCEL (RFC 37, The Publish-Subscribe Pattern): undoes one SUBSCRIBE."""

    name: ClassVar[bytes] = b"CANCEL"
    prefix: bytes


@dataclass(frozen=True, slots=True)
class Join:
    """JOIN (RFC 37, The Radio-Dish Pattern)."""

    name: ClassVar[bytes] = b"JOIN"
    group: bytes


@dataclass(frozen=True, slots=True)
class Leave:
    """LEAVE (RFC 37, The Radio-Dish Pattern)."""

    name: ClassVar[bytes] = b"LEAVE"
    group: bytes


@dataclass(frozen=True, slots=True)
class Error:
    """ERROR (RFC 23, Error Handling): fatal; the reason is for the log and may hold any bytes."""

    name: ClassVar[bytes] = b"ERROR"
    reason: bytes


TrafficCommand = Ping | Pong | Subscribe | Cancel | Join | Leave | Error | Command


def quoted(data: bytes, limit: int = 100) -> str:
    """Returns bytes of a peer in a form fit for a log: escaped, quoted, and limited to about four times `limit`."""
    shown = repr(bytes(data[:limit]))[1:]
    return shown if len(data) <= limit else f"{shown}... ({len(data)} bytes)"


# --- frames ---------------------------------------------------------------------------------------


def encode_command(name: bytes, body: bytes = b"") -> bytes:
    """Encodes a command as a whole frame (RFC 23, Formal Grammar: command).

    Raises:
        LocalProtocolError: The name is not 1 to 255 letters.
    """
    if not _COMMAND_NAME.fullmatch(name):
        raise LocalProtocolError(f"{quoted(name)} cannot name a command (RFC 23, Formal Grammar)")
    return encode_frame(bytes((len(name),)) + name + body, command=True)


def parse_command(frame_body: bytes) -> Command:
    """Splits the body of a command frame (RFC 23, Formal Grammar: command-body).

    Raises:
        RemoteProtocolError: The name is missing, cut off, or not made of letters.
    """
    size = frame_body[0] if frame_body else 0
    name = frame_body[1 : 1 + size]
    if len(name) < size or not _COMMAND_NAME.fullmatch(name):
        raise RemoteProtocolError(
            f"a command without a proper name: {quoted(frame_body)} (RFC 23, Formal Grammar: command-name)"
        )
    return Command(name, frame_body[1 + size :])


def ready(properties: Mapping[bytes, bytes]) -> bytes:
    """Returns the READY frame with the metadata of this side (RFC 23, The NULL Security Mechanism)."""
    return _ready(tuple(properties.items()))


@lru_cache(maxsize=32)  # a socket sends the same to each of its peers
def _ready(properties: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return encode_command(b"READY", _encoded(properties))


def error(reason: bytes) -> bytes:
    """Returns the ERROR frame; the reason has no blanks, because the RFC allows none.

    Raises:
        LocalProtocolError: The reason is not 0 to 255 visible ASCII characters.
    """
    if not _REASON.fullmatch(reason):
        raise LocalProtocolError(f"{quoted(reason)} cannot be a reason (RFC 23, The NULL Security Mechanism)")
    return encode_command(b"ERROR", bytes((len(reason),)) + reason)


def subscribe(prefix: bytes) -> bytes:
    """Returns the SUBSCRIBE frame, for peers from ZMTP 3.1 on."""
    return encode_command(b"SUBSCRIBE", prefix)


def cancel(prefix: bytes) -> bytes:
    """Returns the CANCEL frame, for peers from ZMTP 3.1 on."""
    return encode_command(b"CANCEL", prefix)


def join(group: bytes) -> bytes:
    """Returns the JOIN frame.

    Raises:
        LocalProtocolError: The group is longer than 255 bytes or holds a zero byte.
    """
    return encode_command(b"JOIN", _own_group(group))


def leave(group: bytes) -> bytes:
    """Returns the LEAVE frame; raises like `join`."""
    return encode_command(b"LEAVE", _own_group(group))


def ping(ttl_deciseconds: int, context: bytes = b"") -> bytes:
    """Returns the PING frame.

    Args:
        ttl_deciseconds: Tenths of a second of silence after which the peer may close the connection; 0: no limit.
        context: At most 16 bytes, which the PONG returns.

    Raises:
        LocalProtocolError: An argument is out of range.
    """
    if not 0 <= ttl_deciseconds <= MAX_TTL_DECISECONDS:
        raise LocalProtocolError(
            f"a TTL of {ttl_deciseconds} tenths of a second exceeds 16 bits (RFC 37, Connection Heartbeating)"
        )
    return encode_command(b"PING", ttl_deciseconds.to_bytes(2, "big") + _own_context(context))


def pong(context: bytes) -> bytes:
    """Returns the PONG frame; its context is the PING's.

    Raises:
        LocalProtocolError: The context is longer than 16 bytes.
    """
    return encode_command(b"PONG", _own_context(context))


def _own_context(context: bytes) -> bytes:
    if len(context) > MAX_CONTEXT_BYTES:
        raise LocalProtocolError(
            f"a context of {len(context)} bytes: at most 16 are allowed (RFC 37, Connection Heartbeating)"
        )
    return context


def _own_group(group: bytes) -> bytes:
    if len(group) > MAX_GROUP_BYTES or b"\0" in group:
        raise LocalProtocolError(f"{quoted(group)} cannot name a group (RFC 48, Group)")
    return group


# --- what a peer sent -----------------------------------------------------------------------------


def parse_ping(body: bytes) -> Ping:
    """Reads a PING's data (RFC 37, Connection Heartbeating)."""
    if not 2 <= len(body) <= 2 + MAX_CONTEXT_BYTES:
        raise RemoteProtocolError(
            f"a PING has 2 to 18 bytes of data, but this one has {len(body)} (RFC 37, Connection Heartbeating)"
        )
    return Ping(int.from_bytes(body[:2], "big"), body[2:])


def parse_pong(body: bytes) -> Pong:
    """Reads a PONG's data (RFC 37, Connection Heartbeating)."""
    if len(body) > MAX_CONTEXT_BYTES:
        raise RemoteProtocolError(
            f"a PONG has up to 16 bytes of data, but this one has {len(body)} (RFC 37, Connection Heartbeating)"
        )
    return Pong(body)


def parse_subscribe(body: bytes) -> Subscribe:
    """Reads a SUBSCRIBE's data: any bytes (RFC 37, The Publish-Subscribe Pattern)."""
    return Subscribe(body)


def parse_cancel(body: bytes) -> Cancel:
    """Reads a CANCEL's data: any bytes (RFC 37, The Publish-Subscribe Pattern)."""
    return Cancel(body)


def parse_join(body: bytes) -> Join:
    """Reads a JOIN's data (RFC 48, Group)."""
    return Join(_peers_group(body))


def parse_leave(body: bytes) -> Leave:
    """Reads a LEAVE's data (RFC 48, Group)."""
    return Leave(_peers_group(body))


def parse_error(body: bytes) -> Error:
    """Reads an ERROR's data; the reason may have other characters than the RFC allows, so `quoted` it before use."""
    if not body or len(body) <= body[0]:
        raise RemoteProtocolError(
            f"an ERROR whose reason has a wrong length: {quoted(body)} (RFC 23, The NULL Security Mechanism)"
        )
    return Error(body[1 : 1 + body[0]])


def _peers_group(group: bytes) -> bytes:
    if len(group) > MAX_GROUP_BYTES or b"\0" in group:
        raise RemoteProtocolError(f"{quoted(group)} cannot name a group (RFC 48, Group)")
    return group


_PARSERS: Final[dict[bytes, Callable[[bytes], TrafficCommand]]] = {
    b"PING": parse_ping,
    b"PONG": parse_pong,
    b"SUBSCRIBE": parse_subscribe,
    b"CANCEL": parse_cancel,
    b"JOIN": parse_join,
    b"LEAVE": parse_leave,
    b"ERROR": parse_error,
}


def parse_traffic_command(frame_body: bytes) -> TrafficCommand:
    """Reads the body of a command frame that came after the handshake.

    Returns:
        The command as its own type; a plain `Command` if ZMTP 3.1 defines none of that name for traffic.

    Raises:
        RemoteProtocolError: The command, or its data, is malformed.
    """
    command = parse_command(frame_body)
    parser = _PARSERS.get(command.name)
    return command if parser is None else parser(command.body)


# --- metadata -------------------------------------------------------------------------------------


def encode_properties(properties: Mapping[bytes, bytes]) -> bytes:
    """Encodes metadata (RFC 23, The NULL Security Mechanism: metadata).

    Names keep their case: libzmq finds `Socket-Type` and `Identity` in exactly this spelling.

    Raises:
        LocalProtocolError: A name or a value has no encoding, or two names differ by case alone.
    """
    return _encoded(tuple(properties.items()))


@lru_cache(maxsize=32)  # a socket sends the same to each of its peers
def _encoded(properties: tuple[tuple[bytes, bytes], ...]) -> bytes:
    body = bytearray()
    seen = set()
    for name, value in properties:
        if not _PROPERTY_NAME.fullmatch(name) or len(value) > _MAX_VALUE_BYTES:
            raise LocalProtocolError(f"{quoted(name)} cannot be a property (RFC 23, The NULL Security Mechanism)")
        if name.lower() in seen:
            raise LocalProtocolError(f"the property {quoted(name)} is sent twice (RFC 23, Connection Metadata)")
        seen.add(name.lower())
        body += bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
    return bytes(body)


def parse_properties(body: bytes, limit: int = MAX_PROPERTIES_BYTES) -> dict[bytes, bytes]:
    """Reads metadata (RFC 23, The NULL Security Mechanism: metadata).

    Args:
        body: All of it, and nothing else.
        limit: Its maximal size in bytes.

    Returns:
        The values by lower-case name, in the peer's order. Case SHALL NOT matter.

    Raises:
        RemoteProtocolError: The metadata are malformed or too large, or have two identities or socket types: the RFC
            does not define which one counts. Of other duplicate properties the first counts, as with libzmq, whose
            users may give a property any name, also names that differ by case alone.
    """
    if len(body) > limit:
        raise RemoteProtocolError(f"metadata of {len(body)} bytes: at most {limit} are allowed")
    # A copy, because the user gets it.
    return (_usual_properties(body) if len(body) <= _MAX_CACHED_BYTES else _properties(body)).copy()


def _properties(body: bytes) -> dict[bytes, bytes]:
    properties: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        name_end = at + 1 + body[at]
        name = body[at + 1 : name_end]
        value_at = name_end + 4
        if value_at > len(body):
            raise RemoteProtocolError(f"metadata that ends inside the property {quoted(name)} {_METADATA}")
        if not name:
            raise RemoteProtocolError(f"{quoted(name)} cannot name a property {_METADATA}")
        at = value_at + int.from_bytes(body[name_end:value_at], "big")
        if at > len(body):
            raise RemoteProtocolError(f"the property {quoted(name)} is longer than its metadata {_METADATA}")
        known = name.lower()
        if known in _DECISIVE and known in properties:
            raise RemoteProtocolError(f"the property {quoted(name)} is sent twice (RFC 23, Connection Metadata)")
        properties.setdefault(known, body[value_at:at])
    return properties


_usual_properties: Final = lru_cache(maxsize=32)(_properties)  # most peers of a socket send the same
_DECISIVE: Final = frozenset({b"socket-type", b"identity"})
_METADATA: Final = "(RFC 23, The NULL Security Mechanism: metadata)"
