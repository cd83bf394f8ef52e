"""Commands: what ZMTP says about a connection, next to the messages (RFC 23, Commands; RFC 37, likewise).

A command is one frame whose body is a counted name and data. The functions named like a command give the
whole frame; `parse_command` takes a frame's body apart, and the `parse_...` functions read the data of each
command. This side's mistakes raise `LocalProtocolError`, the peer's `RemoteProtocolError`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple

from omq._core.wire.framing import encode_frame
from omq.errors import LocalProtocolError, RemoteProtocolError
from omq.types import GROUP_LIMIT

CONTEXT_LIMIT: Final = 16  # bytes of a PING's context (RFC 37, Connection Heartbeating)
TTL_LIMIT: Final = 0xFFFF  # tenths of a second (RFC 37, Connection Heartbeating)

#: The largest metadata, in bytes, that is taken from a peer. Known peers send some 40 bytes and an identity
#: of up to 255; the rest is room for an application's own properties.
PROPERTIES_LIMIT: Final = 64 * 1024

_USUAL_SIZE: Final = 256  # bytes of metadata up to which they are remembered
_VALUE_LIMIT: Final = 0x7FFF_FFFF  # bytes (RFC 23, The NULL Security Mechanism: INT32_MAX)
_COMMAND_NAME: Final = re.compile(rb"[A-Za-z]{1,255}")  # RFC 23, Formal Grammar: 1*255 ALPHA
_PROPERTY_NAME: Final = re.compile(rb"[A-Za-z0-9_.+-]{1,255}")  # RFC 23, The NULL Security Mechanism: name-char
_REASON: Final = re.compile(rb"[!-~]{0,255}")  # RFC 23, The NULL Security Mechanism: 0*255VCHAR


class Command(NamedTuple):
    """A command of any name: also one that this version does not know."""

    name: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """PING (RFC 37, Connection Heartbeating): asks for a PONG with the same context."""

    name: ClassVar[bytes] = b"PING"
    ttl: int  # tenths of a second of silence after which we may hang up; 0: no such hint
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
    """CANCEL (RFC 37, The Publish-Subscribe Pattern): takes one SUBSCRIBE back."""

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


def quoted(octets: bytes, limit: int = 100) -> str:
    """Makes bytes of a peer fit for a log: escaped, quoted, and bounded by about four times `limit`."""
    shown = repr(bytes(octets[:limit]))[1:]
    return shown if len(octets) <= limit else f"{shown}... ({len(octets)} bytes)"


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
    """Takes the body of a command frame apart (RFC 23, Formal Grammar: command-body).

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
    """The READY frame that carries our metadata (RFC 23, The NULL Security Mechanism)."""
    return _ready(tuple(properties.items()))


@lru_cache(maxsize=32)  # a socket says the same to each of its peers
def _ready(properties: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return encode_command(b"READY", _encoded(properties))


def error(reason: bytes) -> bytes:
    """The ERROR frame; the reason has no blanks, because the RFC allows none.

    Raises:
        LocalProtocolError: The reason is not 0 to 255 visible ASCII characters.
    """
    if not _REASON.fullmatch(reason):
        raise LocalProtocolError(f"{quoted(reason)} cannot be a reason (RFC 23, The NULL Security Mechanism)")
    return encode_command(b"ERROR", bytes((len(reason),)) + reason)


def subscribe(prefix: bytes) -> bytes:
    """The SUBSCRIBE frame, for peers from ZMTP 3.1 on."""
    return encode_command(b"SUBSCRIBE", prefix)


def cancel(prefix: bytes) -> bytes:
    """The CANCEL frame, for peers from ZMTP 3.1 on."""
    return encode_command(b"CANCEL", prefix)


def join(group: bytes) -> bytes:
    """The JOIN frame.

    Raises:
        LocalProtocolError: The group is longer than 255 bytes or holds a zero byte.
    """
    return encode_command(b"JOIN", _own_group(group))


def leave(group: bytes) -> bytes:
    """The LEAVE frame; raises like `join`."""
    return encode_command(b"LEAVE", _own_group(group))


def ping(ttl_deciseconds: int, context: bytes = b"") -> bytes:
    """The PING frame.

    Args:
        ttl_deciseconds: The silence, in tenths of a second, after which the peer may hang up; 0: no hint.
        context: At most 16 bytes that the PONG will bring back.

    Raises:
        LocalProtocolError: One of them is out of range.
    """
    if not 0 <= ttl_deciseconds <= TTL_LIMIT:
        raise LocalProtocolError(
            f"a TTL of {ttl_deciseconds} tenths of a second exceeds 16 bits (RFC 37, Connection Heartbeating)"
        )
    return encode_command(b"PING", ttl_deciseconds.to_bytes(2, "big") + _own_context(context))


def pong(context: bytes) -> bytes:
    """The PONG frame; its context is the PING's.

    Raises:
        LocalProtocolError: The context is longer than 16 bytes.
    """
    return encode_command(b"PONG", _own_context(context))


def _own_context(context: bytes) -> bytes:
    if len(context) > CONTEXT_LIMIT:
        raise LocalProtocolError(f"a context of {len(context)} bytes, 16 are allowed (RFC 37, Connection Heartbeating)")
    return context


def _own_group(group: bytes) -> bytes:
    if len(group) > GROUP_LIMIT or b"\0" in group:
        raise LocalProtocolError(f"{quoted(group)} cannot name a group (RFC 48, Group)")
    return group


# --- what a peer sent -----------------------------------------------------------------------------


def parse_ping(body: bytes) -> Ping:
    """Reads a PING's data (RFC 37, Connection Heartbeating)."""
    if not 2 <= len(body) <= 2 + CONTEXT_LIMIT:
        raise RemoteProtocolError(
            f"a PING has 2 to 18 bytes of data, this one {len(body)} (RFC 37, Connection Heartbeating)"
        )
    return Ping(int.from_bytes(body[:2], "big"), body[2:])


def parse_pong(body: bytes) -> Pong:
    """Reads a PONG's data (RFC 37, Connection Heartbeating)."""
    if len(body) > CONTEXT_LIMIT:
        raise RemoteProtocolError(
            f"a PONG has up to 16 bytes of data, this one {len(body)} (RFC 37, Connection Heartbeating)"
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
    """Reads an ERROR's data; the reason is not held to the RFC's characters, so `quoted` it before use."""
    if not body or len(body) <= body[0]:
        raise RemoteProtocolError(
            f"an ERROR whose reason has a wrong length: {quoted(body)} (RFC 23, The NULL Security Mechanism)"
        )
    return Error(body[1 : 1 + body[0]])


def _peers_group(group: bytes) -> bytes:
    if len(group) > GROUP_LIMIT or b"\0" in group:
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
        The command as its own type; a plain `Command` when ZMTP 3.1 defines none of that name for traffic.

    Raises:
        RemoteProtocolError: The command, or its data, is malformed.
    """
    command = parse_command(frame_body)
    parser = _PARSERS.get(command.name)
    return command if parser is None else parser(command.body)


# --- metadata -------------------------------------------------------------------------------------


def encode_properties(properties: Mapping[bytes, bytes]) -> bytes:
    """Encodes metadata (RFC 23, The NULL Security Mechanism: metadata).

    Names keep the case they are given: libzmq finds `Socket-Type` and `Identity` in exactly this spelling.

    Raises:
        LocalProtocolError: A name or a value has no encoding, or two names differ by case alone.
    """
    return _encoded(tuple(properties.items()))


@lru_cache(maxsize=32)  # a socket says the same to each of its peers
def _encoded(properties: tuple[tuple[bytes, bytes], ...]) -> bytes:
    body = bytearray()
    seen = set()
    for name, value in properties:
        if not _PROPERTY_NAME.fullmatch(name) or len(value) > _VALUE_LIMIT:
            raise LocalProtocolError(f"{quoted(name)} cannot be a property (RFC 23, The NULL Security Mechanism)")
        if name.lower() in seen:
            raise LocalProtocolError(f"the property {quoted(name)} twice (RFC 23, Connection Metadata)")
        seen.add(name.lower())
        body += bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
    return bytes(body)


def parse_properties(body: bytes, limit: int = PROPERTIES_LIMIT) -> dict[bytes, bytes]:
    """Reads metadata (RFC 23, The NULL Security Mechanism: metadata).

    Args:
        body: All of it, and nothing else.
        limit: The most bytes that it may have.

    Returns:
        The values by name, in the peer's order. Names are in lower case, as case SHALL NOT matter.

    Raises:
        RemoteProtocolError: It is malformed, too large, or has two identities or socket types: which one counts,
            the RFC does not say, so neither does. Of another property that comes twice the first counts, as with
            libzmq, whose users may give any name to a property, also names that differ by case alone.
    """
    if len(body) > limit:
        raise RemoteProtocolError(f"metadata of {len(body)} bytes, more than the {limit} allowed here")
    # A copy: the user is given it.
    return (_usual_properties(body) if len(body) <= _USUAL_SIZE else _properties(body)).copy()


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
            raise RemoteProtocolError(f"the property {quoted(name)} twice (RFC 23, Connection Metadata)")
        properties.setdefault(known, body[value_at:at])
    return properties


_usual_properties: Final = lru_cache(maxsize=32)(_properties)  # most peers of a socket say the same
_DECISIVE: Final = frozenset({b"socket-type", b"identity"})
_METADATA: Final = "(RFC 23, The NULL Security Mechanism: metadata)"
