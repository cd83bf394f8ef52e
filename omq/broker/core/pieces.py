"""Ids as sorted ranges that remember something: nothing here costs time or memory for a single id."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

_first = attrgetter("first")


class Piece:
    """A range of ids with the same history.

    Attributes:
        first: The first id.
        last: The last one, included.
        tries: How often they were delivered.
        deadline: When they are to be delivered again, on the loop's clock; 0: nobody holds them.
        order: Which delivery to their holder this was, from 1; 0: nobody holds them.
    """

    __slots__ = ("deadline", "first", "last", "order", "tries")

    def __init__(self, first: int, last: int, tries: int, deadline: float = 0.0, order: int = 0) -> None:
        self.first = first
        self.last = last
        self.tries = tries
        self.deadline = deadline
        self.order = order

    def __repr__(self) -> str:
        return f"<{self.first} to {self.last}, tries {self.tries}, deadline {self.deadline}>"


class Pieces:
    """Pieces that do not overlap, in the order of their ids.

    Attributes:
        count: Ids in all of them.
    """

    __slots__ = ("_pieces", "count")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.count = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    @property
    def head(self) -> Piece:
        """The piece with the lowest ids."""
        return self._pieces[0]

    def add(self, first: int, last: int, tries: int, deadline: float = 0.0, order: int = 0) -> None:
        """Adds ids that are in no piece; they join a neighbour that has the same history."""
        pieces = self._pieces
        self.count += last - first + 1
        at = len(pieces) if not pieces or pieces[-1].first < first else bisect_left(pieces, first, key=_first)
        if at and (before := pieces[at - 1]).last + 1 == first and _alike(before, tries, deadline, order):
            before.last = last
            if at < len(pieces) and pieces[at].first == last + 1 and _alike(pieces[at], tries, deadline, order):
                before.last = pieces.pop(at).last
        elif at < len(pieces) and pieces[at].first == last + 1 and _alike(pieces[at], tries, deadline, order):
            pieces[at].first = first
        else:
            pieces.insert(at, Piece(first, last, tries, deadline, order))

    def take(self, first: int, last: int) -> list[Piece]:
        """Takes out what there is of ids `first` to `last`, both included."""
        pieces = self._pieces
        start = bisect_left(pieces, first, key=_first)
        if start and pieces[start - 1].last >= first:
            start -= 1
        stop = start
        taken: list[Piece] = []
        rest: list[Piece] = []
        while stop < len(pieces) and (piece := pieces[stop]).first <= last:
            stop += 1
            low, high = max(piece.first, first), min(piece.last, last)
            self.count -= high - low + 1
            if low == piece.first and high == piece.last:
                taken.append(piece)
                continue
            taken.append(Piece(low, high, piece.tries, piece.deadline, piece.order))
            if piece.first < low:
                rest.append(Piece(piece.first, low - 1, piece.tries, piece.deadline, piece.order))
            if high < piece.last:
                rest.append(Piece(high + 1, piece.last, piece.tries, piece.deadline, piece.order))
        if stop > start:
            pieces[start:stop] = rest
        return taken

    def take_all(self) -> list[Piece]:
        """Takes out everything."""
        taken, self._pieces = self._pieces, []
        self.count = 0
        return taken

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Ranges of the ids `first` to `last` that are in here."""
        pieces = self._pieces
        at = bisect_left(pieces, first, key=_first)
        if at and pieces[at - 1].last >= first:
            at -= 1
        while at < len(pieces) and (piece := pieces[at]).first <= last:
            yield max(piece.first, first), min(piece.last, last)
            at += 1

    def holds(self, first: int, last: int) -> bool:
        """Whether any id of `first` to `last` is in here."""
        pieces = self._pieces
        at = bisect_left(pieces, first, key=_first)
        return bool((at and pieces[at - 1].last >= first) or (at < len(pieces) and pieces[at].first <= last))


def _alike(piece: Piece, tries: int, deadline: float, order: int) -> bool:
    return piece.tries == tries and piece.deadline == deadline and piece.order == order
