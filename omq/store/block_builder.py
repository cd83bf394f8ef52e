"""Builds blocks of about `BLOCK_BYTES` from appends: joins small ones and cuts large ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from omq._core import blocks
from omq.store.interface import BLOCK_BYTES

Records = bytes | memoryview
SEARCH_STEP_BYTES: Final = 4096  # within a step, `count_reaching` looks at single records


def pieces(records: Records, count: int) -> Iterator[tuple[Records, int]]:
    """Yields records in pieces of about a block, each with its count. Less than two blocks stay in one piece."""
    if len(records) <= 2 * BLOCK_BYTES:
        yield records, count
        return
    view = memoryview(records)
    begin = done = 0
    for end, records_done in blocks.cuts(view, BLOCK_BYTES):
        yield view[begin:end], records_done - done
        begin, done = end, records_done


def count_reaching(records: Records, size: int) -> int:
    """Returns the number of leading records that reach `size` bytes together; all if they do not."""
    view = memoryview(records)
    begin = done = 0
    for end, count in blocks.cuts(view, SEARCH_STEP_BYTES):
        if end >= size:
            for inner, number in blocks.cuts(view[begin:end], 1):
                if begin + inner >= size:
                    return done + number
        begin, done = end, count
    return done


class BlockBuilder:
    """A block that can still grow.

    Attributes:
        first: The id of its first record.
        count: The number of its records.
        size: Their size in bytes.
        parts: Their bytes, in order.
    """

    __slots__ = ("count", "first", "parts", "size")

    def __init__(self, first: int, records: Records, count: int) -> None:
        self.first = first
        self.count = count
        self.size = len(records)
        self.parts: list[Records] = [records]

    def has_room(self, records: Records) -> bool:
        """Returns whether the records fit into the block."""
        return self.size + len(records) <= BLOCK_BYTES

    def add(self, records: Records, count: int) -> None:
        """Adds the records that follow."""
        self.parts.append(records)
        self.count += count
        self.size += len(records)
