"""Commands, limits and encodings of the broker's protocol over ZMTP, for clients and servers; without I/O.

docs/reference/broker-protocol.md specifies it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from omq.broker.errors import SyntaxFault, TooLarge, TopicError

VERSION: Final = 1

#: The interval of PINGs to a client, and the time to answer one.
HEARTBEAT_INTERVAL_S: Final = 5.0
HEARTBEAT_TIMEOUT_S: Final = 10.0
MAX_TAG_BYTES: Final = 16
MAX_NAME_BYTES: Final = 255  # of a topic, stage, commit or durable subscription
MAX_PRODUCER_BYTES: Final = 64
MAX_MESSAGE_ID_BYTES: Final = 255
MAX_RECORDS: Final = 65_536  # records of one APPEND
MAX_BODY_BYTES: Final = 64 << 20  # of one body
MAX_APPEND_BYTES: Final = 80 << 20  # of one APPEND's records
#: Bytes of a connection's publications that may wait for their answers; above that the broker answers `busy`.
WINDOW_BYTES: Final = 64 << 20
#: The defaults of a consumer.
DEFAULT_PREFETCH: Final = 100
DEFAULT_ACK_TIMEOUT_S: Final = 30.0
MIN_ACK_TIMEOUT_S: Final = 0.01
MAX_ACK_TIMEOUT_S: Final = 1e9
#: The maximum credit of a subscription, in bytes.
MAX_CREDIT_BYTES: Final = 64 << 20
#: The maximum credit of a consumer, in messages.
MAX_PREFETCH: Final = 1 << 20
#: Limits of a part that is not a body, key or records; and of the list of stages in a COMMIT.
MAX_ARGUMENT_BYTES: Final = 64 << 10
MAX_STAGES_BYTES: Final = 1 << 20
MAX_STAGES: Final = 4096
#: Pairs of ids in one ACK or NACK.
MAX_PAIRS: Final = 4096
#: Parts of one message.
MAX_PARTS: Final = 4096
#: Bytes of records in one answer to READ.
MAX_RANGE_BYTES: Final = 4 << 20

# Commands of a client.
HELLO: Final = b"HELLO"
BYE: Final = b"BYE"
FLUSH: Final = b"FLUSH"
PING: Final = b"PING"
PUBLISH: Final = b"PUBLISH"
APPEND: Final = b"APPEND"
STAGE: Final = b"STAGE"
COMMIT: Final = b"COMMIT"
ABORT: Final = b"ABORT"
SUBSCRIBE: Final = b"SUBSCRIBE"
CREDIT: Final = b"CREDIT"
POSITION: Final = b"POSITION"
CANCEL: Final = b"CANCEL"
CONSUME: Final = b"CONSUME"
ACK: Final = b"ACK"
NACK: Final = b"NACK"
RETURN: Final = b"RETURN"
PROGRESS: Final = b"PROGRESS"
REACK: Final = b"REACK"
REACK_GROUP: Final = b"REACK_GROUP"
READ: Final = b"READ"
OFFSET_AFTER: Final = b"OFFSET_AFTER"
OFFSET_AT: Final = b"OFFSET_AT"
CREATE: Final = b"CREATE"
ALTER: Final = b"ALTER"
DELETE: Final = b"DELETE"
TOPICS: Final = b"TOPICS"
DURABLES: Final = b"DURABLES"
DELETE_DURABLE: Final = b"DELETE_DURABLE"
GROUPS: Final = b"GROUPS"
SEEK_GROUP: Final = b"SEEK_GROUP"
DELETE_GROUP: Final = b"DELETE_GROUP"
PURGE: Final = b"PURGE"
REQUEUE: Final = b"REQUEUE"

# Answers of a broker. BYE, TOPICS, DURABLES and GROUPS are their own answers.
WELCOME: Final = b"WELCOME"
FLUSHED: Final = b"FLUSHED"
PONG: Final = b"PONG"
PUBLISHED: Final = b"PUBLISHED"
STAGED: Final = b"STAGED"
COMMITTED: Final = b"COMMITTED"
ABORTED: Final = b"ABORTED"
SUBSCRIBED: Final = b"SUBSCRIBED"
BLOCK: Final = b"BLOCK"
CANCELLED: Final = b"CANCELLED"
CONSUMING: Final = b"CONSUMING"
REACKED: Final = b"REACKED"
JOBS: Final = b"JOBS"
RANGE: Final = b"RANGE"
OFFSET: Final = b"OFFSET"
CREATED: Final = b"CREATED"
ALTERED: Final = b"ALTERED"
DELETED: Final = b"DELETED"
DURABLE_DELETED: Final = b"DURABLE_DELETED"
GROUP_MOVED: Final = b"GROUP_MOVED"
GROUP_DELETED: Final = b"GROUP_DELETED"
PURGED: Final = b"PURGED"
REQUEUED: Final = b"REQUEUED"
ERROR: Final = b"ERROR"

_U64 = struct.Struct("!Q")
_U32 = struct.Struct("!I")

#: Packs a number as `u64`, and as `u32`.
u64 = _U64.pack
u32 = _U32.pack


def number(part: bytes, what: str = "a number") -> int:
    """Decodes a `u64`.

    Raises:
        SyntaxFault: The part has another size.
    """
    if len(part) != 8:
        raise SyntaxFault(f"{what} must be a u64 of 8 bytes, not {len(part)} bytes")
    value: int = _U64.unpack(part)[0]
    return value


def short_number(part: bytes, what: str = "a number") -> int:
    """Decodes a `u32`; raises like `number`."""
    if len(part) != 4:
        raise SyntaxFault(f"{what} must be a u32 of 4 bytes, not {len(part)} bytes")
    value: int = _U32.unpack(part)[0]
    return value


def ranges(parts: list[bytes]) -> list[tuple[int, int]]:
    """Decodes the ranges of ACK and NACK: pairs of first and last id, both inclusive, in one or several parts.

    Raises:
        SyntaxFault: The parts are not pairs of ids, or the last id of a pair is lower than its first.
        TooLarge: There are more than `MAX_PAIRS`.
    """
    size = sum(map(len, parts))
    if size > 16 * MAX_PAIRS:
        raise TooLarge(f"the ids have {size // 16} pairs; at most {MAX_PAIRS} are allowed")
    joined = parts[0] if len(parts) == 1 else b"".join(parts)
    if not joined or len(joined) % 16:
        raise SyntaxFault(f"pairs of first and last id must have 16 bytes each, not {len(joined)} bytes in all")
    flat = struct.unpack(f"!{len(joined) // 8}Q", joined)
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    for first, last in pairs:
        if last < first or not first:
            raise SyntaxFault(f"the ids from {first} to {last} are not a valid range")
    return pairs


def delayed_ranges(parts: list[bytes]) -> tuple[float | None, list[tuple[int, int]]]:
    """Decodes the arguments of NACK: an optional delay, and ranges.

    Returns:
        The delay in seconds, or `None` without one; and the ranges.
    """
    if len(parts[0]) != 4:
        return None, ranges(parts)
    if len(parts) == 1:
        raise SyntaxFault("NACK must have pairs of ids after its delay")
    return short_number(parts[0], "the delay") / 1000, ranges(parts[1:])


def pack_delay(seconds: float) -> bytes:
    """Encodes the delay of NACK: milliseconds, rounded up."""
    return u32(min(math.ceil(seconds * 1000), 2**32 - 1))


def pack_ranges(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Encodes the ranges of ACK and NACK as one part."""
    flat = [number for pair in pairs for number in pair]
    return struct.pack(f"!{len(flat)}Q", *flat)


def packed_ranges(pairs: Sequence[tuple[int, int]]) -> list[bytes]:
    """Encodes any number of ranges: one part for each ACK or NACK that they need."""
    return [pack_ranges(pairs[at : at + MAX_PAIRS]) for at in range(0, len(pairs), MAX_PAIRS)]


def pack_json(value: Any) -> bytes:
    """Encodes a value as compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def read_json(part: bytes, what: str = "the argument") -> dict[str, Any]:
    """Decodes a JSON object; an empty part is an empty object.

    Raises:
        SyntaxFault: The part is not a JSON object.
    """
    value = read_value(part, what) if part else {}
    if not isinstance(value, dict):
        raise SyntaxFault(f"{what} must be a JSON object, not {type(value).__name__}")
    return value


def read_value(part: bytes, what: str = "the argument") -> Any:
    """Decodes any JSON value; raises like `read_json`."""
    try:
        return json.loads(part)
    except (ValueError, RecursionError) as error:
        raise SyntaxFault(f"{what} is not valid JSON: {error}") from None


def optional(message: list[bytes], at: int) -> bytes:
    """Returns an optional part; empty bytes if it was left out."""
    return message[at] if len(message) > at else b""


def _bounded(part: bytes, what: str, limit: int = MAX_ARGUMENT_BYTES) -> bytes:
    """Returns a part after a check of its size, which bounds the time that the broker's loop takes to decode it."""
    if len(part) > limit:
        raise TooLarge(f"{what} has {len(part)} bytes; at most {limit} are allowed")
    return part


def json_object(message: list[bytes], at: int, what: str = "the argument") -> dict[str, Any]:
    """Decodes an optional JSON object; raises like `read_json`, and `TooLarge`."""
    return read_json(_bounded(optional(message, at), what), what)


def whole(arguments: dict[str, Any], key: str, default: int) -> int:
    """Returns a whole number of a JSON object, or the default."""
    value = arguments.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SyntaxFault(f"{key}={value!r:.40}: must be a whole number, at least 0")
    return value


def flag(arguments: dict[str, Any], key: str) -> bool:
    """Returns a boolean of a JSON object; false if it was left out."""
    value = arguments.get(key, False)
    if not isinstance(value, bool):
        raise SyntaxFault(f"{key}={value!r:.40}: must be true or false")
    return value


def optional_text(arguments: dict[str, Any], key: str) -> str | None:
    """Returns a string of a JSON object; `None` if it is null or was left out."""
    value = arguments.get(key)
    if value is not None and not isinstance(value, str):
        raise SyntaxFault(f"{key}={value!r:.40}: must be a string or null")
    return value


def name_and_settings(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the name of a topic and the settings in the argument of CREATE or ALTER.

    Raises:
        SyntaxFault: One of them has a wrong type.
        TopicError: The name is not valid.
    """
    name, settings = arguments.get("name"), arguments.get("settings", {})
    if not isinstance(name, str):
        raise SyntaxFault(f"name={name!r:.40}: must be a string")
    if not isinstance(settings, dict):
        raise SyntaxFault(f"settings={settings!r:.40}: must be an object")
    return check_name(name), settings


def producer(message: list[bytes], at: int) -> tuple[bytes, int]:
    """Decodes producer and sequence, which must be given together; empty and 0 if they were left out."""
    name, sequence = optional(message, at), optional(message, at + 1)
    if not name and not sequence:
        return b"", 0
    if not 1 <= len(name) <= MAX_PRODUCER_BYTES:
        raise SyntaxFault(f"the producer has {len(name)} bytes; 1 to {MAX_PRODUCER_BYTES} are allowed")
    value = number(sequence, "the sequence")
    if not value:
        raise SyntaxFault("the sequence must be 1 or more, not 0")
    return name, value


def message_id(message: list[bytes], at: int, count: int) -> bytes:
    """Decodes the message id of an APPEND of *count* records; empty if it was left out."""
    part = optional(message, at)
    if len(part) > MAX_MESSAGE_ID_BYTES:
        raise SyntaxFault(f"the message id has {len(part)} bytes; 1 to {MAX_MESSAGE_ID_BYTES} are allowed")
    if part and count != 1:
        raise SyntaxFault(f"an APPEND with a message id must have 1 record, not {count}")
    return part


def named(part: bytes, what: str) -> bytes:
    """Decodes the name of a stage or a commit."""
    if not 1 <= len(part) <= MAX_NAME_BYTES:
        raise SyntaxFault(f"the name of {what} has {len(part)} bytes; 1 to {MAX_NAME_BYTES} are allowed")
    return part


def stage_names(part: bytes) -> list[bytes]:
    """Decodes the names of the stages of a COMMIT."""
    what = "the list of stages"
    names = read_value(_bounded(part, what, MAX_STAGES_BYTES), what)
    if not isinstance(names, list) or not names:
        raise SyntaxFault("the stages must be a list of their names in base64")
    if len(names) > MAX_STAGES:
        raise TooLarge(f"the commit has {len(names)} stages; at most {MAX_STAGES} are allowed")
    return [_stage_name(name) for name in names]


def _stage_name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise SyntaxFault(f"a stage's name in base64 must be a string, not {type(name).__name__}")
    try:
        return named(base64.b64decode(name, validate=True), "a stage")
    except (binascii.Error, ValueError) as error:
        raise SyntaxFault(f"the stage's name {name[:80]!r} is not valid base64: {error}") from None


def topic_name(part: bytes) -> str:
    """Decodes the name of a topic.

    Raises:
        TopicError: The name is not valid.
    """
    if len(part) > MAX_NAME_BYTES:
        raise TopicError(f"a topic's name has {len(part)} bytes; 1 to {MAX_NAME_BYTES} are allowed: {part[:40]!r}")
    try:
        name = part.decode()
    except UnicodeDecodeError:
        raise TopicError(f"a topic's name must be UTF-8, not {part[:40]!r}") from None
    return check_name(name)


def check_name(name: str, what: str = "a topic's name") -> str:
    """Returns a name if it is valid.

    Raises:
        TopicError: The name is empty, longer than 255 bytes, or contains a slash or a control character.
        TypeError: The name is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {name!r:.80}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise TopicError(f"{what} must be UTF-8, not {name[:40]!r}") from None
    if not 1 <= size <= MAX_NAME_BYTES:
        raise TopicError(f"{what} has {size} bytes; 1 to {MAX_NAME_BYTES} are allowed: {name[:40]!r}")
    if "/" in name or any(ord(one) < 32 or 127 <= ord(one) < 160 for one in name):
        raise TopicError(f"{what} must not contain a slash or control characters: {name[:80]!r}")
    return name
