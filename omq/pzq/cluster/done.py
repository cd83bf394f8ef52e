"""What a node knows of messages that are done with: those that it was told of, and what owners state of theirs.

A node is told of each message, and remembers the last of them. An owner knows more: which numbers of its topics are
done with, in some ranges, whoever was told. It states them; the others believe the newest statement, repeat it, and
keep it on their disks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from omq.pzq.cluster.beginnings import KEPT, NONE, Beginnings
from omq.pzq.cluster.possession import BOUND, number_of
from omq.pzq.keys import KeyRun, Keys, Origin, Recent

#: Runs of keys that are remembered, whoever's they are.
REMEMBERED: Final = 65_536
#: Ranges of a statement.
MAX_RANGES: Final = 2048
#: Statements of one owner that are believed; beyond that a new one of its own takes the place of that which it has made
#: longest ago.
MAX_STATED: Final = 16
#: Statements of former runs that are kept of a topic.
MAX_FORMER: Final = 4
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
        begun: The starts of the owner up to this run of it: so a statement says nothing either of messages that were
            stored before that, and that this store does not have.
        former: What former runs have stated beyond that, the newest first. It holds: what is done with stays so.
    """

    at: int
    ranges: Ranges
    begun: Beginnings = NONE
    former: tuple[Statement, ...] = ()

    def covers(self, other: Statement) -> bool:
        """Whether it says all that another one says, without the former ones of both."""
        highest = other.ranges[-1][1] if other.ranges else 0
        return (
            other.at <= self.at
            and all(one.number >= highest for one in self.begun if one not in other.begun)
            and _within(other.ranges, self.ranges)
        )

    def behind(self, others: Iterable[Statement]) -> Statement:
        """With those of some former statements that say more."""
        former: list[Statement] = []
        for it in sorted(others, key=lambda it: -it.at):
            if it.begun != self.begun and not any(one.covers(it) or one.begun == it.begun for one in (self, *former)):
                former.append(it if not it.former else Statement(it.at, it.ranges, it.begun))
        return Statement(self.at, self.ranges, self.begun, tuple(former[:MAX_FORMER]))

    def told(self) -> list[Any]:
        """As it is told and kept: what is empty behind the ranges is left out."""
        found: list[Any] = [self.at, self.ranges]
        if self.begun or self.former:
            found.append(self.begun)
        if self.former:
            found.append([it.told() for it in self.former])
        return found


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
        return self._recent.find(keys) + list(self.stated(owner, keys.runs))

    # ------------------------------------------------------------------ statements

    def state(
        self, owner: str, stem: str, at: int, ranges: Ranges, begun: Beginnings = NONE, *, fresh: bool = True
    ) -> None:
        """An owner states what it is done with of one of its topics.

        Args:
            owner: Who has made it.
            stem: What the keys of the topic have in common.
            at: When; of one run of the owner an older one than the last counts for nothing.
            ranges: The numbers.
            begun: The starts of the owner.
            fresh: The owner states it now; else another node repeats it.
        """
        self._state(owner, stem, Statement(at, ranges, begun), fresh=fresh)

    def _state(self, owner: str, stem: str, it: Statement, *, fresh: bool, own: bool = False) -> bool:
        """The same; whether it may say what was not known. *own*: it is of the store that is here."""
        if not fresh and it.at > LATEST:
            return False
        stated = self._stated.setdefault(owner, {})
        known = stated.get(stem)
        if known is None:
            if len(stated) >= MAX_STATED:
                if not fresh:
                    return False
                del stated[next(iter(stated))]
            stated[stem] = it
            return True
        newest = known if own or it.at <= known.at else it
        if it.begun != known.begun or it.former:
            newest = newest.behind([known, it, *known.former, *it.former])
        elif newest.ranges == known.ranges:
            newest = known
        elif known.former:
            newest = newest.behind(known.former)
        if fresh:
            del stated[stem]
        stated[stem] = newest
        return any(one not in known.former and one.at != known.at for one in newest.former)

    def stated(self, owner: str, runs: Iterable[KeyRun]) -> Iterator[KeyRun]:
        """Those of some of an owner's keys that are done with as it has stated; one may be there twice."""
        if not (stated := self._stated.get(owner)):
            return
        for head, first, end in runs:
            origin = Origin.of(head)
            if origin is None or (newest := stated.get(origin.stem)) is None:
                continue
            for it in (newest, *newest.former):
                if origin.stored > it.at:
                    continue
                # What was stored in a later run has the same number as what is meant, where a copy was put back.
                highest = min(it.begun.upto(origin.stored), newest.begun.until(origin.stored, it.begun))
                upto = min(end, highest + 1 - origin.base)
                for begin, last in islice(it.ranges, bisect_left(it.ranges, first + origin.base, key=_last), None):
                    if begin - origin.base >= upto:
                        break
                    begin, stop = max(begin - origin.base, first), min(last + 1 - origin.base, upto)
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
            owner: {stem: it.told() for stem, it in self._stated.get(owner, {}).items()}
            for owner in (self._stated if owners is None else owners)
        }

    def hear(self, told: Stated, sender: str = "", own: Container[tuple[str, str]] = ()) -> list[str]:
        """Statements were made, or repeated; of whom there is one of a topic, or of a former run, for the first time.

        Args:
            told: The statements.
            sender: Whose own are fresh.
            own: The owner and the stems of the store that is here: nobody else makes the newest statement of these.
        """
        owners = []
        for owner, stated in told.items():
            new = [
                self._state(owner, stem, it, fresh=owner == sender, own=(owner, stem) in own)
                for stem, it in stated.items()
            ]
            if any(new):
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
            str(owner): {str(stem): _statement(*it) for stem, it in stated.items()} for owner, stated in told.items()
        }
    except (TypeError, AttributeError, ValueError) as wrong:
        raise ValueError(f"no statements of what is done with: {wrong}") from None
    if any(len(stated) > MAX_STATED or any(len(stem) != STEM for stem in stated) for stated in found.values()):
        raise ValueError("no statements of what is done with")
    return found


def _statement(at: Any, told: Any, begun: Any = (), former: Any = ()) -> Statement:
    ranges = [(number_of(first), number_of(last)) for first, last in told]
    starts = Beginnings.of((number_of(number), number_of(when)) for number, when in begun)
    before = tuple(_statement(*one) for one in islice(former, MAX_FORMER + 1))
    if len(ranges) > MAX_RANGES or len(starts) > KEPT or len(before) > MAX_FORMER or any(one.former for one in before):
        raise ValueError(f"{len(ranges)} ranges of what is done with, of {len(starts)} starts")
    return Statement(number_of(at), ranges, starts, before)


def _within(ranges: Ranges, others: Ranges) -> bool:
    """Whether all numbers of some ranges are in others."""
    at = 0
    for first, last in ranges:
        while at < len(others) and others[at][1] < first:
            at += 1
        if at == len(others) or others[at][0] > first or others[at][1] < last:
            return False
    return True
