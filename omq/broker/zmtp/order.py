"""Keeps what a connection publishes in its order where the broker was too busy for some of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from omq.broker.errors import Busy

#: Producers of a connection, and refused sequences of one of them, that are kept in mind; beyond, all are forgotten.
_PRODUCERS: Final = 64
_SEQUENCES: Final = 1024


class Order:
    """The `APPEND`s of one connection that were refused as `busy`: those behind one are, too, until it comes again.

    That is for who says what is settled. So no one is waited for that is given up: the producer settles it.
    """

    def __init__(self) -> None:
        self._refused: dict[bytes, set[int]] = {}

    def take(self, take: Callable[[int], None], size: int, producer: bytes, sequence: int, settled: int) -> None:
        """Takes something in, where nothing before it waits to be repeated.

        Args:
            take: Takes so many bytes in, if there is room.
            size: How many.
            producer: Who it is of.
            sequence: Its place.
            settled: Nothing below is repeated.

        Raises:
            Busy: There is no room, or something before it was refused.
        """
        try:
            if self._refused and self._is_behind(producer, sequence, settled):
                raise Busy("what this producer sent before was refused: repeat that first")
            take(size)
        except Busy:
            self.note(producer, sequence)
            raise
        if (refused := self._refused.get(producer)) is not None:
            refused.discard(sequence)

    def _is_behind(self, producer: bytes, sequence: int, settled: int) -> bool:
        refused = {one for one in self._refused.pop(producer, ()) if one >= settled}
        if refused:
            self._refused[producer] = refused
        return bool(refused) and min(refused) < sequence

    def note(self, producer: bytes, sequence: int) -> None:
        """Something was refused as `busy`: what is behind it waits for its repetition."""
        refused = self._refused.setdefault(producer, set())
        refused.add(sequence)
        if len(refused) > _SEQUENCES or len(self._refused) > _PRODUCERS:
            self._refused.clear()
