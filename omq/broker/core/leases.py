"""Until when a consumer may take for what it has: it works in order, and each sign of that begins time anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from omq.broker.core.delivery_state import DeliveryState
from omq.ranges import Range

#: Signs that are kept before those are thrown out which tell nothing of what is still held.
_SIGNS: Final = 64


class Leases:
    """The deadlines of what one consumer has.

    A message is overdue when for `timeout` neither it was delivered nor anything that was delivered to this consumer
    before it was acknowledged, or asked for again. So a slow consumer has time for each message by itself, however
    many the broker has sent ahead, and one message that hangs is overdue whatever becomes of those behind it.

    Args:
        timeout: Seconds.
    """

    __slots__ = ("_heap", "_most", "_order", "_signs", "_times", "timeout")

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._order = 0  # of the last delivery
        self._heap: list[tuple[float, int, int, int]] = []  # deadline, order, first, last
        #: Where it was seen to work, ascending: order and id; and when, ascending, too.
        self._signs: list[tuple[int, int]] = []
        self._times: list[float] = []
        self._most = _SIGNS

    def __len__(self) -> int:
        return len(self._heap)

    def begin(self, first: int, last: int, now: float) -> tuple[float, int]:
        """Messages are delivered; their deadline, and the order of this delivery."""
        self._order += 1
        deadline = now + self.timeout
        heappush(self._heap, (deadline, self._order, first, last))
        return deadline, self._order

    def go_on(self, piece: Range[DeliveryState], deadline: float) -> None:
        """Messages of an earlier delivery have this deadline now."""
        heappush(self._heap, (deadline, piece.value.order, piece.first, piece.last))

    def sign(self, order: int, first: int, now: float) -> None:
        """The consumer is done with something of a delivery: time begins anew for all that was delivered behind it."""
        # A later sign says more of all that is behind it than those which stand there.
        at = bisect_left(self._signs, (order, first))
        del self._signs[at:], self._times[at:]
        self._signs.append((order, first))
        self._times.append(now)
        if len(self._signs) > self._most and self._heap:
            oldest = min((order, first) for _, order, first, _ in self._heap)
            before = max(bisect_left(self._signs, oldest) - 1, 0)
            del self._signs[:before], self._times[:before]
            self._most = max(_SIGNS, 2 * len(self._signs))

    def of(self, piece: Range[DeliveryState]) -> float:
        """The deadline of a piece of what is held."""
        at = bisect_left(self._signs, (piece.value.order, piece.first))
        return max(piece.value.deadline, self._times[at - 1] + self.timeout) if at else piece.value.deadline

    @property
    def next(self) -> tuple[float, int, int] | None:
        """The next deadline, and of which messages."""
        if not self._heap:
            return None
        deadline, _, first, last = self._heap[0]
        return deadline, first, last

    def pop(self) -> tuple[int, int, int]:
        """Takes out what `next` says: order, first and last."""
        return heappop(self._heap)[1:]

    def renew(self, pieces: Iterable[Range[DeliveryState]]) -> None:
        """Begins anew with what is held, where much of what is in here is not any more."""
        self._heap = [(piece.value.deadline, piece.value.order, piece.first, piece.last) for piece in pieces]
        heapify(self._heap)
