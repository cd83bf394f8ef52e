"""The ack set of a round-robin topic or consumer group: its ack floor, and bitmaps of the acked ids above it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from omq.ranges import gaps

PAGE_IDS: Final = 4096


class AckSet:
    """The acknowledged ids of one topic, or of one consumer group. Not thread-safe.

    Attributes:
        floor: The ack floor: all ids up to it are acknowledged.
        last_delivered: The highest id ever delivered.
        pages: Bitmaps of acknowledged ids above the floor, by page number: bit `id % PAGE_IDS` of page
            `id // PAGE_IDS`.
        deliveries: The number of failed deliveries by id.
        generation: The generation of the group, from `SetGroup`; 0 without a group.
    """

    __slots__ = ("counted", "deliveries", "dirty", "floor", "generation", "last_delivered", "pages")

    def __init__(
        self,
        floor: int = 0,
        last_delivered: int = 0,
        pages: dict[int, int] | None = None,
        deliveries: dict[int, int] | None = None,
        generation: int = 0,
    ) -> None:
        self.floor = floor
        self.last_delivered = last_delivered
        self.pages = pages if pages is not None else {}
        self.deliveries = deliveries if deliveries is not None else {}
        self.generation = generation
        self.dirty: set[int] = set()  # numbers of the pages that `add` has changed or dropped
        self.counted: set[int] = set()  # ids whose deliveries were changed or dropped

    def __contains__(self, id: int) -> bool:
        return id <= self.floor or bool(self.pages.get(id // PAGE_IDS, 0) >> id % PAGE_IDS & 1)

    def copy(self) -> AckSet:
        """Returns a copy."""
        return AckSet(self.floor, self.last_delivered, dict(self.pages), dict(self.deliveries), self.generation)

    def is_of(self, generation: int) -> bool:
        """Returns whether a write about a generation of the group is about this ack set; 0 is any generation."""
        return generation in (0, self.generation)

    def record(
        self, ranges: Iterable[tuple[int, int]], last_delivered: int, deliveries: Mapping[int, int], dropped: int
    ) -> int:
        """Records the content of an `Acknowledge`; returns the ack floor then.

        Args:
            ranges: The acknowledged ids.
            last_delivered: The highest id ever delivered.
            deliveries: The delivery counts.
            dropped: All messages up to this id were dropped, and so count as acknowledged.
        """
        self.add(1, dropped)
        self.last_delivered = max(self.last_delivered, last_delivered)
        self.count(deliveries)
        for first, last in ranges:
            self.add(first, last)
        return self.floor

    def add(self, first: int, last: int) -> None:
        """Adds the ids `first` to `last`, both included, and advances the ack floor as far as possible."""
        first = max(first, self.floor + 1)
        if last < first:
            return
        if first == self.floor + 1:
            self._advance(last)
        else:
            for number in range(first // PAGE_IDS, last // PAGE_IDS + 1):
                base = number * PAGE_IDS
                low, high = max(first - base, 0), min(last - base, PAGE_IDS - 1)
                self.pages[number] = self.pages.get(number, 0) | ((1 << high - low + 1) - 1) << low
                self.dirty.add(number)
        if self.deliveries:
            few = last - first < len(self.deliveries)
            for id in range(first, last + 1) if few else list(self.deliveries):
                if first <= id <= last and self.deliveries.pop(id, None) is not None:
                    self.counted.add(id)

    def count(self, deliveries: Mapping[int, int]) -> None:
        """Sets delivery counts, but not those of acknowledged ids."""
        for id, number in deliveries.items():
            if id not in self:
                self.deliveries[id] = number
                self.counted.add(id)

    def _advance(self, floor: int) -> None:
        """Advances the ack floor to *floor*, and past the acknowledged ids that follow it."""
        while True:
            number, bit = divmod(floor + 1, PAGE_IDS)
            page = self.pages.get(number, 0) >> bit
            ones = (~page & page + 1).bit_length() - 1  # acknowledged ids in a row, from this one
            floor += ones
            if not ones or bit + ones < PAGE_IDS:
                break
        self.floor = floor
        if self.pages:
            now = floor // PAGE_IDS
            for number in [number for number in self.pages if number < now]:
                del self.pages[number]
                self.dirty.add(number)
            if now in self.pages:
                rest = self.pages[now] >> floor % PAGE_IDS + 1 << floor % PAGE_IDS + 1
                self.dirty.add(now)
                if rest:
                    self.pages[now] = rest
                else:
                    del self.pages[now]

    def above(self, id: int) -> Iterator[tuple[int, int]]:
        """Yields the first and last id of each range of acknowledged ids above an id."""
        first, last = 1, 0  # none yet
        for number in sorted(self.pages):
            page, at = self.pages[number], number * PAGE_IDS
            if at <= id:
                page, at = page >> id + 1 - at, id + 1
            while page:
                zeros = (page & -page).bit_length() - 1
                page >>= zeros
                ones = (~page & page + 1).bit_length() - 1
                page >>= ones
                at += zeros
                if at > last + 1 or first > last:
                    if first <= last:
                        yield first, last
                    first = at
                at += ones
                last = at - 1
        if first <= last:
            yield first, last

    def missing(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields the first and last id of each range of ids from `first` to `last` that are not acknowledged."""
        return gaps(self.above(self.floor), max(first, self.floor + 1), last)
