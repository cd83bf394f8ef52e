"""What a node knows of messages that are done with: those that it was told of, and what owners state of theirs.

A node is told of each message, and remembers the last of them. An owner knows more: which numbers of its topics are
done with, in a few ranges, whoever was told. It states them with each keep-alive; the others believe the newest
statement, repeat it, and keep it on their disks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omq.pzq.cluster.possession import number_of
from omq.pzq.keys import KeyRun, Keys, Origin, Recent

#: Keys that are remembered, whoever's they are.
REMEMBERED: Final = 65_536
#: Ranges of a statement.
MAX_RANGES: Final = 33
#: Statements that are believed; beyond that the oldest goes.
MAX_STATED: Final = 64
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


class Done:
    """The keys of messages that are done with."""

    def __init__(self) -> None:
        self._recent = Recent(REMEMBERED)
        self._stated: dict[str, Statement] = {}  # by the stem of keys

    def __contains__(self, key: str) -> bool:
        return key in self._recent or any(self.stated(Keys.of([key]).runs))

    def __iter__(self) -> Iterator[str]:
        """Those that it was told of one by one."""
        return iter(self._recent)

    def add(self, keys: Iterable[str]) -> None:
        """Messages are done with, as consumers or other nodes say."""
        self._recent.add(keys)

    def find(self, keys: Iterable[str]) -> list[KeyRun]:
        """Those of some keys that are among them; one may be there twice."""
        keys = Keys.of(keys)
        return [run for run, _ in self._recent.find(keys)] + list(self.stated(keys.runs))

    # ------------------------------------------------------------------ statements

    def state(self, stem: str, at: int, ranges: Ranges) -> None:
        """An owner states what it is done with of one of its topics."""
        known = self._stated.get(stem)
        if known is not None and (at <= known.at or ranges == known.ranges):
            return
        self._stated[stem] = Statement(at, ranges)
        if len(self._stated) > MAX_STATED:
            del self._stated[min(self._stated, key=lambda stem: self._stated[stem].at)]

    def stated(self, runs: Iterable[KeyRun]) -> Iterator[KeyRun]:
        """Those of some keys that are done with as their owner has stated."""
        if not self._stated:
            return
        for head, first, end in runs:
            origin = Origin.of(head)
            if origin is None or (it := self._stated.get(origin.stem)) is None or origin.stored > it.at:
                continue
            for begin, last in it.ranges:
                begin, stop = max(begin - origin.base, first), min(last + 1 - origin.base, end)
                if begin < stop:
                    yield KeyRun(head, begin, stop)

    def when(self, stem: str) -> int:
        """When the last statement of a topic was made; 0: there is none."""
        return it.at if (it := self._stated.get(stem)) is not None else 0

    def told(self) -> dict[str, list[Any]]:
        """All statements, as they are told and kept."""
        return {stem: [it.at, it.ranges] for stem, it in self._stated.items()}

    def hear(self, told: Mapping[str, Statement]) -> bool:
        """Statements were made, by their owners or by who has heard these; whether there was none of a topic before."""
        fresh = told.keys() - self._stated.keys()
        for stem, it in told.items():
            self.state(stem, it.at, it.ranges)
        return not fresh.isdisjoint(self._stated)


def statements_of(told: Any) -> dict[str, Statement]:
    """What `Done.told` has given.

    Raises:
        ValueError: It has not.
    """
    try:
        found = {str(stem): _statement(at, ranges) for stem, (at, ranges) in told.items()}
    except (TypeError, AttributeError, ValueError) as wrong:
        raise ValueError(f"no statements of what is done with: {wrong}") from None
    if len(found) > MAX_STATED or any(len(stem) != STEM for stem in found):
        raise ValueError("no statements of what is done with")
    return found


def _statement(at: Any, told: Any) -> Statement:
    ranges = [(number_of(first), number_of(last)) for first, last in told]
    if len(ranges) > MAX_RANGES:
        raise ValueError(f"{len(ranges)} ranges of what is done with")
    return Statement(number_of(at), ranges)
