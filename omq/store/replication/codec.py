"""The bytes of the entries of the journal.

An entry begins with a head: version, kind, term, timestamp, that of the entry before, the wall clock, and the checksum
of these fields and of what follows.
Each write is its tag, its numbers and the sizes of its other fields as one struct, and then these fields.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple, get_args

from omq._core.blocks import crc32c
from omq.store.errors import DamagedError, StoreError
from omq.store.interface import (
    AbortStage,
    Acknowledge,
    AlterTopic,
    Append,
    CommitStages,
    DeadLetterReason,
    DeleteCursor,
    DeleteGroup,
    DeleteTopic,
    Delivery,
    MakeTopic,
    MoveToDeadLetter,
    Persistence,
    Requeue,
    SetCursor,
    SetGroup,
    Stage,
    Trim,
    Write,
)
from omq.store.internal import ApplyRetention, ExpireState

VERSION: Final = 2
MAX_PRODUCER_BYTES: Final = 96
MAX_TIMESTAMP: Final = 2**53 - 1  # in the year 2255; not all that is made of it can be much later
MAX_KEY_NAME_BYTES: Final = 510  # of a stage or commit: LMDB's keys have 511 bytes, and a letter comes first
#: The head of an entry: version, kind, term, timestamp, that of the entry before, wall clock. A checksum follows, of
#: the head too.
_HEAD: Final = struct.Struct(">BBQQQQ")
_SUM: Final = struct.Struct(">I")
_START: Final = _HEAD.size + _SUM.size
_STEP_BYTES: Final = 256 * 1024  # that are copied without a chance for other threads
_LEASE: Final = struct.Struct(">QII")
_NUMBER: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")
_SIZE: Final = struct.Struct(">H")
#: The settings of a topic that the store reads itself, all of them numbers.
_LIMITS: Final = ("max_age", "max_messages", "max_bytes")


class Kind(IntEnum):
    """The kind of an entry: a lease alone, or writes. An entry of either kind renews the lease of its leader."""

    LEASE = 1
    WRITES = 2


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of a leader, which begins a term or renews it.

    Attributes:
        node: The id of the leader's node.
        endpoints: The endpoints of the node.
        duration_us: The duration of the lease, in microseconds.
    """

    node: str
    endpoints: tuple[str, ...]
    duration_us: int


@dataclass(slots=True)
class Entry:
    """An entry of the journal.

    Attributes:
        kind: The kind.
        term: The term of the leader that has appended it.
        timestamp: The time of the cluster's clock, in microseconds, which is the clock of the stores that apply it.
        writes: The writes, in order; empty in a lease.
        lease: The lease; `None` in an entry of writes.
        previous: The timestamp of the entry before it; 0 for the first. A node whose last entry has another timestamp
            has applied another journal.
        wall: The time of the leader's system in microseconds since 1970, for the messages; 0: the timestamp.
    """

    kind: Kind
    term: int
    timestamp: int
    writes: list[Write] = field(default_factory=list)
    lease: Lease | None = None
    previous: int = 0
    wall: int = 0


class _Field(NamedTuple):
    """Converts a field of variable size to bytes, and back. Either raises `ValueError` for an invalid value."""

    pack: Callable[[Any], Any]
    unpack: Callable[[memoryview], Any]


def _bytes(limit: int) -> _Field:
    def checked(value: bytes | memoryview) -> bytes:
        if len(value) > limit:
            raise ValueError(f"it has {len(value)} bytes; at most {limit} are allowed")
        return bytes(value)

    return _Field(checked, checked)


def _choice(values: Iterable[str | None]) -> _Field:
    """Returns the converter of a field with few possible texts; `None` is empty."""
    by_bytes = {(value or "").encode(): value for value in values}
    by_value = {value: data for data, value in by_bytes.items()}

    def pack(value: str | None) -> bytes:
        if value not in by_value:
            raise ValueError(f"{value!r} is not one of {', '.join(map(repr, by_value))}")
        return by_value[value]

    def unpack(data: memoryview) -> str | None:
        if (found := bytes(data)) not in by_bytes:
            raise ValueError(f"{found!r} is not one of {', '.join(map(repr, by_bytes))}")
        return by_bytes[found]

    return _Field(pack, unpack)


def _checked_settings(settings: Any) -> dict[str, Any]:
    """Checks what the store relies on: an error in the middle of an entry would stop all nodes."""
    if not isinstance(settings, dict):
        raise ValueError("the settings are not an object")
    for name in _LIMITS:
        value = settings.get(name)
        if value is not None and not (type(value) in (int, float) and math.isfinite(value) and 0 <= value < 2**62):
            raise ValueError(f"{name}={value!r} is not a valid limit")
    return settings


def _pack_pairs(pairs: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(_PAIR.pack(*pair) for pair in pairs)


def _unpack_pairs(data: memoryview) -> list[tuple[int, int]]:
    return list(_PAIR.iter_unpack(data))


def _pack_list(parts: Iterable[bytes]) -> bytes:
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def _unpack_list(data: memoryview) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        found.append(_slice(data, at, size))
        at += size
    return [bytes(part) for part in found]


def _slice(data: memoryview, begin: int, size: int) -> memoryview:
    if begin + size > len(data):
        raise ValueError(f"a field of {size} bytes begins at byte {begin} of {len(data)}")
    return data[begin : begin + size]


def _pack_names(names: list[bytes]) -> bytes:
    return _pack_list([_KEY_NAME.pack(name) for name in names])


def _unpack_names(data: memoryview) -> list[bytes]:
    return [_KEY_NAME.unpack(memoryview(name)) for name in _unpack_list(data)]


def _not_empty(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if not pairs:
        raise ValueError("it is empty")
    return pairs


_KEY_NAME: Final = _bytes(MAX_KEY_NAME_BYTES)
_RECORDS: Final = _Field(lambda records: records, lambda records: records)
_TEXT: Final = _Field(str.encode, lambda data: str(data, "utf-8"))
_SETTINGS: Final = _Field(
    lambda settings: json.dumps(_checked_settings(settings), allow_nan=False).encode(),
    lambda data: _checked_settings(json.loads(bytes(data))),
)
_PAIRS: Final = _Field(_pack_pairs, _unpack_pairs)
_SOME_PAIRS: Final = _Field(lambda pairs: _pack_pairs(_not_empty(pairs)), lambda data: _not_empty(_unpack_pairs(data)))
_COUNTS: Final = _Field(lambda counts: _pack_pairs(counts.items()), lambda data: dict(_unpack_pairs(data)))


class _Layout:
    """The layout of one type of write.

    Args:
        tag: The first byte.
        type: The type.
        numbers: The names of its numbers, each with its letter of `struct`.
        fields: Its other fields.
    """

    def __init__(self, tag: int, type: type[Write], numbers: dict[str, str], fields: dict[str, _Field]) -> None:
        self.type = type
        self._struct = struct.Struct(">B" + "".join(numbers.values()) + "I" * len(fields))
        self.tag = tag
        self._names = ["tag", *numbers, *fields]
        self._get = [attrgetter(name) for name in numbers]
        self._fields = [(name, attrgetter(name), *converter) for name, converter in fields.items()]

    def encode(self, write: Write, out: list[Any]) -> None:
        """Adds the bytes of a write."""
        tails = [pack(get(write)) for _, get, pack, _ in self._fields]
        out.append(self._struct.pack(self.tag, *[get(write) for get in self._get], *map(len, tails)))
        out += tails

    def decode(self, data: memoryview, begin: int) -> tuple[Write, int]:
        """Returns the write that begins at a byte, and the position of its end."""
        given = dict(zip(self._names, self._struct.unpack_from(data, begin), strict=True))
        del given["tag"]
        begin += self._struct.size
        for name, _, _, unpack in self._fields:
            end = begin + given[name]  # its size
            given[name] = unpack(_slice(data, begin, given[name]))
            begin = end
        return self.type(**given), begin


_TOPIC: Final = {"topic_id": "I"}
_LAYOUTS: Final = (
    _Layout(
        1,
        Append,
        {**_TOPIC, "count": "I", "sequence": "Q", "first_outstanding": "Q", "repeats_only": "?"},
        {"producer": _bytes(MAX_PRODUCER_BYTES), "records": _RECORDS},
    ),
    _Layout(
        2,
        MakeTopic,
        {},
        {
            "name": _TEXT,
            "delivery": _choice(get_args(Delivery)),
            "persistence": _choice(get_args(Persistence)),
            "settings": _SETTINGS,
            "owner": _TEXT,
        },
    ),
    _Layout(3, AlterTopic, _TOPIC, {"settings": _SETTINGS}),
    _Layout(4, DeleteTopic, _TOPIC, {}),
    _Layout(
        5,
        Acknowledge,
        {**_TOPIC, "last_delivered": "Q", "generation": "Q"},
        {"ranges": _PAIRS, "deliveries": _COUNTS, "group": _TEXT},
    ),
    _Layout(
        6,
        MoveToDeadLetter,
        {**_TOPIC, "id": "Q", "target_id": "I", "generation": "Q", "deliveries": "Q"},
        {"group": _TEXT, "reason": _choice((None, *get_args(DeadLetterReason)))},
    ),
    _Layout(7, Requeue, _TOPIC, {"moves": _SOME_PAIRS}),
    _Layout(8, SetCursor, {**_TOPIC, "id": "Q"}, {"name": _TEXT}),
    _Layout(9, DeleteCursor, _TOPIC, {"name": _TEXT}),
    _Layout(10, SetGroup, {**_TOPIC, "position": "Q"}, {"name": _TEXT}),
    _Layout(11, DeleteGroup, _TOPIC, {"name": _TEXT}),
    _Layout(12, Stage, {**_TOPIC, "count": "I", "sequence": "Q"}, {"stage": _KEY_NAME, "records": _RECORDS}),
    _Layout(13, CommitStages, {}, {"commit": _KEY_NAME, "stages": _Field(_pack_names, _unpack_names)}),
    _Layout(14, AbortStage, {"prefix": "?"}, {"stage": _KEY_NAME}),
    _Layout(15, Trim, {**_TOPIC, "first": "Q"}, {}),
    _Layout(16, ApplyRetention, {}, {}),
    _Layout(17, ExpireState, {}, {"start": _KEY_NAME}),
)
_BY_TYPE: Final = {layout.type: layout for layout in _LAYOUTS}
_BY_TAG: Final = {layout.tag: layout for layout in _LAYOUTS}


def encode(entry: Entry) -> bytes:
    """Returns the bytes of an entry.

    Raises:
        StoreError: A write of it cannot be part of an entry, or its timestamp is too high. No node would apply it.
    """
    parts = _parts(entry)
    return b"".join((*_start(entry, parts), *parts))


def encode_large(entry: Entry) -> bytearray:
    """Returns the bytes of an entry, whose start `seal` is to set.

    The copy takes long, and is made in steps: a thread that calls this lets other threads run meanwhile.

    Raises:
        StoreError: As in `encode`.
    """
    payload = bytearray(_START)
    for part in _parts(entry):
        view = memoryview(part)
        for at in range(0, len(view), _STEP_BYTES):
            payload += view[at : at + _STEP_BYTES]
    return payload


def seal(payload: bytearray, entry: Entry) -> None:
    """Sets the head and the checksum of what `encode_large` has returned for an entry.

    Raises:
        StoreError: The timestamp of the entry is too high.
    """
    payload[:_START] = b"".join(_start(entry, (memoryview(payload)[_START:],)))


def _start(entry: Entry, parts: Iterable[bytes | memoryview]) -> tuple[bytes, bytes]:
    """Returns the head and the checksum of an entry with these parts."""
    if (highest := max(entry.timestamp, entry.wall)) > MAX_TIMESTAMP:
        raise StoreError(f"the timestamp {highest} of an entry is above {MAX_TIMESTAMP}: set the system's clock")
    head = _HEAD.pack(VERSION, entry.kind, entry.term, entry.timestamp, entry.previous, entry.wall)
    return head, _SUM.pack(_checksum(head, parts))


def _parts(entry: Entry) -> list[Any]:
    """Returns what follows the start of an entry."""
    out: list[Any] = []
    if entry.lease is not None:
        node, endpoints = entry.lease.node.encode(), _pack_list(map(str.encode, entry.lease.endpoints))
        out += _LEASE.pack(entry.lease.duration_us, len(node), len(endpoints)), node, endpoints
    for write in entry.writes:
        try:
            if isinstance(write, CommitStages) and (write.may is not None or write.has_room is not None):
                raise ValueError("`may` and `has_room` have to be called before it is proposed")
            _BY_TYPE[type(write)].encode(write, out)
        except (KeyError, ValueError, TypeError, RecursionError, struct.error) as error:
            reason = "this type is not replicated" if isinstance(error, KeyError) else error
            raise StoreError(f"a {type(write).__name__} cannot be part of an entry: {reason}") from None
    return out


def decode(payload: bytes | memoryview) -> Entry:
    """Returns the entry with these bytes. The records of its writes are views of them.

    Raises:
        DamagedError: They are not the bytes of an entry.
    """
    data = memoryview(payload)
    try:
        version, kind, term, timestamp, previous, wall = _HEAD.unpack_from(data)
        if version != VERSION:
            raise ValueError(f"version {version}, expected {VERSION}: another omq may have written it")
        if _SUM.unpack_from(data, _HEAD.size) != (_checksum(data[: _HEAD.size], (data[_START:],)),):
            raise ValueError("its checksum is wrong")
        if (highest := max(timestamp, wall)) > MAX_TIMESTAMP:
            raise ValueError(f"its timestamp {highest} is above {MAX_TIMESTAMP}")
        entry = Entry(Kind(kind), term, timestamp, previous=previous, wall=wall)
        if entry.kind is Kind.LEASE:
            entry.lease = _decode_lease(data)
            return entry
        at = _START
        while at < len(data):
            write, at = _BY_TAG[data[at]].decode(data, at)
            entry.writes.append(write)
    except (ValueError, KeyError, RecursionError, struct.error) as error:
        raise DamagedError(f"an entry of the journal is damaged: {error}") from None
    return entry


def _decode_lease(data: memoryview) -> Lease:
    duration_us, *sizes = _LEASE.unpack_from(data, _START)
    begin = _START + _LEASE.size
    if begin + sum(sizes) != len(data):
        raise ValueError("the sizes in its lease are wrong")
    node, endpoints = _slice(data, begin, sizes[0]), _slice(data, begin + sizes[0], sizes[1])
    return Lease(str(node, "utf-8"), tuple(part.decode() for part in _unpack_list(endpoints)), duration_us)


def _checksum(head: bytes | memoryview, parts: Iterable[bytes | memoryview]) -> int:
    checksum = crc32c(head)
    for part in parts:
        checksum = crc32c(part, checksum)
    return checksum
