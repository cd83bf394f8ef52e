"""The frames between a device and its clients, compatible with the original pzq. Sans I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from omq._core.blocks import encode_record
from omq.pzq.errors import Malformed, NotReplicated, Refused

#: The largest body of a message: all its parts together.
MAX_BODY_BYTES: Final = 64 << 20
#: The maximum number of frames of one message: headers, delimiter and body.
MAX_PARTS: Final = 65_536
STORED: Final = b"1"
REFUSED: Final = b"0"
NOT_REPLICATED: Final = "REPLICATION_FAILED"
#: The header before the name of the owner of replicas (see `ReplicaBatch`).
REPLICAS: Final = b"REPLICAS:"
#: Connection metadata of an omq consumer: it takes a frame with the delivery count, and its prefetch.
DELIVERIES: Final = b"X-Pzq-Deliveries"
PREFETCH: Final = b"X-Pzq-Prefetch"

#: The header of a replica in the original's protocol.
_REPLICA: Final = b"REPLICA:"
_DEDUP: Final = b"DEDUP:"
_MAX_SHOWN_BYTES: Final = 40  # of an invalid frame, in an error


def shown(frame: bytes) -> str:
    """Returns a frame in readable form, cut to `_MAX_SHOWN_BYTES`."""
    return repr(frame[:_MAX_SHOWN_BYTES])[1:] + ("..." if len(frame) > _MAX_SHOWN_BYTES else "")


# ---------------------------------------------------------------------- producers


def check_body(size: int) -> None:
    """Raises `Malformed` if a body has more than `MAX_BODY_BYTES`."""
    if size > MAX_BODY_BYTES:
        raise Malformed(f"the body has {size} bytes; at most {MAX_BODY_BYTES} are allowed")


def read_produced(frames: list[bytes]) -> tuple[list[bytes], bytes, int]:
    """Reads a producer's message: `peer | id | header* | empty | body+`.

    Returns:
        The parts of the body, the producer's name and the sequence of the message; empty and 0 without a name.

    Raises:
        Malformed: The frames have another form.
    """
    try:
        delimiter = frames.index(b"", 2)
    except ValueError:
        raise Malformed("there is no empty frame between the headers and the body") from None
    parts = frames[delimiter + 1 :]
    if not parts:
        raise Malformed("there is no body after the empty frame")
    producer, sequence = b"", 0
    for header in frames[2:delimiter]:
        if header.startswith((_REPLICA, REPLICAS)):
            raise Malformed(f"{shown(header)}: replicas are accepted from the nodes of a cluster only")
        if header.startswith(_DEDUP):
            if producer:
                raise Malformed("there are two DEDUP headers")
            producer, sequence = _read_dedup(header)
    return parts, producer, sequence


def _read_dedup(header: bytes) -> tuple[bytes, int]:
    producer, _, number = header[len(_DEDUP) :].rpartition(b":")
    if not 1 <= len(producer) <= 96 or producer[0] == 0:
        raise Malformed(f"{shown(header)}: the producer must have 1 to 96 bytes, and not begin with a zero byte")
    if not number.isdigit() or len(number) > 20 or not 1 <= int(number) < 2**64:
        raise Malformed(f"{shown(header)}: the sequence must be a whole number, 1 to 18446744073709551615")
    return producer, int(number)


def dedup(producer: bytes, sequence: int) -> bytes:
    """Returns the header by which a device detects a repeated message."""
    return b"%b%b:%d" % (_DEDUP, producer, sequence)


def has_dedup(headers: Iterable[bytes]) -> bool:
    """Returns whether a DEDUP header is among the headers."""
    return any(header.startswith(_DEDUP) for header in headers)


def read_reply(frames: Sequence[bytes]) -> tuple[bytes, Refused | None]:
    """Reads the answer of a device: `id | 1 or 0 | empty | [text]`.

    Returns:
        The id, and the error of a refused message; `None` if it is stored.

    Raises:
        Malformed: The frames are not an answer.
    """
    if len(frames) < 2 or frames[1] not in (STORED, REFUSED):
        raise Malformed(
            f"not an answer of a pzq device; connect to its receive endpoint: {', '.join(map(shown, frames[:4]))}"
        )
    text = frames[3].decode(errors="backslashreplace") if len(frames) > 3 else ""
    if frames[1] == STORED:
        return frames[0], NotReplicated(text) if text == NOT_REPLICATED else None
    return frames[0], Refused(text or "the device has refused the message")


# ---------------------------------------------------------------------- consumers


def read_ack(frames: list[bytes]) -> tuple[bytes, bool]:
    """Reads the acknowledgement of a consumer: `peer | key | 1 or 0`.

    Returns:
        The key, and whether the consumer has finished the message.

    Raises:
        Malformed: The frames have another form.
    """
    if len(frames) != 3:
        raise Malformed(f"the acknowledgement has {len(frames) - 1} frames; 2 are expected: a key, and 1 or 0")
    if frames[2] == STORED:
        return frames[1], True
    if frames[2] == REFUSED:
        return frames[1], False
    raise Malformed(f"{shown(frames[2])}: the second frame of an acknowledgement must be 1 or 0")


def read_delivery(frames: list[bytes]) -> tuple[bytes, int, int, list[bytes]]:
    """Reads a delivery of a device: `peer | key | sent | timeout | [count] | empty | body+`.

    Returns:
        The key; the time of sending in microseconds since 1970; the delivery count (0: not sent); the body.

    Raises:
        Malformed: The frames have another form.
    """
    at = 4
    deliveries = 0
    if len(frames) > 5 and frames[4].isdigit():
        at, deliveries = 5, int(frames[4])
    if len(frames) < at + 2 or frames[at] or not frames[2].isdigit():
        raise Malformed(
            f"not a delivery of a pzq device; connect to its send endpoint: {', '.join(map(shown, frames[1:6]))}"
        )
    return frames[1], int(frames[2]), deliveries, frames[at + 1 :]


# ---------------------------------------------------------------------- records and keys


def pack(parts: list[bytes]) -> bytes:
    """Encodes a message of several parts as one record. The record's key field has the end offset of each part."""
    ends = []
    end = 0
    for part in parts:
        end += len(part)
        ends.append(end)
    return encode_record(b"".join(parts), struct.pack(f"<{len(ends)}I", *ends))


def unpack(body: bytes, ends: bytes | None) -> list[bytes]:
    """Returns the parts of a stored message.

    Args:
        body: The body of its record.
        ends: The key field of its record: the end offset of each part. `None`: the message has one part.
    """
    if ends is None:
        return [body]
    offsets = struct.unpack(f"<{len(ends) // 4}I", ends)
    return [body[begin:end] for begin, end in pairwise((0, *offsets))]


def key_format(store: str, topic: int) -> bytes:
    """Returns the format of keys: `<microseconds>|<36 characters>`, a UUID of version 8 (RFC 9562).

    The UUID has the store, the topic and the id of the message, so that its key never changes.

    Args:
        store: The store's id, in hex.
        topic: The topic's id.

    Returns:
        A format of the microseconds and of the high and low bits of the id (see `key_of`).
    """
    return b"%%d|%b-%%04x-%%012x" % stem_of(store, topic).encode()


def stem_of(store: str, topic: int) -> str:
    """Returns the part that all keys of a topic share; arguments as for `key_format`."""
    return f"{store[:8]}-{store[8:12]}-8{topic & 0xFFF:03x}"


def key_of(template: bytes, when: int, id: int) -> bytes:
    """Returns the key of a message that was stored at *when*, in microseconds since 1970."""
    return template % (when, 0x8000 | id >> 48 & 0x3FFF, id & 0xFFFFFFFFFFFF)


def keys_of(template: bytes, when: int, first: int, count: int) -> list[bytes]:
    """Returns the keys of messages with consecutive ids that were stored together; see `key_of`."""
    if first >> 48 != first + count - 1 >> 48:
        return [key_of(template, when, id) for id in range(first, first + count)]
    head = key_of(template, when, first)[:-12] + b"%012x"
    begin = first & 0xFFFFFFFFFFFF
    return [head % id for id in range(begin, begin + count)]
