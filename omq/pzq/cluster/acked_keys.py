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
from omq.pzq.cluster.leadership import parse_number

#: Runs of keys that are remembered, of all owners.
MAX_RUNS: Final = 65_536
#: Ranges of a statement.
MAX_RANGES: Final = 2048
#: Statements of one owner that are believed: those made last.
MAX_CHECKPOINTS: Final = 16
#: Characters of a stem.
STEM_CHARACTERS: Final = 18

Ranges = Sequence[tuple[int, int]]  # first and last number of each, ascending


class AckCheckpoint(NamedTuple):
    """The ids of one topic that are settled, as its owner has checkpoints them.

    Attributes:
        at: When it was made, in microseconds since 1970. It does not cover messages that were stored after that.
        ranges: The ids.
    """

    at: int
    ranges: Ranges


Checkpoints = dict[str, dict[str, AckCheckpoint]]  # by owner, and by the stem of keys


class AckedKeys:
    """The keys of messages that are finished."""

    def __init__(self) -> None:
        self._recent = RecentKeys(MAX_RUNS)
        self._checkpoints: Checkpoints = {}

    def __iter__(self) -> Iterator[str]:
        """Yields those that it was sent one by one."""
        return iter(self._recent)

    def add(self, keys: Iterable[str]) -> None:
        """Adds messages that consumers or other nodes have finished."""
        self._recent.add(keys)

    def find(self, owner: str, keys: Iterable[str]) -> list[KeyRange]:
        """Returns those of an owner's keys that are among them; one may be there twice."""
        keys = Keys.of(keys)
        return self._recent.find(keys) + list(self.find_in_checkpoints(owner, keys.runs))

    # ------------------------------------------------------------------ statements

    def add_checkpoint(self, owner: str, stem: str, it: AckCheckpoint) -> None:
        """Believes what an owner states of the topic of a stem, unless something newer is known."""
        checkpoints = self._checkpoints.setdefault(owner, {})
        known = checkpoints.get(stem)
        if known is None or (it.at > known.at and it.ranges != known.ranges):
            checkpoints[stem] = it
            if len(checkpoints) > MAX_CHECKPOINTS:
                del checkpoints[min(checkpoints, key=lambda stem: checkpoints[stem].at)]

    def find_in_checkpoints(self, owner: str, runs: Iterable[KeyRange]) -> Iterator[KeyRange]:
        """Yields those of an owner's keys that it has checkpoints as finished; one may be there twice."""
        if not (checkpoints := self._checkpoints.get(owner)):
            return
        for head, first, end in runs:
            origin = StoredAt.of(head)
            if (it := checkpoints.get(origin.stem)) is None or origin.stored > it.at:
                continue
            at = origin.base
            for begin, last in islice(it.ranges, bisect_left(it.ranges, first + at, key=_last), None):
                if begin - at >= end:
                    break
                if (begin := max(begin - at, first)) < (stop := min(last + 1 - at, end)):
                    yield KeyRange(head, begin, stop)

    def next_time(self, owner: str, stem: str, now: int) -> int:
        """Returns the time of an owner's next statement: later than any before, also where its clock was set back."""
        known = self._checkpoints.get(owner, {}).get(stem)
        return max(now, known.at + 1 if known is not None else 0)

    def to_json(self, owners: Iterable[str] | None = None) -> dict[str, dict[str, list[Any]]]:
        """Returns the statements of some owners, or of all, as they are sent and kept."""
        return {
            owner: {stem: [*it] for stem, it in self._checkpoints.get(owner, {}).items()}
            for owner in (self._checkpoints if owners is None else owners)
        }

    def merge(self, given: Checkpoints, own: str = "") -> list[str]:
        """Believes statements that were made, or repeated.

        Args:
            given: The statements.
            own: The node that is here: others know more of its own messages where its store has lost what came last.

        Returns:
            The owners of whom there is one of a topic for the first time; *own*, where there is any that is new.
        """
        owners = []
        for owner, checkpoints in given.items():
            before = dict(self._checkpoints.get(owner, {}))
            for stem, it in checkpoints.items():
                self.add_checkpoint(owner, stem, it)
            after = self._checkpoints.get(owner, {})
            if after.keys() - before.keys() or (owner == own and after != before):
                owners.append(owner)
        return owners


_last: Final = itemgetter(1)


def parse_checkpoints(given: Any) -> Checkpoints:
    """Reads what `AckedKeys.given` has returned.

    Raises:
        ValueError: It has not.
    """
    try:
        found = {
            str(owner): {str(stem): _parse_checkpoint(*it) for stem, it in checkpoints.items()}
            for owner, checkpoints in given.items()
        }
    except (TypeError, AttributeError, ValueError) as wrong:
        raise ValueError(f"not valid statements of finished messages: {wrong}") from None
    if any(
        len(checkpoints) > MAX_CHECKPOINTS or any(len(stem) != STEM_CHARACTERS for stem in checkpoints)
        for checkpoints in found.values()
    ):
        raise ValueError("not valid statements of finished messages")
    return found


def _parse_checkpoint(at: Any, given: Any) -> AckCheckpoint:
    ranges = [(parse_number(first), parse_number(last)) for first, last in given]
    if len(ranges) > MAX_RANGES:
        raise ValueError(f"{len(ranges)} settled ranges")
    return AckCheckpoint(parse_number(at), ranges)
