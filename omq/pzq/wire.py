"""The device's frames, as the original has them, without sockets and time."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from omq._core.blocks import encode_record
from omq.pzq.errors import Malformed, NotReplicated, Refused

#: Bytes of the body of one message, all its parts together.
MAX_BODY_BYTES: Final = 64 << 20
#: Parts that one message may have: headers, delimiter and body.
MAX_PARTS: Final = 65_536
STORED: Final = b"1"
REFUSED: Final = b"0"
NOT_REPLICATED: Final = "REPLICATION_FAILED"
#: Stands before the name of the node that replicas are of (see `Run`).
REPLICAS: Final = b"REPLICAS:"
#: What a consumer of omq sends in its connection's metadata: that it takes a frame with the number of the
#: delivery, and how many messages it may have that it has not acknowledged.
DELIVERIES: Final = b"X-Pzq-Deliveries"
PREFETCH: Final = b"X-Pzq-Prefetch"

#: The header of a replica in the original's protocol: a producer has no use for it.
_REPLICA: Final = b"REPLICA:"
_DEDUP: Final = b"DEDUP:"
_MAX_SHOWN_BYTES: Final = 40  # of an invalid frame, in an error


def shown(frame: bytes) -> str:
    """A frame as people may read it."""
    return repr(frame[:_MAX_SHOWN_BYTES])[1:] + ("..." if len(frame) > _MAX_SHOWN_BYTES else "")


# ---------------------------------------------------------------------- producers


def check_body(size: int) -> None:
    """Raises `Malformed` where a body has more bytes than a device takes."""
    if size > MAX_BODY_BYTES:
        raise Malformed(f"a body of {size} bytes is too large: {MAX_BODY_BYTES} are the most")


def read_produced(frames: list[bytes]) -> tuple[list[bytes], bytes, int]:
    """Reads what a producer has sent: `peer | id | header* | empty | body+`.

    Returns:
        The parts of the body; the producer's name, and its number of this message (empty and 0: not sent).

    Raises:
        Malformed: It is not so.
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
        raise Malformed(f"{shown(header)}: a producer's name has 1 to 96 bytes, and does not begin with a zero byte")
    if not number.isdigit() or len(number) > 20 or not 1 <= int(number) < 2**64:
        raise Malformed(f"{shown(header)}: a sequence is a number from 1 to 18446744073709551615")
    return producer, int(number)


def dedup(producer: bytes, sequence: int) -> bytes:
    """Returns the header by which a device detects a repetition."""
    return b"%b%b:%d" % (_DEDUP, producer, sequence)


def has_dedup(headers: Iterable[bytes]) -> bool:
    """Returns whether one of some headers numbers its message."""
    return any(header.startswith(_DEDUP) for header in headers)


def read_reply(frames: Sequence[bytes]) -> tuple[bytes, Refused | None]:
    """Reads what a device answers: `id | 1 or 0 | empty | [text]`.

    Returns:
        The id, and why the message was refused; `None` where it is stored.

    Raises:
        Malformed: It is not an answer.
    """
    if len(frames) < 2 or frames[1] not in (STORED, REFUSED):
        raise Malformed(f"this is not an answer of a device: {', '.join(map(shown, frames[:4]))}")
    text = frames[3].decode(errors="backslashreplace") if len(frames) > 3 else ""
    if frames[1] == STORED:
        return frames[0], NotReplicated(text) if text == NOT_REPLICATED else None
    return frames[0], Refused(text or "the device has refused the message")


# ---------------------------------------------------------------------- consumers


def read_ack(frames: list[bytes]) -> tuple[bytes, bool]:
    """Reads what a consumer answers: `peer | key | 1 or 0`.

    Returns:
        The key, and whether the consumer has finished the message.

    Raises:
        Malformed: It is not so.
    """
    if len(frames) != 3:
        raise Malformed(f"an acknowledgement has a key and 1 or 0: these are {len(frames) - 1} frames")
    if frames[2] == STORED:
        return frames[1], True
    if frames[2] == REFUSED:
        return frames[1], False
    raise Malformed(f"an acknowledgement is 1 or 0, not {shown(frames[2])}")


def read_delivery(frames: list[bytes]) -> tuple[bytes, int, int, list[bytes]]:
    """Reads what a device delivers: `peer | key | sent | timeout | [delivery] | empty | body+`.

    Returns:
        The key; when it was sent, in microseconds since 1970; which delivery it is (0: not sent); the body.

    Raises:
        Malformed: It is not so.
    """
    at = 4
    deliveries = 0
    if len(frames) > 5 and frames[4].isdigit():
        at, deliveries = 5, int(frames[4])
    if len(frames) < at + 2 or frames[at] or not frames[2].isdigit():
        raise Malformed(f"this is not a delivery of a device: {', '.join(map(shown, frames[1:6]))}")
    return frames[1], int(frames[2]), deliveries, frames[at + 1 :]


# ---------------------------------------------------------------------- what is stored


def pack(parts: list[bytes]) -> bytes:
    """A record of several parts: its body is all of them, its key where each one ends."""
    ends = []
    end = 0
    for part in parts:
        end += len(part)
        ends.append(end)
    return encode_record(b"".join(parts), struct.pack(f"<{len(ends)}I", *ends))


def unpack(body: bytes, key: bytes | None) -> list[bytes]:
    """The parts of a record; without a key it has one."""
    if key is None:
        return [body]
    ends = struct.unpack(f"<{len(key) // 4}I", key)
    return [body[begin:end] for begin, end in pairwise((0, *ends))]


def key_format(store: str, topic: int) -> bytes:
    """Returns the format of keys: `<microseconds>|<36 characters>`, a UUID of version 8 (RFC 9562).

    What stands in it is where the message is: the store, the topic, and last the message's number, so that a key stays
    what it is for as long as the message exists.

    Args:
        store: The store's id, in hex.
        topic: The topic's id.

    Returns:
        What is formatted with the microseconds, and the high and the low bits of the number (see `key_of`).
    """
    return b"%%d|%b-%%04x-%%012x" % stem_of(store, topic).encode()


def stem_of(store: str, topic: int) -> str:
    """Returns the part that all keys of a store's topic have in common; arguments as for `key_format`."""
    return f"{store[:8]}-{store[8:12]}-8{topic & 0xFFF:03x}"


def key_of(how: bytes, when: int, number: int) -> bytes:
    """The key of a message that was stored at *when*, in microseconds since 1970."""
    return how % (when, 0x8000 | number >> 48 & 0x3FFF, number & 0xFFFFFFFFFFFF)


def keys_of(how: bytes, when: int, first: int, count: int) -> list[bytes]:
    """The keys of messages with consecutive numbers that were stored at once; see `key_of`."""
    if first >> 48 != first + count - 1 >> 48:
        return [key_of(how, when, number) for number in range(first, first + count)]
    head = key_of(how, when, first)[:-12] + b"%012x"
    begin = first & 0xFFFFFFFFFFFF
    return [head % number for number in range(begin, begin + count)]
