"""Appends of one turn become blocks of a good size: small ones are joined, large ones cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from omq._core import blocks
from omq.store.interface import BLOCK_BYTES

Records = bytes | memoryview
SEARCH_STEP_BYTES: Final = 4096  # between which single records are looked for


def pieces(records: Records, count: int) -> Iterator[tuple[Records, int]]:
    """Records, cut to blocks if they are much more than one; each piece with its count."""
    if len(records) <= 2 * BLOCK_BYTES:
        yield records, count
        return
    view = memoryview(records)
    begin = done = 0
    for end, records_done in blocks.cuts(view, BLOCK_BYTES):
        yield view[begin:end], records_done - done
        begin, done = end, records_done


def reaching(records: Records, size: int) -> int:
    """Returns how many of the first records have `size` bytes together; all where they have fewer."""
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
    """A block that may still grow.

    Attributes:
        first: The id of its first record.
        count: Its records.
        size: Their bytes.
        parts: Their bytes, in order.
    """

    __slots__ = ("count", "first", "parts", "size")

    def __init__(self, first: int, records: Records, count: int) -> None:
        self.first = first
        self.count = count
        self.size = len(records)
        self.parts: list[Records] = [records]

    def takes(self, records: Records) -> bool:
        """Returns whether the records fit into the block."""
        return self.size + len(records) <= BLOCK_BYTES

    def add(self, records: Records, count: int) -> None:
        """Adds what follows."""
        self.parts.append(records)
        self.count += count
        self.size += len(records)
