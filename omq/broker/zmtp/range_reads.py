"""Answers READ with blocks of a topic as they are stored, and OFFSET_AFTER with the offset after a number of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from omq._core.blocks import read_header, slice
from omq.broker import protocol as p
from omq.broker.core.topic import Topic
from omq.broker.errors import Damaged, broker_error
from omq.store.block_builder import reaching
from omq.store.errors import DamagedError, StoreError
from omq.store.interface import Log

#: Bytes of the blocks of one RANGE, and how many they are.
MAX_RANGE_BYTES: Final = 4 << 20
_MAX_RANGE_BLOCKS: Final = 1024
#: Bytes of blocks that one OFFSET_AFTER looks at.
MAX_REACH_BYTES: Final = 32 << 20


class RangeRead(NamedTuple):
    """The arguments of one READ.

    Attributes:
        tag: Its tag.
        topic: Where.
        start: The first id.
        stop: The id after the last; 0: to the end.
        limit: Bytes of records, about; `MAX_RANGE_BYTES` at most.
    """

    tag: bytes
    topic: Topic
    start: int
    stop: int
    limit: int


def offset_after(store: Log, topic: Topic, start: int, stop: int, size: int) -> tuple[int, int]:
    """Returns how far *size* bytes of messages reach, one message at least; damaged ones count as nothing.

    Args:
        store: Where the topic is.
        topic: Which.
        start: The first id.
        stop: Where to end in any case; 0: after the last id.
        size: Bytes of records.

    Returns:
        The id after them, and how many bytes they have. Where these are fewer than asked for, and the id is not the
        end, that was enough for one time.

    Raises:
        BrokerError: The topic cannot be read.
    """
    seen = 0
    try:
        with store.read(topic.id) as reader:
            end = min(stop, reader.last + 1) if stop else reader.last + 1
            at = max(start, reader.first)
            while at < end:
                try:
                    for header, records in reader.blocks(at, end):
                        first, count, _, length = read_header(header)
                        if seen + length >= size:
                            number = reaching(records, max(size - seen, 1))
                            return first + number, seen + len(slice(records, 0, number))
                        seen, at = seen + length, first + count
                        if seen >= MAX_REACH_BYTES:
                            return at, seen
                    return end, seen
                except DamagedError as error:
                    at = max(error.last, at) + 1
            return max(end, start), seen
    except StoreError as error:
        raise broker_error(error) from None


def answer_read(store: Log, read: RangeRead, put: Callable[[tuple[bytes | memoryview, ...]], None]) -> None:
    """Answers a READ.

    Args:
        store: The store that has the topic.
        read: The READ.
        put: Sends the answer. The views in it hold until it returns: it sends them, or copies them.

    Raises:
        BrokerError: It cannot be answered.
    """
    limit = min(read.limit, MAX_RANGE_BYTES)
    try:
        with store.read(read.topic.id) as reader:
            first, last = reader.first, reader.last
            start = max(read.start, first)
            end = min(read.stop, last + 1) if read.stop else last + 1
            parts: list[bytes | memoryview] = []
            size, on = 0, start
            try:
                if start < end:
                    for header, records in reader.blocks(start, end):
                        if parts and (size + len(records) > limit or len(parts) >= 2 * _MAX_RANGE_BLOCKS):
                            break
                        parts += (header, records)
                        size += len(records)
                        on = int.from_bytes(header[8:16], "big") + int.from_bytes(header[4:8], "big")
                    else:
                        on = end
            except DamagedError as error:
                if not parts:
                    raise Damaged(f"topic {read.topic.name!r}: {error}", error.first, error.last) from None
                on = error.first
            following = on if on < end else 0
            put((p.RANGE, read.tag, p.u64(following), p.u64(first), *parts))
    except StoreError as error:
        raise broker_error(error) from None
