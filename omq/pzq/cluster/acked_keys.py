"""The messages that a node has as finished: those that it was sent, and those that owners state.

A node is sent each finished message, and remembers the last of them. An owner has more: which numbers of its topics
are finished, in some ranges. It states them; the others believe the newest statement, repeat it, and
keep it on their disks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from omq.pzq.cluster.keys import KeyRange, Keys, RecentKeys, StoredAt
from omq.pzq.cluster.leadership import number_of

#: Runs of keys that are remembered, of all owners.
MAX_RUNS: Final = 65_536
#: Ranges of a statement.
MAX_RANGES: Final = 2048
#: Statements of one owner that are believed: those made last.
MAX_STATEMENTS: Final = 16
#: Characters of a stem.
STEM_CHARACTERS: Final = 18

Ranges = Sequence[tuple[int, int]]  # first and last number of each, ascending


class AckCheckpoint(NamedTuple):
    """The ids of one topic that are settled, as its owner has stated them.

    Attributes:
        at: When it was made, in microseconds since 1970. It does not cover messages that were stored after that.
        ranges: The ids.
    """

    at: int
    ranges: Ranges


Stated = dict[str, dict[str, AckCheckpoint]]  # by owner, and by the stem of keys


class AckedKeys:
    """The keys of messages that are finished."""

    def __init__(self) -> None:
        self._recent = RecentKeys(MAX_RUNS)
        self._stated: Stated = {}

    def __iter__(self) -> Iterator[str]:
        """Yields those that it was sent one by one."""
        return iter(self._recent)

    def add(self, keys: Iterable[str]) -> None:
        """Adds messages that consumers or other nodes have finished."""
        self._recent.add(keys)

    def find(self, owner: str, keys: Iterable[str]) -> list[KeyRange]:
        """Returns those of an owner's keys that are among them; one may be there twice."""
        keys = Keys.of(keys)
        return self._recent.find(keys) + list(self.stated(owner, keys.runs))

    # ------------------------------------------------------------------ statements

    def state(self, owner: str, stem: str, it: AckCheckpoint) -> None:
        """Believes what an owner states of the topic of a stem, unless something newer is known."""
        stated = self._stated.setdefault(owner, {})
        known = stated.get(stem)
        if known is None or (it.at > known.at and it.ranges != known.ranges):
            stated[stem] = it
            if len(stated) > MAX_STATEMENTS:
                del stated[min(stated, key=lambda stem: stated[stem].at)]

    def stated(self, owner: str, runs: Iterable[KeyRange]) -> Iterator[KeyRange]:
        """Yields those of an owner's keys that it has stated as finished; one may be there twice."""
        if not (stated := self._stated.get(owner)):
            return
        for head, first, end in runs:
            origin = StoredAt.of(head)
            if (it := stated.get(origin.stem)) is None or origin.stored > it.at:
                continue
            at = origin.base
            for begin, last in islice(it.ranges, bisect_left(it.ranges, first + at, key=_last), None):
                if begin - at >= end:
                    break
                if (begin := max(begin - at, first)) < (stop := min(last + 1 - at, end)):
                    yield KeyRange(head, begin, stop)

    def next(self, owner: str, stem: str, now: int) -> int:
        """Returns the time of an owner's next statement: later than any before, also where its clock was set back."""
        known = self._stated.get(owner, {}).get(stem)
        return max(now, known.at + 1 if known is not None else 0)

    def told(self, owners: Iterable[str] | None = None) -> dict[str, dict[str, list[Any]]]:
        """Returns the statements of some owners, or of all, as they are sent and kept."""
        return {
            owner: {stem: [*it] for stem, it in self._stated.get(owner, {}).items()}
            for owner in (self._stated if owners is None else owners)
        }

    def hear(self, told: Stated, own: str = "") -> list[str]:
        """Believes statements that were made, or repeated.

        Args:
            told: The statements.
            own: The node that is here: others know more of its own messages where its store has lost what came last.

        Returns:
            The owners of whom there is one of a topic for the first time; *own*, where there is any that is new.
        """
        owners = []
        for owner, stated in told.items():
            before = dict(self._stated.get(owner, {}))
            for stem, it in stated.items():
                self.state(owner, stem, it)
            after = self._stated.get(owner, {})
            if after.keys() - before.keys() or (owner == own and after != before):
                owners.append(owner)
        return owners


_last: Final = itemgetter(1)


def statements_of(told: Any) -> Stated:
    """Reads what `AckedKeys.told` has returned.

    Raises:
        ValueError: It has not.
    """
    try:
        found = {
            str(owner): {str(stem): _statement(*it) for stem, it in stated.items()} for owner, stated in told.items()
        }
    except (TypeError, AttributeError, ValueError) as wrong:
        raise ValueError(f"not valid statements of finished messages: {wrong}") from None
    if any(
        len(stated) > MAX_STATEMENTS or any(len(stem) != STEM_CHARACTERS for stem in stated)
        for stated in found.values()
    ):
        raise ValueError("not valid statements of finished messages")
    return found


def _statement(at: Any, told: Any) -> AckCheckpoint:
    ranges = [(number_of(first), number_of(last)) for first, last in told]
    if len(ranges) > MAX_RANGES:
        raise ValueError(f"{len(ranges)} settled ranges")
    return AckCheckpoint(number_of(at), ranges)
