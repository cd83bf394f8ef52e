"""What a node knows of messages that are done with: those that it was told of, and what owners state of theirs.

A node is told of each message, and remembers the last of them. An owner knows more: which numbers of its topics are
done with, in some ranges, whoever was told. It states them; the others believe the newest statement, repeat it, and
keep it on their disks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from omq.pzq.cluster.possession import BOUND, number_of
from omq.pzq.keys import KeyRun, Keys, Origin, Recent

#: Keys that are remembered, whoever's they are.
REMEMBERED: Final = 65_536
#: Ranges of a statement.
MAX_RANGES: Final = 2048
#: Statements of one owner that are believed; beyond that a new one of its own takes the place of that which it has made
#: longest ago.
MAX_STATED: Final = 16
#: What others repeat is not later than this, so that an owner can always state something newer.
LATEST: Final = BOUND // 2
#: Characters of a stem.
STEM: Final = 18

Ranges = Sequence[tuple[int, int]]  # first and last number of each, ascending


@dataclass(frozen=True, slots=True)
class Statement:
    """What an owner states of one of its topics.

    Attributes:
        at: When, in microseconds since 1970. It says nothing of messages that were stored after that: where a store
            was put back as it was before, numbers are given again.
        ranges: The numbers that are done with.
    """

    at: int
    ranges: Ranges


Stated = dict[str, dict[str, Statement]]  # by owner, and by the stem of keys


class Done:
    """The keys of messages that are done with."""

    def __init__(self) -> None:
        self._recent = Recent(REMEMBERED)
        self._stated: Stated = {}
        self._since: dict[str, int] = {}  # by stem: a time that others know of, to be gone beyond

    def __iter__(self) -> Iterator[str]:
        """Those that it was told of one by one."""
        return iter(self._recent)

    def add(self, keys: Iterable[str]) -> None:
        """Messages are done with, as consumers or other nodes say."""
        self._recent.add(keys)

    def find(self, owner: str, keys: Iterable[str]) -> list[KeyRun]:
        """Those of some of an owner's keys that are among them; one may be there twice."""
        keys = Keys.of(keys)
        return [run for run, _ in self._recent.find(keys)] + list(self.stated(owner, keys.runs))

    # ------------------------------------------------------------------ statements

    def state(self, owner: str, stem: str, at: int, ranges: Ranges, *, fresh: bool = True) -> None:
        """An owner states what it is done with of one of its topics.

        Args:
            owner: Who has made it.
            stem: What the keys of the topic have in common.
            at: When; an older one than the last counts for nothing.
            ranges: The numbers.
            fresh: The owner states it now; else another node repeats it.
        """
        if not fresh and at > LATEST:
            return
        stated = self._stated.setdefault(owner, {})
        known = stated.get(stem)
        if known is not None and (at <= known.at or ranges == known.ranges):
            if fresh:
                stated[stem] = stated.pop(stem)
            return
        if known is None and len(stated) >= MAX_STATED:
            if not fresh:
                return
            del stated[next(iter(stated))]
        stated.pop(stem, None)
        stated[stem] = Statement(at, ranges)

    def stated(self, owner: str, runs: Iterable[KeyRun]) -> Iterator[KeyRun]:
        """Those of some of an owner's keys that are done with as it has stated."""
        if not (stated := self._stated.get(owner)):
            return
        for head, first, end in runs:
            origin = Origin.of(head)
            if origin is None or (it := stated.get(origin.stem)) is None or origin.stored > it.at:
                continue
            for begin, last in islice(it.ranges, bisect_left(it.ranges, first + origin.base, key=_last), None):
                if begin - origin.base >= end:
                    break
                begin, stop = max(begin - origin.base, first), min(last + 1 - origin.base, end)
                if begin < stop:
                    yield KeyRun(head, begin, stop)

    def next(self, owner: str, stem: str, now: int) -> int:
        """The time of an owner's next statement: later than any before, also where its clock was set back."""
        known = self._stated.get(owner, {}).get(stem)
        return max(now, self._since.get(stem, 0) + 1, known.at + 1 if known is not None else 0)

    def repeated(self, stem: str, at: int) -> None:
        """Another node repeats a statement of this one's, whatever it says."""
        if at <= LATEST:
            self._since[stem] = max(self._since.get(stem, 0), at)

    def told(self, owners: Iterable[str] | None = None) -> dict[str, dict[str, list[Any]]]:
        """Statements of some owners, or of all, as they are told and kept."""
        return {
            owner: {stem: [it.at, it.ranges] for stem, it in self._stated.get(owner, {}).items()}
            for owner in (self._stated if owners is None else owners)
        }

    def hear(self, told: Stated, sender: str = "") -> list[str]:
        """Statements were made, or repeated; of whom there was none of a topic before.

        Args:
            told: The statements.
            sender: Whose own are fresh.
        """
        owners = []
        for owner, stated in told.items():
            unknown = stated.keys() - self._stated.get(owner, {}).keys()
            for stem, it in stated.items():
                self.state(owner, stem, it.at, it.ranges, fresh=owner == sender)
            if not unknown.isdisjoint(self._stated.get(owner, {})):
                owners.append(owner)
        return owners


_last: Final = itemgetter(1)


def statements_of(told: Any) -> Stated:
    """What `Done.told` has given.

    Raises:
        ValueError: It has not.
    """
    try:
        found = {
            str(owner): {str(stem): _statement(at, ranges) for stem, (at, ranges) in stated.items()}
            for owner, stated in told.items()
        }
    except (TypeError, AttributeError, ValueError) as wrong:
        raise ValueError(f"no statements of what is done with: {wrong}") from None
    if any(len(stated) > MAX_STATED or any(len(stem) != STEM for stem in stated) for stated in found.values()):
        raise ValueError("no statements of what is done with")
    return found


def _statement(at: Any, told: Any) -> Statement:
    ranges = [(number_of(first), number_of(last)) for first, last in told]
    if len(ranges) > MAX_RANGES:
        raise ValueError(f"{len(ranges)} ranges of what is done with")
    return Statement(number_of(at), ranges)
