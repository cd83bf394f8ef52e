"""Appends of one turn become blocks of a good size: small ones are joined, large ones cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from omq._core import blocks
from omq.store.interface import BLOCK_SIZE

Records = bytes | memoryview
STEP: Final = 4096  # bytes between which single records are looked for


def pieces(records: Records, count: int) -> Iterator[tuple[Records, int]]:
    """Records, cut to blocks if they are much more than one; each piece with its count."""
    if len(records) <= 2 * BLOCK_SIZE:
        yield records, count
        return
    view = memoryview(records)
    begin = done = 0
    for end, records_done in blocks.cuts(view, BLOCK_SIZE):
        yield view[begin:end], records_done - done
        begin, done = end, records_done


def reaching(records: Records, size: int) -> int:
    """How many of the first records it takes to have `size` bytes; all of them where they have fewer."""
    view = memoryview(records)
    begin = done = 0
    for end, count in blocks.cuts(view, STEP):
        if end >= size:
            for inner, number in blocks.cuts(view[begin:end], 1):
                if begin + inner >= size:
                    return done + number
        begin, done = end, count
    return done


class OpenBlock:
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
        """Whether so much fits."""
        return self.size + len(records) <= BLOCK_SIZE

    def add(self, records: Records, count: int) -> None:
        """Adds what follows."""
        self.parts.append(records)
        self.count += count
        self.size += len(records)
