"""The ack deadlines of one consumer: it works in order, and each sign of that restarts its time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from omq.ranges import Range

#: Signs that are kept before those are dropped which concern nothing that is still in flight.
_MIN_SIGNS: Final = 64


class InFlight(NamedTuple):
    """The value of a range of messages that are in flight, or wait to be delivered again.

    Attributes:
        tries: Deliveries that count, up to now.
        deadline: When they are delivered again, on the loop's clock; 0: at once.
        order: The number of this delivery among those to the consumer, from 1; 0: no consumer has them.
    """

    tries: int
    deadline: float = 0.0
    order: int = 0


class AckDeadlines:
    """The deadlines of what one consumer has in flight.

    A message of a consumer that works in order is overdue when for `timeout` neither it was delivered nor anything
    that was delivered to this consumer before it was acknowledged, or asked for again. So a slow consumer has time for
    each message by itself, however many were sent ahead, and one message that hangs is overdue whatever becomes of
    those after it. A message of any other consumer is overdue `timeout` after its delivery.

    Args:
        timeout: Seconds.
        in_order: The consumer works at its messages in the order of their delivery.
    """

    __slots__ = ("_heap", "_in_order", "_max_signs", "_order", "_signs", "_times", "timeout")

    def __init__(self, timeout: float, *, in_order: bool = True) -> None:
        self.timeout = timeout
        self._in_order = in_order
        self._order = 0  # of the last delivery
        self._heap: list[tuple[float, int, int, int]] = []  # deadline, order, first, last
        #: Where it was seen to work, ascending: order and id; and when, ascending, too.
        self._signs: list[tuple[int, int]] = []
        self._times: list[float] = []
        self._max_signs = _MIN_SIGNS

    def __len__(self) -> int:
        return len(self._heap)

    def begin(self, first: int, last: int, now: float) -> tuple[float, int]:
        """Records a delivery; returns its deadline and its order."""
        self._order += 1
        deadline = now + self.timeout
        heappush(self._heap, (deadline, self._order, first, last))
        return deadline, self._order

    def extend(self, piece: Range[InFlight], deadline: float) -> None:
        """Gives messages of an earlier delivery a new deadline."""
        heappush(self._heap, (deadline, piece.value.order, piece.first, piece.last))

    def sign(self, order: int, first: int, now: float) -> None:
        """Restarts the time of all that was delivered after a message that the consumer has reached."""
        if not self._in_order:
            return
        # A later sign replaces those which stand after it.
        at = bisect_left(self._signs, (order, first))
        del self._signs[at:], self._times[at:]
        self._signs.append((order, first))
        self._times.append(now)
        if len(self._signs) > self._max_signs and self._heap:
            oldest = min((order, first) for _, order, first, _ in self._heap)
            before = max(bisect_left(self._signs, oldest) - 1, 0)
            del self._signs[:before], self._times[:before]
            self._max_signs = max(_MIN_SIGNS, 2 * len(self._signs))

    def of(self, piece: Range[InFlight]) -> float:
        """Returns the deadline of a piece of what is in flight."""
        at = bisect_left(self._signs, (piece.value.order, piece.first))
        return max(piece.value.deadline, self._times[at - 1] + self.timeout) if at else piece.value.deadline

    @property
    def next(self) -> tuple[float, int, int] | None:
        """The next deadline, and the first and last message that it is for."""
        if not self._heap:
            return None
        deadline, _, first, last = self._heap[0]
        return deadline, first, last

    def pop(self) -> tuple[int, int, int]:
        """Takes out what `next` returns: order, first and last."""
        return heappop(self._heap)[1:]

    def rebuild(self, pieces: Iterable[Range[InFlight]]) -> None:
        """Keeps the deadlines of what is in flight, where much of what is in here is not any more."""
        self._heap = [(piece.value.deadline, piece.value.order, piece.first, piece.last) for piece in pieces]
        heapify(self._heap)
