"""The ack deadlines of one consumer. Progress of a consumer that works in order extends those of later messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from omq.ranges import Range

#: Progress marks above which those are dropped that are older than every message in flight.
_MIN_MARKS: Final = 64


class InFlight(NamedTuple):
    """The value of a range of messages that are in flight, or wait for redelivery.

    Attributes:
        tries: The number of deliveries that count.
        deadline: The time of their redelivery, on the loop's clock; 0: at once.
        order: The number of this delivery among those to the consumer, from 1; 0: they are not in flight.
    """

    tries: int
    deadline: float = 0.0
    order: int = 0


class AckDeadlines:
    """The deadlines of the messages that one consumer has in flight.

    If the consumer works in order, a message is overdue `timeout` after its delivery, or after the last ack, nack or
    progress call for a message that was delivered to the consumer before it, whichever is later. So a slow consumer has
    the full time for each message, however many were prefetched, and acks of later messages do not extend the deadline
    of one that hangs. For any other consumer, a message is overdue `timeout` after its delivery.

    Args:
        timeout: The ack timeout in seconds.
        in_order: The consumer works on its messages in the order of their delivery.
    """

    __slots__ = ("_heap", "_in_order", "_marks", "_max_marks", "_order", "_times", "timeout")

    def __init__(self, timeout: float, *, in_order: bool = True) -> None:
        self.timeout = timeout
        self._in_order = in_order
        self._order = 0  # the order of the last delivery
        self._heap: list[tuple[float, int, int, int]] = []  # deadline, order, first, last
        #: The progress marks: order and first id, ascending; and their times, ascending too.
        self._marks: list[tuple[int, int]] = []
        self._times: list[float] = []
        self._max_marks = _MIN_MARKS

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

    def progress(self, order: int, first: int, now: float) -> None:
        """Extends the deadlines of all messages that were delivered after this one, which the consumer has reached."""
        if not self._in_order:
            return
        # The new mark replaces those at its position or after it, whose times are earlier.
        at = bisect_left(self._marks, (order, first))
        del self._marks[at:], self._times[at:]
        self._marks.append((order, first))
        self._times.append(now)
        if len(self._marks) > self._max_marks and self._heap:
            oldest = min((order, first) for _, order, first, _ in self._heap)
            before = max(bisect_left(self._marks, oldest) - 1, 0)
            del self._marks[:before], self._times[:before]
            self._max_marks = max(_MIN_MARKS, 2 * len(self._marks))

    def of(self, piece: Range[InFlight]) -> float:
        """Returns the deadline of a range of messages in flight."""
        at = bisect_left(self._marks, (piece.value.order, piece.first))
        return max(piece.value.deadline, self._times[at - 1] + self.timeout) if at else piece.value.deadline

    @property
    def next(self) -> tuple[float, int, int] | None:
        """The earliest deadline, and the first and last id of its messages."""
        if not self._heap:
            return None
        deadline, _, first, last = self._heap[0]
        return deadline, first, last

    def pop(self) -> tuple[int, int, int]:
        """Removes the earliest deadline; returns the order, first and last id of its messages."""
        return heappop(self._heap)[1:]

    def rebuild(self, pieces: Iterable[Range[InFlight]]) -> None:
        """Drops the deadlines of messages that are not in flight any more. `pieces` are those that are."""
        self._heap = [(piece.value.deadline, piece.value.order, piece.first, piece.last) for piece in pieces]
        heapify(self._heap)
