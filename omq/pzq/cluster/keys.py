"""Sets and maps of message keys. The keys of messages that were stored together cost as much as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar, overload

from omq.ranges import RangeMap

V = TypeVar("V")

#: A key (see `omq.pzq.wire.key_format`): the head that messages share which were stored together, and a number.
_KEY: Final = re.compile(r"([0-9]{1,20}\|[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-)([0-9a-f]{12})")
_LAST: Final = 0xFFFFFFFFFFFF


class KeyRange(NamedTuple):
    """Keys of one head with consecutive numbers.

    Attributes:
        head: The part before the number.
        first: The number of the first one.
        end: The number after the last one.
    """

    head: str
    first: int
    end: int

    def texts(self) -> list[str]:
        """Returns the keys."""
        head, first, end = self
        return [f"{head}{number:012x}" for number in range(first, end)]


class StoredAt(NamedTuple):
    """The store, topic and time of messages, from the head of their keys.

    Attributes:
        stem: The store and the topic (see `omq.pzq.wire.stem_of`).
        stored: The time of the write, in microseconds since 1970.
        base: The difference between a message's id and the number in its key.
    """

    stem: str
    stored: int
    base: int

    @classmethod
    def of(cls, head: str) -> StoredAt:
        """Reads the head of keys."""
        stored, _, uuid = head.partition("|")
        return cls(uuid[:18], int(stored), (int(uuid[19:23], 16) & 0x3FFF) << 48)


class Keys(Sequence[str]):
    """A sequence of keys. The texts are made when they are read.

    Args:
        ranges: The keys as ranges.
    """

    __slots__ = ("_count", "ranges")

    def __init__(self, ranges: Sequence[KeyRange]) -> None:
        self.ranges = ranges
        self._count = sum([end - first for _, first, end in ranges])

    @classmethod
    def of(cls, keys: Iterable[str]) -> Keys:
        """Returns keys as `Keys`."""
        if isinstance(keys, Keys):
            return keys
        ranges: list[KeyRange] = []
        head, first, end = "", 0, 0
        following: str | None = None
        for key in keys:
            if key == following:
                end += 1
            else:
                if first < end:
                    ranges.append(KeyRange(head, first, end))
                head, first = split(key)
                end = first + 1
            following = f"{head}{end:012x}" if end <= _LAST else None
        if first < end:
            ranges.append(KeyRange(head, first, end))
        return cls(ranges)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for range_ in self.ranges:
            yield from range_.texts()

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(self)[index]
        at = index if index >= 0 else self._count + index
        for head, first, end in self.ranges:
            if 0 <= at < end - first:
                return f"{head}{first + at:012x}"
            at -= end - first
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Keys):
            return self.ranges == other.ranges or (self._count == other._count and list(self) == list(other))
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equality compares the keys, which may be many

    def __repr__(self) -> str:
        return repr(list(self))


def split(key: str) -> tuple[str, int]:
    """Returns a key's head and number.

    Raises:
        ValueError: The text is not the key of a message.
    """
    found = _KEY.fullmatch(key)
    if found is None:
        raise ValueError(f"{key[:80]!r} is not the key of a message")
    return found[1], int(found[2], 16)


class KeyMap(Generic[V]):
    """A map of keys, in the order in which their heads were added. Keys of one range cost no more than one key."""

    __slots__ = ("_count", "_heads")

    def __init__(self) -> None:
        self._heads: dict[str, RangeMap[V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: str) -> bool:
        head, number = split(key)
        ranges = self._heads.get(head)
        return ranges is not None and ranges.overlaps(number, number)

    def __iter__(self) -> Iterator[str]:
        for range_, _ in self.ranges():
            yield from range_.texts()

    def ranges(self) -> Iterator[tuple[KeyRange, V]]:
        """Yields the ranges of keys with their values."""
        for head, ranges in self._heads.items():
            for one in ranges:
                yield KeyRange(head, one.first, one.last + 1), one.value

    def get(self, key: str) -> V | None:
        """Returns the value of a key; `None` without one."""
        head, number = split(key)
        ranges = self._heads.get(head)
        found = None if ranges is None else ranges.get(number)
        return None if found is None else found.value

    def find(self, keys: Iterable[str]) -> list[tuple[KeyRange, V]]:
        """Returns those of some keys that are in the map, with their values."""
        found: list[tuple[KeyRange, V]] = []
        if self._heads:
            for head, first, end in Keys.of(keys).ranges:
                if (ranges := self._heads.get(head)) is not None:
                    found += [
                        (KeyRange(head, one.first, one.last + 1), one.value) for one in ranges.within(first, end - 1)
                    ]
        return found

    def put(self, keys: Iterable[str], value: V) -> None:
        """Sets the value of keys."""
        for range_ in Keys.of(keys).ranges:
            self.put_range(range_, value)

    def put_range(self, range_: KeyRange, value: V) -> None:
        """Sets the value of the keys of one range."""
        head, first, end = range_
        ranges = self._heads.get(head)
        if ranges is None:
            ranges = self._heads[head] = RangeMap()
        before = ranges.count
        ranges.put(first, end - 1, value)
        self._count += ranges.count - before

    def take(self, keys: Iterable[str]) -> list[tuple[KeyRange, V]]:
        """Removes those of some keys that are in the map; returns them with their values."""
        taken: list[tuple[KeyRange, V]] = []
        if not self._heads:
            return taken
        for head, first, end in Keys.of(keys).ranges:
            ranges = self._heads.get(head)
            if ranges is None:
                continue
            for one in ranges.take(first, end - 1):
                taken.append((KeyRange(head, one.first, one.last + 1), one.value))
                self._count -= one.count
            if not ranges:
                del self._heads[head]
        return taken


def keys_in(maps: Iterable[KeyMap[V]]) -> KeyMap[None]:
    """Returns a map with the keys of all *maps*."""
    keys: KeyMap[None] = KeyMap()
    for some in maps:
        for range_, _ in some.ranges():
            keys.put_range(range_, None)
    return keys


class PositionMap(KeyMap[int]):
    """A map of keys to positions. Messages of one range have consecutive positions."""

    # The value of a range is the position that its number 0 would have.

    __slots__ = ()

    def add(self, keys: Iterable[str], position: int) -> None:
        """Adds messages, the first of them at *position*, the others after it."""
        for range_ in Keys.of(keys).ranges:
            self.put_range(range_, position - range_.first)
            position += range_.end - range_.first

    def positions(self, keys: Iterable[str]) -> list[int]:
        """Returns the positions of those messages that are in the map."""
        return [
            position for range_, base in self.find(keys) for position in range(base + range_.first, base + range_.end)
        ]

    def take_positions(self, keys: Iterable[str]) -> dict[str, int]:
        """Removes messages; returns the positions of those that were in the map."""
        return {
            key: position
            for range_, base in self.take(keys)
            for key, position in zip(range_.texts(), range(base + range_.first, base + range_.end), strict=True)
        }


class KeysById:
    """Keys of messages by their ids in a topic."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        # The head of the keys, and the difference between their numbers and the ids.
        self._ranges: RangeMap[tuple[str, int]] = RangeMap()

    def add(self, first_id: int, keys: Iterable[str]) -> None:
        """Adds messages with consecutive ids from *first_id*."""
        for head, first, end in Keys.of(keys).ranges:
            self._ranges.put(first_id, first_id + end - first - 1, (head, first - first_id))
            first_id += end - first

    def get(self, id: int) -> str | None:
        """Returns the key of a message; `None` without one."""
        found = self._ranges.get(id)
        return None if found is None else f"{found.value[0]}{found.value[1] + id:012x}"

    def take(self, id: int) -> str | None:
        """Removes a message; returns its key, or `None` without one."""
        for one in self._ranges.take(id, id):
            head, above = one.value
            return f"{head}{above + id:012x}"
        return None


class RecentKeys:
    """A bounded set of recent keys. When it is full, the keys with the lowest ids are evicted, which are the oldest.

    Evicting the key that was added first would be wrong: a node that asks about all keys in their order adds evicted
    keys again, and each of these would evict the key that the node asks about next. Ids of different stores cannot be
    compared, so the store with the most ranges loses keys.

    Args:
        limit: The largest number of ranges.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stores: dict[str, RangeMap[str]] = {}  # by stem, the heads of keys by the ids of their messages
        self._count = 0

    def __iter__(self) -> Iterator[str]:
        for ranges in self._stores.values():
            for one in ranges:
                base = StoredAt.of(one.value).base
                yield from KeyRange(one.value, one.first - base, one.last + 1 - base).texts()

    def __len__(self) -> int:
        """Returns the number of ranges."""
        return self._count

    def find(self, keys: Iterable[str]) -> list[KeyRange]:
        """Returns those of some keys that are in the set."""
        found: list[KeyRange] = []
        for head, first, end in Keys.of(keys).ranges if self._stores else ():
            stem, _, base = StoredAt.of(head)
            if (ranges := self._stores.get(stem)) is not None:
                found += [
                    KeyRange(head, one.first - base, one.last + 1 - base)
                    for one in ranges.within(base + first, base + end - 1)
                    if one.value == head
                ]
        return found

    def add(self, keys: Iterable[str]) -> None:
        """Adds keys."""
        for head, first, end in Keys.of(keys).ranges:
            stem, _, base = StoredAt.of(head)
            ranges = self._stores.setdefault(stem, RangeMap())
            self._count -= len(ranges)
            ranges.put(base + first, base + end - 1, head)
            self._count += len(ranges)
        while (over := self._count - self._limit) > 0:
            stem, ranges = max(self._stores.items(), key=lambda one: len(one[1]))
            lowest = list(islice(ranges, over + self._limit // 64))
            ranges.take(lowest[0].first, lowest[-1].last)
            self._count -= len(lowest)
            if not ranges:
                del self._stores[stem]
