"""The messages that a node knows as finished: recent keys, and the ack checkpoints of owners.

Nodes send each other the key of each finished message, and remember the last ones. An owner also publishes ack
checkpoints: the ranges of finished ids of its topics. The others keep the newest checkpoint, repeat it, and store it
on their disks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from omq.pzq.cluster.keys import KeyRange, Keys, RecentKeys, StoredAt
from omq.pzq.cluster.leadership import checked_number

#: Ranges of recent keys, of all owners together.
MAX_RECENT_RANGES: Final = 65_536
#: Ranges of a checkpoint.
MAX_RANGES: Final = 2048
#: Checkpoints of one owner: those made last.
MAX_CHECKPOINTS: Final = 16
#: Characters of a stem (see `omq.pzq.wire.stem_of`).
STEM_CHARACTERS: Final = 18

Ranges = Sequence[tuple[int, int]]  # first and last number of each, ascending


class AckCheckpoint(NamedTuple):
    """The acknowledged ids of one topic, as its owner has published them.

    Attributes:
        at: The time of the checkpoint, in microseconds since 1970. It does not cover messages that were stored later.
        ranges: The ids.
    """

    at: int
    ranges: Ranges


Checkpoints = dict[str, dict[str, AckCheckpoint]]  # by owner, and by the stem of keys


class AckedKeys:
    """The keys of messages that are finished."""

    def __init__(self) -> None:
        self._recent = RecentKeys(MAX_RECENT_RANGES)
        self._checkpoints: Checkpoints = {}

    def __iter__(self) -> Iterator[str]:
        """Yields the recent keys."""
        return iter(self._recent)

    def add(self, keys: Iterable[str]) -> None:
        """Adds the keys of finished messages."""
        self._recent.add(keys)

    def find(self, owner: str, keys: Iterable[str]) -> list[KeyRange]:
        """Returns the ranges of the owner's *keys* whose messages are acknowledged. Ranges may overlap."""
        keys = Keys.of(keys)
        return self._recent.find(keys) + list(self.find_in_checkpoints(owner, keys.ranges))

    # ------------------------------------------------------------------ checkpoints

    def add_checkpoint(self, owner: str, stem: str, it: AckCheckpoint) -> None:
        """Adds the checkpoint of an owner's topic, unless a newer one is known."""
        checkpoints = self._checkpoints.setdefault(owner, {})
        known = checkpoints.get(stem)
        if known is None or (it.at > known.at and it.ranges != known.ranges):
            checkpoints[stem] = it
            if len(checkpoints) > MAX_CHECKPOINTS:
                del checkpoints[min(checkpoints, key=lambda stem: checkpoints[stem].at)]

    def find_in_checkpoints(self, owner: str, ranges: Iterable[KeyRange]) -> Iterator[KeyRange]:
        """Yields the ranges of an owner's keys that its checkpoints cover. Ranges may overlap."""
        if not (checkpoints := self._checkpoints.get(owner)):
            return
        for head, first, end in ranges:
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
        """Returns the time of an owner's next checkpoint: later than any before, even if its clock was set back."""
        known = self._checkpoints.get(owner, {}).get(stem)
        return max(now, known.at + 1 if known is not None else 0)

    def to_json(self, owners: Iterable[str] | None = None) -> dict[str, dict[str, list[Any]]]:
        """Returns the checkpoints of some owners, or of all, in the form of messages and of the file."""
        return {
            owner: {stem: [*it] for stem, it in self._checkpoints.get(owner, {}).items()}
            for owner in (self._checkpoints if owners is None else owners)
        }

    def merge(self, given: Checkpoints, own: str = "") -> list[str]:
        """Merges checkpoints of other nodes.

        Args:
            given: The checkpoints, by owner and stem.
            own: This node. Others may know more about its messages if its store has lost its last writes.

        Returns:
            The owners with the first checkpoint of a topic; *own* if any of its checkpoints has changed.
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
    """Reads the result of `AckedKeys.to_json`.

    Raises:
        ValueError: The value is not valid.
    """
    try:
        found = {
            str(owner): {str(stem): _parse_checkpoint(*it) for stem, it in checkpoints.items()}
            for owner, checkpoints in given.items()
        }
    except (TypeError, AttributeError, ValueError) as wrong:
        raise ValueError(f"invalid ack checkpoints: {wrong}") from None
    if any(
        len(checkpoints) > MAX_CHECKPOINTS or any(len(stem) != STEM_CHARACTERS for stem in checkpoints)
        for checkpoints in found.values()
    ):
        raise ValueError("the ack checkpoints are not valid")
    return found


def _parse_checkpoint(at: Any, given: Any) -> AckCheckpoint:
    ranges = [(checked_number("first", first), checked_number("last", last)) for first, last in given]
    if len(ranges) > MAX_RANGES:
        raise ValueError(f"the ack checkpoints have {len(ranges)} ranges; at most {MAX_RANGES} are allowed")
    return AckCheckpoint(checked_number("at", at), ranges)
