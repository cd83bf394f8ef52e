"""The layout of an LMDB environment: keys, and the structs of values.

A key begins with a letter, the kind of the row. A value ends with a checksum, which a block has at its start. The
checksum covers the key too, so that a value under a wrong key is detected.

    b  topic, first id                       block: kind, checksum, time, header, then records or the key of a piece
    n  topic                                 state of the topic: first id, last id, bytes
    d  topic, producer, sequence             answer of an append: first id, count, timestamp
    p  topic, producer                       time of the last append, sequence below which answers are dropped
    w  topic                                 ack floor, highest delivered id
    s  topic, page                           bitmap of the acknowledged ids of a page
    r  topic, id                             delivery count
    o  topic, name                           cursor
    W  topic, group                          ack floor, highest delivered id, generation of a consumer group
    S  topic, group, page                    bitmap of the ids of a page that the group has acknowledged
    R  topic, group, id                      delivery count in the group
    g  stage, sequence, part, count          piece: records of a stage, before and after its commit
    G  name                                  stage: number, topic, time of creation, highest sequence
    c  name                                  commit: time, and the stages that it published
    q  topic, first id                       last id of a damaged range
    j  topic, first id                       last id of a range that was skipped after a crash
    h                                        number of the next stage
    e                                        last generation of a consumer group
    t  topic                                 catalog (strong environment only): name and settings
    v  topic                                 highest reserved id of a topic that is not strong (strong environment only,
                                             and not in replicas)
    i                                        id of the next topic (strong environment only)
    a                                        position, term and timestamp of the last entry that was applied, and
                                             whether it has left records to drop (replicas only)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from omq._core.blocks import HEADER_SIZE, crc32c
from omq.store.errors import DamagedError
from omq.store.interface import check_reader_name

TOPIC: Final = struct.Struct(">cI")
TOPIC_NUMBER: Final = struct.Struct(">cIQ")  # blocks, pages, deliveries, quarantine
PIECE: Final = struct.Struct(">cQQII")  # stage, sequence, part, records
NUMBER: Final = struct.Struct(">Q")
APPLIED_ENTRY: Final = struct.Struct(">QQQ?")  # position, term, timestamp, backlog
TWO: Final = struct.Struct(">QQ")
THREE: Final = struct.Struct(">QQQ")
STAGE: Final = struct.Struct(">QIQQ")  # number, topic, made, highest sequence
CHECKSUM: Final = struct.Struct(">I")

#: The bytes that a block's checksum covers: key, kind, time, header.
_SUMMED: Final = struct.Struct(f">{TOPIC_NUMBER.size}sBQ{HEADER_SIZE}s")
#: The start of a block: kind, checksum, time by the store's clock, header. The content follows.
BLOCK: Final = struct.Struct(f">BIQ{HEADER_SIZE}s")
_COVERED: Final = 5  # the offset in a block after its checksum
INLINE: Final = 0  # the kind of a block whose content is records
STAGED: Final = 1  # the kind of a block whose content is the key of a piece

#: What a row has, by the kind of its key.
_DESCRIPTIONS: Final = {
    b"b": "block",
    b"n": "the state row",
    b"d": "an answer to a producer",
    b"p": "a producer",
    b"w": "the ack floor",
    b"s": "acks page",
    b"r": "the delivery count of id",
    b"o": "a cursor",
    b"W": "the ack floor of group",
    b"S": "an acks page of group",
    b"R": "a delivery count of group",
    b"g": "the staged piece with the sequence",
    b"G": "stage",
    b"c": "commit",
    b"q": "the damaged range from",
    b"j": "the skipped range from",
    b"h": "the number of the next stage",
    b"e": "the last generation of a group",
    b"t": "the catalog row",
    b"v": "the id reservation",
    b"i": "the id of the next topic",
    b"a": "the position of the last applied entry",
}
_NUMBERED: Final = (b"b", b"s", b"r", b"q", b"j")  # the kinds with an id, or the number of a page, after the topic
_OF_GROUPS: Final = (b"W", b"S", b"R")  # the kinds with the size and the name of a group after the topic
_OF_TOPICS: Final = (*_NUMBERED, *_OF_GROUPS, b"n", b"d", b"p", b"w", b"o", b"t", b"v")

NEXT_TOPIC: Final = b"i"
NEXT_STAGE: Final = b"h"
LAST_GENERATION: Final = b"e"
APPLIED: Final = b"a"


class Applied(NamedTuple):
    """The row about the last applied entry.

    Attributes:
        position: Its sequence in the journal.
        term: The term of its leader.
        time: Its timestamp, or an earlier entry's if that is higher.
        backlog: It has left records to drop, for the next `ApplyRetention`.
    """

    position: int = 0
    term: int = 0
    time: int = 0
    backlog: bool = False

    @classmethod
    def load(cls, transaction: Any) -> Applied:
        """Reads the row; zeros before the first entry. Raises `DamagedError`."""
        row = transaction.get(APPLIED)
        return cls() if row is None else cls(*APPLIED_ENTRY.unpack(without_checksum(APPLIED, row)))


def topic_key(kind: bytes, topic_id: int) -> bytes:
    """Returns the key of a topic's row of a kind, or the prefix of its rows if the kind has several."""
    return TOPIC.pack(kind, topic_id)


def block_key(topic_id: int, first: int) -> bytes:
    """Returns the key of a block."""
    return TOPIC_NUMBER.pack(b"b", topic_id, first)


def producer_key(kind: bytes, topic_id: int, producer: bytes) -> bytes:
    """Returns the key of a producer (`p`), or the prefix of its answers (`d`)."""
    return TOPIC.pack(kind, topic_id) + bytes([len(producer)]) + producer


def acks_key(kind: bytes, topic_id: int, group: str) -> bytes:
    """Returns the key `w` of a round-robin topic's acks, or the prefix of its rows `s` or `r`.

    With a group, it is the key or prefix of that group's rows, whose kinds are the same letters in upper case.

    Raises:
        StoreError: The name of the group is too long.
    """
    if not group:
        return topic_key(kind, topic_id)
    check_reader_name(group, "group")
    name = group.encode()
    return TOPIC.pack(kind.upper(), topic_id) + bytes([len(name)]) + name


def cursor_key(topic_id: int, name: str) -> bytes:
    """Returns the key of a cursor.

    Raises:
        StoreError: The name is too long.
    """
    check_reader_name(name, "cursor")
    return TOPIC.pack(b"o", topic_id) + name.encode()


def group_of(key: bytes) -> str:
    """Returns the name of the group in a key `W`, `S` or `R`."""
    start = TOPIC.size + 1
    return key[start : start + key[TOPIC.size]].decode(errors="backslashreplace")


def after(prefix: bytes) -> bytes:
    """Returns the first key after all keys with a prefix."""
    number = int.from_bytes(prefix, "big") + 1
    return number.to_bytes(len(prefix), "big")


def rows(transaction: Any, prefix: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the rows whose keys have a prefix, in order. A value is valid until the next row is taken."""
    cursor = transaction.cursor()
    more = cursor.set_range(prefix)
    while more and cursor.key()[: len(prefix)] == prefix:
        yield bytes(cursor.key()), cursor.value()
        more = cursor.next()
    cursor.close()


def id_ranges(transaction: Any, prefix: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields topic id, first and last id of the rows `q` or `j`. Skips damaged rows."""
    for key, value in rows(transaction, prefix):
        with suppress(DamagedError):
            _, topic_id, first = TOPIC_NUMBER.unpack(key)
            yield topic_id, first, NUMBER.unpack(without_checksum(key, value))[0]


def description(key: bytes) -> str:
    """Returns a description of the row with a key, for the texts of errors."""
    kind = key[:1]
    text = _DESCRIPTIONS.get(kind, "a row of an unknown kind")
    if kind == b"g" and len(key) == PIECE.size:
        _, stage, sequence, *_ = PIECE.unpack(key)
        return f"{text} {sequence} of the stage with the number {stage}"
    if kind in (b"G", b"c"):
        return f"{text} {key[1:].decode(errors='backslashreplace')!r}"
    if kind == b"o":  # its name is what `delete_durable` takes
        text += f" {key[TOPIC.size :].decode(errors='backslashreplace')!r}"
    if kind in _OF_GROUPS and len(key) > TOPIC.size:
        text += f" {group_of(key)!r}"
    if kind in _NUMBERED and len(key) == TOPIC_NUMBER.size:
        text += f" {TOPIC_NUMBER.unpack(key)[2]}"
    if kind in _OF_TOPICS and len(key) >= TOPIC.size:
        text += f" of topic {TOPIC.unpack_from(key)[1]}"
    return text


def with_checksum(key: bytes, value: bytes) -> bytes:
    """Returns a value followed by its checksum."""
    return value + CHECKSUM.pack(crc32c(key + value))


def without_checksum(key: bytes, value: bytes | memoryview) -> bytes:
    """Returns a value without its checksum. Raises `DamagedError` if that is wrong."""
    value = bytes(value)
    data = value[:-4]
    if len(value) < 4 or value[-4:] != CHECKSUM.pack(crc32c(data, crc32c(key))):
        raise DamagedError(f"{description(key)} is damaged: its checksum is wrong")
    return data


def block_prefix(key: bytes, header: bytes, kind: int, when: int) -> bytes:
    """Returns the bytes before the records of a block, or before the key of the piece that holds them."""
    return BLOCK.pack(kind, crc32c(_SUMMED.pack(key, kind, when, header)), when, header)


def block_header(key: bytes, value: bytes | memoryview) -> tuple[int, int, bytes]:
    """Returns kind, time and header of a block. Raises `DamagedError` if the checksum is wrong."""
    if len(value) >= BLOCK.size:
        kind, checksum, when, header = BLOCK.unpack_from(value)
        if checksum == crc32c(value[_COVERED : BLOCK.size], crc32c(value[:1], crc32c(key))):
            return kind, when, header
    raise DamagedError(f"the header of {description(key)} is damaged: its checksum is wrong")
