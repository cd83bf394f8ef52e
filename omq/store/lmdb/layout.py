"""The layout of an LMDB environment: keys, and the structs of values.

A key begins with a letter, its kind. A value ends, or a block's begins, with a checksum that covers its key
as well: what lies under a wrong key is found, too.

    b  topic, first id                       a block: kind, checksum, when, header, records or the key of a piece
    n  topic                                 where it stands: first, last, bytes
    d  topic, producer, sequence             an append that was done: first, count, timestamp
    p  topic, producer                       seen when, the sequence below which all is forgotten
    w  topic                                 watermark, highest id handed out
    s  topic, page                           which ids of a page are settled
    r  topic, id                             how often it was handed out
    o  topic, name                           a named position
    g  stage, sequence, part, count          records that wait for their commit, or have had it
    G  name                                  a stage: its number, topic, when it was made, highest sequence
    c  name                                  a commit: when, and what it published
    q  topic, first id                       the last id of what is damaged
    j  topic, first id                       the last id of what was passed over after a crash
    h                                        the number of the next stage
    t  topic                                 the catalog (strong only): name and settings
    v  topic                                 the highest id that a topic may give which is not strong (strong only)
    i                                        the id of the next topic (strong only)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from omq._core.blocks import HEADER_SIZE, crc32c
from omq.store.errors import DamagedError

TOPIC: Final = struct.Struct(">cI")
TOPIC_NUMBER: Final = struct.Struct(">cIQ")  # blocks, pages, deliveries, quarantine
PIECE: Final = struct.Struct(">cQQII")  # stage, sequence, part, records
NUMBER: Final = struct.Struct(">Q")
TWO: Final = struct.Struct(">QQ")
THREE: Final = struct.Struct(">QQQ")
STAGE: Final = struct.Struct(">QIQQ")  # number, topic, made, highest sequence
CHECKSUM: Final = struct.Struct(">I")

#: What a block's checksum covers: key, kind, when, header.
_SUMMED: Final = struct.Struct(f">{TOPIC_NUMBER.size}sBQ{HEADER_SIZE}s")
#: A block: kind, checksum of key, kind and what follows, when by the store's clock, header; then the content.
BLOCK: Final = struct.Struct(f">BIQ{HEADER_SIZE}s")
_COVERED: Final = 5  # where that begins
INLINE: Final = 0  # records
STAGED: Final = 1  # the key of a piece

NEXT_TOPIC: Final = b"i"
NEXT_STAGE: Final = b"h"


def topic_key(kind: bytes, topic_id: int) -> bytes:
    """The key of the one thing of a kind that a topic has, and the beginning of those that it has more of."""
    return TOPIC.pack(kind, topic_id)


def block_key(topic_id: int, first: int) -> bytes:
    """The key of a block."""
    return TOPIC_NUMBER.pack(b"b", topic_id, first)


def producer_key(kind: bytes, topic_id: int, producer: bytes) -> bytes:
    """The key of a producer (`p`), or the beginning of what it did (`d`)."""
    return TOPIC.pack(kind, topic_id) + bytes([len(producer)]) + producer


def after(prefix: bytes) -> bytes:
    """Returns the first key after all that begin with `prefix`."""
    number = int.from_bytes(prefix, "big") + 1
    return number.to_bytes(len(prefix), "big")


def rows(transaction: Any, prefix: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the rows whose keys begin with *prefix*, in the order of these; each value until the next one."""
    cursor = transaction.cursor()
    more = cursor.set_range(prefix)
    while more and cursor.key()[: len(prefix)] == prefix:
        yield bytes(cursor.key()), cursor.value()
        more = cursor.next()
    cursor.close()


def id_ranges(transaction: Any, prefix: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields topic, first and last id of the rows `q` or `j`; a damaged one is left out."""
    for key, value in rows(transaction, prefix):
        with suppress(DamagedError):
            _, topic_id, first = TOPIC_NUMBER.unpack(key)
            yield topic_id, first, NUMBER.unpack(opened(key, value))[0]


def sealed(key: bytes, value: bytes) -> bytes:
    """Returns a value followed by its checksum."""
    return value + CHECKSUM.pack(crc32c(key + value))


def opened(key: bytes, value: bytes | memoryview) -> bytes:
    """Returns the value that `sealed` was given; raises `DamagedError` if the checksum is wrong."""
    value = bytes(value)
    data = value[:-4]
    if len(value) < 4 or value[-4:] != CHECKSUM.pack(crc32c(data, crc32c(key))):
        raise DamagedError(f"what is stored under {key!r} is damaged")
    return data


def block_prefix(key: bytes, header: bytes, kind: int, when: int) -> bytes:
    """Returns the bytes before the records of a block, or before the key of the piece that holds them."""
    return BLOCK.pack(kind, crc32c(_SUMMED.pack(key, kind, when, header)), when, header)


def block_header(key: bytes, value: bytes | memoryview) -> tuple[int, int, bytes]:
    """Kind, time and header of a block; `DamagedError` where they are not what was written."""
    if len(value) >= BLOCK.size:
        kind, checksum, when, header = BLOCK.unpack_from(value)
        if checksum == crc32c(value[_COVERED : BLOCK.size], crc32c(value[:1], crc32c(key))):
            return kind, when, header
    raise DamagedError(f"the header of the block under {key!r} is damaged")
