"""Sets and maps of integer ids, kept as sorted, disjoint ranges: time and memory depend on the ranges, not on the ids.

A range is given by its first and its last id, both included.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, MutableSequence
from operator import attrgetter
from typing import Final, Generic, TypeVar

V = TypeVar("V")

_last: Final = attrgetter("last")


class Range(Generic[V]):
    """Consecutive ids with the same value.

    Attributes:
        first: The first id.
        last: The last id, included.
        value: The value of each id.
    """

    __slots__ = ("first", "last", "value")

    def __init__(self, first: int, last: int, value: V) -> None:
        self.first = first
        self.last = last
        self.value = value

    def __repr__(self) -> str:
        return f"<{self.first} to {self.last}: {self.value!r}>"

    @property
    def count(self) -> int:
        """The number of ids."""
        return self.last - self.first + 1


class RangeMap(Generic[V]):
    """A map of ids to values; adjacent ids with equal values form one range.

    Iteration and `len` go by ranges, `count` by ids.

    Attributes:
        count: The number of ids that have a value; may be read from any thread.
    """

    __slots__ = ("_ranges", "count")

    def __init__(self) -> None:
        self._ranges: list[Range[V]] = []
        self.count = 0

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[Range[V]]:
        return iter(self._ranges)

    @property
    def head(self) -> Range[V]:
        """The range with the lowest ids."""
        return self._ranges[0]

    def _find(self, id: int) -> int:
        """Returns the index of the first range that ends with `id` or later."""
        ranges = self._ranges
        if not ranges or ranges[-1].last < id:
            return len(ranges)
        return 0 if ranges[0].last >= id else bisect_left(ranges, id, key=_last)

    def get(self, id: int) -> Range[V] | None:
        """Returns the range that has an id; `None` where the id has no value."""
        at = self._find(id)
        return one if at < len(self._ranges) and (one := self._ranges[at]).first <= id else None

    def overlaps(self, first: int, last: int) -> bool:
        """Returns whether any id of `first` to `last` has a value."""
        at = self._find(first)
        return at < len(self._ranges) and self._ranges[at].first <= last

    def within(self, first: int, last: int) -> Iterator[Range[V]]:
        """Yields the ranges of those ids of `first` to `last` that have a value."""
        ranges, at = self._ranges, self._find(first)
        while at < len(ranges) and (one := ranges[at]).first <= last:
            yield Range(max(one.first, first), min(one.last, last), one.value)
            at += 1

    def put(self, first: int, last: int, value: V) -> None:
        """Sets the value of the ids `first` to `last`."""
        ranges, at = self._ranges, self._find(first)
        if at < len(ranges) and ranges[at].first <= last:
            self.take(first, last)
            at = self._find(first)
        self.count += last - first + 1
        if at and (one := ranges[at - 1]).last == first - 1 and one.value == value:
            one.last = last
        else:
            one = Range(first, last, value)
            ranges[at:at] = [one]  # in long lists faster than `insert`, which moves item by item
            at += 1
        if at < len(ranges) and (after := ranges[at]).first == last + 1 and after.value == value:
            one.last = after.last
            del ranges[at]

    def take(self, first: int, last: int) -> list[Range[V]]:
        """Removes the ids `first` to `last`; returns the ranges of those that had a value."""
        ranges, low = self._ranges, self._find(first)
        taken: list[Range[V]] = []
        if low < len(ranges) and (one := ranges[low]).first < first:
            low += 1
            if one.last > last:
                ranges[low:low] = [Range(last + 1, one.last, one.value)]
                taken.append(Range(first, last, one.value))
            else:
                taken.append(Range(first, one.last, one.value))
            one.last = first - 1
        high = low
        while high < len(ranges) and (one := ranges[high]).first <= last:
            if one.last > last:
                taken.append(Range(one.first, last, one.value))
                one.first = last + 1
                break
            taken.append(one)
            high += 1
        if low < high:
            del ranges[low:high]
        for one in taken:
            self.count -= one.last - one.first + 1
        return taken


class RangeSet:
    """A set of ids, kept as ranges.

    Iteration and `len` go by ranges, `count` by ids.

    Args:
        ranges: The first and the last id of each initial range.
    """

    __slots__ = ("_map",)

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._map: RangeMap[None] = RangeMap()
        for first, last in ranges:
            self.add(first, last)

    def __len__(self) -> int:
        return len(self._map)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((one.first, one.last) for one in self._map)

    def __contains__(self, id: int) -> bool:
        return self._map.overlaps(id, id)

    @property
    def count(self) -> int:
        """The number of ids in the set; may be read from any thread."""
        return self._map.count

    @property
    def first(self) -> int:
        """The lowest id."""
        return self._map.head.first

    def add(self, first: int, last: int) -> None:
        """Adds the ids `first` to `last`."""
        self._map.put(first, last, None)

    def discard(self, first: int, last: int) -> list[tuple[int, int]]:
        """Removes the ids `first` to `last`; returns the ranges of those that were in the set."""
        return [(one.first, one.last) for one in self._map.take(first, last)]

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges of those ids of `first` to `last` that are in the set."""
        return ((one.first, one.last) for one in self._map.within(first, last))

    def missing(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges of those ids of `first` to `last` that are not in the set."""
        return gaps(self.within(first, last), first, last)

    def first_gap(self, id: int) -> int:
        """Returns the lowest id from `id` on that is not in the set."""
        found = self._map.get(id)
        return id if found is None else found.last + 1


def gaps(ranges: Iterable[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges of the ids `first` to `last` that the ascending *ranges* do not contain."""
    for begin, end in ranges:
        if begin > last:
            break
        if first < begin:
            yield first, begin - 1
        first = max(first, end + 1)
    if first <= last:
        yield first, last


def append_range(ranges: MutableSequence[tuple[int, int]], first: int, last: int) -> None:
    """Appends a range to a list; merges it with the last range if they are adjacent."""
    if ranges and ranges[-1][1] + 1 == first:
        ranges[-1] = ranges[-1][0], last
    else:
        ranges.append((first, last))


def ranges_of(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Returns the ascending ranges that contain *ids*."""
    ordered = sorted(ids)
    if not ordered:
        return []
    found: list[tuple[int, int]] = []
    first = last = ordered[0]
    for id in ordered:
        if id > last + 1:
            found.append((first, last))
            first = id
        last = id
    found.append((first, last))
    return found
