"""The answers to READ, which are blocks of a topic as stored, and to OFFSET_AFTER."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from omq._core.blocks import read_header, slice
from omq.broker import protocol as p
from omq.broker.core.topic import Topic
from omq.broker.errors import Damaged, broker_error
from omq.store.block_builder import count_reaching
from omq.store.errors import DamagedError, StoreError
from omq.store.interface import Store

#: Blocks in one RANGE.
_MAX_RANGE_BLOCKS: Final = 1024
#: Bytes of blocks that one OFFSET_AFTER scans.
MAX_SCAN_BYTES: Final = 32 << 20


class RangeRead(NamedTuple):
    """The arguments of one READ.

    Attributes:
        tag: The tag of the request.
        topic: The topic to read.
        start: The first id.
        stop: The id after the last one; 0 reads to the end.
        limit: The approximate bytes of records to return, at most `protocol.MAX_RANGE_BYTES`.
    """

    tag: bytes
    topic: Topic
    start: int
    stop: int
    limit: int


def offset_after(store: Store, topic: Topic, start: int, stop: int, size: int) -> tuple[int, int]:
    """Returns the offset after *size* bytes of messages, and after at least one message.

    Damaged messages count 0 bytes.

    Args:
        store: The store that has the topic.
        topic: The topic.
        start: The first id.
        stop: The id to stop at; 0 is the end of the topic.
        size: Bytes of records.

    Returns:
        The offset, and the bytes of records before it. The bytes may be less than *size* before the end: a call scans
        at most `MAX_SCAN_BYTES`, and the caller continues from the offset.

    Raises:
        BrokerError: The topic cannot be read.
    """
    scanned = 0
    try:
        with store.read(topic.id) as reader:
            end = min(stop, reader.last + 1) if stop else reader.last + 1
            offset = max(start, reader.first)
            while offset < end:
                try:
                    for header, records in reader.blocks(offset, end):
                        first, count, _, length = read_header(header)
                        if scanned + length >= size:
                            needed = count_reaching(records, max(size - scanned, 1))
                            return first + needed, scanned + len(slice(records, 0, needed))
                        scanned, offset = scanned + length, first + count
                        if scanned >= MAX_SCAN_BYTES:
                            return offset, scanned
                    return end, scanned
                except DamagedError as error:
                    offset = max(error.last, offset) + 1
            return max(end, start), scanned
    except StoreError as error:
        raise broker_error(error) from None


def answer_read(store: Store, read: RangeRead, put: Callable[[tuple[bytes | memoryview, ...]], None]) -> None:
    """Answers a READ.

    Args:
        store: The store that has the topic.
        read: The READ.
        put: Sends the answer. The memory views in it are valid until it returns, so it copies what it does not send.

    Raises:
        BrokerError: The topic cannot be read.
    """
    limit = min(read.limit, p.MAX_RANGE_BYTES)
    try:
        with store.read(read.topic.id) as reader:
            first, last = reader.first, reader.last
            start = max(read.start, first)
            end = min(read.stop, last + 1) if read.stop else last + 1
            parts: list[bytes | memoryview] = []
            size, next_id = 0, start
            try:
                if start < end:
                    for header, records in reader.blocks(start, end):
                        if parts and (size + len(records) > limit or len(parts) >= 2 * _MAX_RANGE_BLOCKS):
                            break
                        parts += (header, records)
                        size += len(records)
                        block_first, count, _, _ = read_header(header)
                        next_id = block_first + count
                    else:
                        next_id = end
            except DamagedError as error:
                if not parts:
                    raise Damaged(f"topic {read.topic.name!r}: {error}", error.first, error.last) from None
                next_id = error.first
            following = next_id if next_id < end else 0
            put((p.RANGE, read.tag, p.u64(following), p.u64(first), *parts))
    except StoreError as error:
        raise broker_error(error) from None
