"""Which messages a store has stored, though numbers were given twice: a copy that is put back gives its own again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from omq.pzq.cluster.possession import BOUND

#: Starts that are kept.
KEPT: Final = 64


class Beginning(NamedTuple):
    """A start of a node.

    Attributes:
        number: The highest number that was given before.
        at: When it was, in microseconds since 1970: what has a higher number was stored after that.
    """

    number: int
    at: int


class Beginnings(tuple[Beginning, ...]):
    """The starts of a node, of one of its topics."""

    __slots__ = ()

    @classmethod
    def of(cls, told: Iterable[tuple[int, int]]) -> Self:
        """What was kept, or told."""
        return cls(Beginning(number, at) for number, at in told)

    def upto(self, stored: int) -> int:
        """The highest number that a message can have which was stored then."""
        return min([one.number for one in self if one.at > stored], default=BOUND)

    def until(self, stored: int, others: Beginnings) -> int:
        """The highest number of a message stored then that was stored before those starts which others have not."""
        return min([one.number for one in self if one.at <= stored and one not in others], default=BOUND)

    def begun(self, number: int, at: int) -> Self:
        """With one more."""
        starts = [*(one for one in self.set_back(at) if one.number != number), Beginning(number, at)]
        if len(starts) > KEPT:
            # What is known of a run that has stored little is given up, of a late one first: an early one may tell
            # where the store parted from its copy.
            del starts[min(range(KEPT), key=lambda run: (starts[run + 1].number - starts[run].number, -run))]
        return type(self)(starts)

    def set_back(self, at: int) -> Self:
        """The clock shows less than at some of the starts: messages are stored now that have higher numbers."""
        return type(self)(Beginning(one.number, min(one.at, at)) for one in self)


NONE: Final = Beginnings()
