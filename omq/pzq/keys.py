"""Keys of messages, and what belongs to them. Keys of messages that were stored together count up, and cost as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar, overload

from omq.ranges import RangeMap

V = TypeVar("V")

#: A key as nodes of omq make them (see `omq.pzq.wire.key_format`): what messages that were stored together have in
#: common, and a number.
_COUNTED: Final = re.compile(r"([0-9]{1,20}\|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3})([0-9a-f]{12})", re.ASCII)
_LAST: Final = 0xFFFFFFFFFFFF
_ALONE: Final = -1  # in place of a number: the head is the key
#: The head of such a key: when the message was stored, the topic of which store it is in, and high bits of its number.
_HEAD: Final = re.compile(r"([0-9]{1,20})\|([0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3})-([89ab][0-9a-f]{3})-", re.ASCII)


class KeyRun(NamedTuple):
    """Keys of one head whose numbers follow each other.

    Attributes:
        head: What they begin with.
        first: The number of the first one; -1 for a key that has none, and is its own head.
        end: The number behind the last one.
    """

    head: str
    first: int
    end: int

    def texts(self) -> list[str]:
        """The keys."""
        head, first, end = self
        if first == _ALONE:
            return [_text(head, number) for number in range(first, end)]
        return [f"{head}{number:012x}" for number in range(first, end)]


class Origin(NamedTuple):
    """Where keys say that their messages were stored.

    Attributes:
        stem: Which store and which topic of it.
        stored: When, in microseconds since 1970.
        base: What is added to a key's number to have that which the message has in its topic.
    """

    stem: str
    stored: int
    base: int

    @classmethod
    def of(cls, head: str) -> Origin | None:
        """What the head of keys says; `None`: nothing."""
        found = _HEAD.fullmatch(head)
        return None if found is None else cls(found[2], int(found[1]), (int(found[3], 16) & 0x3FFF) << 48)


class Keys(Sequence[str]):
    """Keys of some messages, in the order of these. They are spelt out when somebody looks at them.

    Args:
        runs: The keys.
    """

    __slots__ = ("_count", "runs")

    def __init__(self, runs: Sequence[KeyRun]) -> None:
        self.runs = runs
        self._count = sum([end - first for _, first, end in runs])

    @classmethod
    def of(cls, keys: Iterable[str]) -> Keys:
        """The same keys; those that are `Keys` as they are."""
        if isinstance(keys, Keys):
            return keys
        runs: list[KeyRun] = []
        head, first, end = "", 0, 0
        following: str | None = None
        for key in keys:
            if key == following:
                end += 1
            else:
                if first < end:
                    runs.append(KeyRun(head, first, end))
                head, first = split(key)
                end = first + 1
            following = f"{head}{end:012x}" if first >= 0 and end <= _LAST else None
        if first < end:
            runs.append(KeyRun(head, first, end))
        return cls(runs)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for run in self.runs:
            yield from run.texts()

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(self)[index]
        at = index if index >= 0 else self._count + index
        for head, first, end in self.runs:
            if 0 <= at < end - first:
                return _text(head, first + at)
            at -= end - first
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Keys):
            return self.runs == other.runs or (self._count == other._count and list(self) == list(other))
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # two of them are one where their keys are, which may be many

    def __repr__(self) -> str:
        return repr(list(self))


def split(key: str) -> tuple[str, int]:
    """A key's head and number; -1 where it has none."""
    found = _COUNTED.fullmatch(key)
    return (key, _ALONE) if found is None else (found[1], int(found[2], 16))


def _text(head: str, number: int) -> str:
    """The key of a head and a number."""
    return head if number == _ALONE else f"{head}{number:012x}"


class KeyMap(Generic[V]):
    """What belongs to keys, in the order in which their heads came; keys of one run cost no more than one key."""

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
        for run, _ in self.runs():
            yield from run.texts()

    def runs(self) -> Iterator[tuple[KeyRun, V]]:
        """Keys, and what belongs to each of them."""
        for head, ranges in self._heads.items():
            for one in ranges:
                yield KeyRun(head, one.first, one.last + 1), one.value

    def get(self, key: str) -> V | None:
        """What belongs to a key, or nothing."""
        head, number = split(key)
        ranges = self._heads.get(head)
        found = None if ranges is None else ranges.get(number)
        return None if found is None else found.value

    def find(self, keys: Iterable[str]) -> list[tuple[KeyRun, V]]:
        """What belongs to some keys, as far as they are there."""
        found: list[tuple[KeyRun, V]] = []
        if self._heads:
            for head, first, end in Keys.of(keys).runs:
                if (ranges := self._heads.get(head)) is not None:
                    found += [
                        (KeyRun(head, one.first, one.last + 1), one.value) for one in ranges.within(first, end - 1)
                    ]
        return found

    def put(self, keys: Iterable[str], value: V) -> None:
        """Notes what belongs to keys, in place of what did."""
        for run in Keys.of(keys).runs:
            self.put_run(run, value)

    def put_run(self, run: KeyRun, value: V) -> None:
        """The same for keys of one run."""
        head, first, end = run
        ranges = self._heads.get(head)
        if ranges is None:
            ranges = self._heads[head] = RangeMap()
        before = ranges.count
        ranges.put(first, end - 1, value)
        self._count += ranges.count - before

    def take(self, keys: Iterable[str]) -> list[tuple[KeyRun, V]]:
        """Takes keys out, as far as they are there; what belonged to them."""
        taken: list[tuple[KeyRun, V]] = []
        if not self._heads:
            return taken
        for head, first, end in Keys.of(keys).runs:
            ranges = self._heads.get(head)
            if ranges is None:
                continue
            for one in ranges.take(first, end - 1):
                taken.append((KeyRun(head, one.first, one.last + 1), one.value))
                self._count -= one.count
            if not ranges:
                del self._heads[head]
        return taken

    def spans(self, head: str) -> int:
        """How many runs of one head there are."""
        ranges = self._heads.get(head)
        return 0 if ranges is None else len(ranges)

    def drop(self, head: str, most: int) -> int:
        """Takes out runs of one head, those with the lowest numbers; how many."""
        ranges = self._heads[head]
        lowest = list(islice(ranges, most))
        self._count -= sum(one.count for one in lowest)
        ranges.take(lowest[0].first, lowest[-1].last)
        if not ranges:
            del self._heads[head]
        return len(lowest)


class Places(KeyMap[int]):
    """Where messages are, by key: those of one run lie behind each other."""

    # What belongs to a run is the place of its number 0, which need not be there.

    __slots__ = ()

    def note(self, keys: Iterable[str], place: int) -> None:
        """Messages are stored, the first of them at *place*, the others behind it."""
        for run in Keys.of(keys).runs:
            self.put_run(run, place - run.first)
            place += run.end - run.first

    def places(self, keys: Iterable[str]) -> list[int]:
        """Where messages are, as far as they are here."""
        return [place for run, base in self.find(keys) for place in range(base + run.first, base + run.end)]

    def take_places(self, keys: Iterable[str]) -> dict[str, int]:
        """Takes messages out, as far as they are here; where each one is."""
        return {
            key: place
            for run, base in self.take(keys)
            for key, place in zip(run.texts(), range(base + run.first, base + run.end), strict=True)
        }


class Numbered:
    """Keys of messages by the numbers that these have in a topic."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        # The head of the keys, and how much their numbers are above those of the messages.
        self._ranges: RangeMap[tuple[str, int]] = RangeMap()

    def note(self, number: int, keys: Iterable[str]) -> None:
        """Messages are stored, the first of them as *number*, the others behind it."""
        for head, first, end in Keys.of(keys).runs:
            self._ranges.put(number, number + end - first - 1, (head, first - number))
            number += end - first

    def get(self, number: int) -> str | None:
        """The key of a message, or nothing."""
        found = self._ranges.get(number)
        return None if found is None else _text(found.value[0], found.value[1] + number)

    def take(self, number: int) -> str | None:
        """Takes a message out; its key, or nothing."""
        for one in self._ranges.take(number, number):
            head, above = one.value
            return _text(head, above + number)
        return None


class Recent:
    """Keys that came lately, as runs. Where these are too many, those go whose messages were stored first.

    So what has come twice is not kept at the cost of what has come once: who asks for all in their order, and is given
    again what is forgotten, would else have each message forgotten right before he asks for it. Messages of different
    stores are not compared, whose clocks may differ: that one gives way of which there are most.

    Args:
        most: How many runs.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: KeyMap[None] = KeyMap()
        self._shares: dict[str, _Share] = {}  # by stem; keys that do not say it have an empty one
        self._share_of: dict[str, _Share] = {}  # by head

    def __len__(self) -> int:
        """How many runs there are."""
        return sum(share.runs for share in self._shares.values())

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def find(self, keys: Iterable[str]) -> list[KeyRun]:
        """Those of some keys that are among them."""
        return [run for run, _ in self._keys.find(keys)]

    def add(self, keys: Iterable[str]) -> None:
        """Keys have come."""
        for run in Keys.of(keys).runs:
            share = self._share_of.get(run.head) or self._begin(run.head)
            before = self._keys.spans(run.head)
            self._keys.put_run(run, None)
            share.runs += self._keys.spans(run.head) - before
        while (over := len(self) - self._most) > 0:
            self._forget(over + self._most // 64)

    def _begin(self, head: str) -> _Share:
        """A head that was not known."""
        origin = Origin.of(head)
        stem = "" if origin is None else origin.stem
        if (share := self._shares.get(stem)) is None:
            share = self._shares[stem] = _Share()
        self._share_of[head] = share
        heappush(share.heads, (_stored(head), head))
        return share

    def _forget(self, runs: int) -> None:
        """Forgets so many runs, or all of one store."""
        stem, share = max(self._shares.items(), key=lambda one: (one[1].runs, one[0]))
        while runs > 0 and share.runs:
            head = share.heads[0][1]
            dropped = self._keys.drop(head, runs)
            runs -= dropped
            share.runs -= dropped
            if not self._keys.spans(head):
                heappop(share.heads)
                del self._share_of[head]
        if not share.runs:
            del self._shares[stem]


class _Share:
    """What of the remembered keys is of one store.

    Attributes:
        runs: How many.
        heads: When the messages of each head were stored, and the head; a heap.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.heads: list[tuple[int, str]] = []


def _stored(head: str) -> int:
    """When messages were stored, in microseconds since 1970, as the head of their keys says; 0 where it does not."""
    when = head.partition("|")[0]
    return int(when) if when.isascii() and when.isdecimal() and len(when) <= 20 else 0
