"""A consumer of work queues: its credit, its messages in flight and their deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from omq.ranges import Range, RangeMap, RangeSet
from omq.workqueue.ack_deadlines import AckDeadlines, InFlight
from omq.workqueue.queue import WorkQueue

#: Deadlines, and overdue ranges, above which stale ones are dropped.
_MIN_DEADLINES: Final = 1024
#: The longest backoff of a consumer that hangs, in ack timeouts.
_MAX_BACKOFF_TIMEOUTS: Final = 64


class DispatcherView(Protocol):
    """The methods of `Dispatcher` that its consumers call."""

    @property
    def queues(self) -> Sequence[WorkQueue]:
        """The queues whose messages it delivers."""

    def consumer_ready(self, consumer: QueueConsumer) -> None:
        """Makes a consumer available: it has credit or room."""

    def consumer_ended(self, consumer: QueueConsumer) -> None:
        """Removes a consumer that has ended."""


class QueueConsumer:
    """A consumer of one or several queues. It identifies messages by their global ids (see `WorkQueue`).

    Args:
        dispatcher: The dispatcher that delivers to it.
        ack_timeout: The seconds after which a message that was not acknowledged is redelivered.
        credit: The number of messages that it may get.
        in_order: It works on its messages in the order of their delivery. So the deadline of a message depends on the
            one before it, and a message that comes back before its turn counts as not delivered.
        tick: Deadlines are checked together at multiples of these seconds. 0: each at its time.

    Attributes:
        credit: The number of messages that it may still get.
        in_flight: The messages delivered to it and not acknowledged, by global id.
        last: The highest global id delivered to it.
        active: True until it ends.
        backoff_until: Other consumers come first until this time, as this one hangs.
    """

    def __init__(
        self, dispatcher: DispatcherView, ack_timeout: float, credit: int, *, in_order: bool = True, tick: float = 0.0
    ) -> None:
        self.credit = credit
        self.in_flight: RangeMap[InFlight] = RangeMap()
        self.active = True
        self.last = 0
        self.backoff_until = 0.0
        self._dispatcher = dispatcher
        self._queues = dispatcher.queues
        self._in_order = in_order
        self._tick = tick
        self._overdue = RangeSet()  # messages past their deadline, which it may still acknowledge
        self._max_overdue = _MIN_DEADLINES  # the length at which ranges that other consumers have now are removed
        self._withheld = 0  # the credit of overdue messages, which it gets back at its next progress
        #: The last message, in delivery order, that it has finished or reported progress on: order and global id.
        self._position = (0, 0)
        self._hung_until = 0.0  # until then the message after that, which has come back, counts as begun
        self._loop = asyncio.get_running_loop()
        self._deadlines = AckDeadlines(ack_timeout, in_order=in_order)
        self._timer: asyncio.TimerHandle | None = None
        self._last_progress = self._loop.time()
        self._timeouts = 0  # consecutive deadlines that have passed without progress
        self._backoff: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ methods that a front end defines

    def has_room(self) -> bool:
        """Returns whether a delivery could be sent now. If not, the front end calls `more(0)` once it could."""
        raise NotImplementedError

    def fits(self, queue: WorkQueue, header: bytes, records: memoryview, count: int) -> int:
        """Returns the number of messages of a block that it takes; fewer than all only if no consumer has room.

        Args:
            queue: The queue of the block.
            header: 32 bytes; see docs/reference/broker-protocol.md.
            records: The store's own memory: valid until `send` returns, unless it is a view over `bytes`.
            count: The number of messages of the block.
        """
        return count

    def send(self, queue: WorkQueue, header: bytes, records: memoryview, count: int, tries: int) -> None:
        """Sends the first messages of a block, which are in flight now.

        Args:
            queue: The queue of the block.
            header: As for `fits`.
            records: As for `fits`.
            count: The number that `fits` has returned.
            tries: The delivery count of the messages, from 1.
        """
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Ends the consumer after `fits` or `send` has raised."""
        raise NotImplementedError

    # ------------------------------------------------------------------ calls of the consumer

    def more(self, messages: int) -> None:
        """Adds credit for a number of messages; 0 reports that there is room again."""
        self.credit += messages
        if self.active and self.credit > 0:
            self._dispatcher.consumer_ready(self)

    def ack(self, ranges: Sequence[tuple[int, int]]) -> int:
        """Acknowledges messages.

        Args:
            ranges: First and last global id of each range. Ids that the consumer does not have are ignored.

        Returns:
            The number of messages that this has finished: those in flight, and overdue ones that still wait for
            redelivery.
        """
        if not self.active:
            return 0
        pieces = self._take_in_flight(ranges)
        counted = sum(piece.count for piece in pieces)
        for piece in pieces:
            queue = self._queue_of(piece)
            queue.finish(piece.first - queue.base, piece.last - queue.base)
        if self._overdue:
            for first, last in ranges:
                for late in self._overdue.discard(first, last):
                    queue = self._queues[late[0] >> 64]
                    counted += queue.finish_late(late[0] - queue.base, late[1] - queue.base)
        self._record_progress(pieces)
        return counted

    def nack(self, ranges: Sequence[tuple[int, int]], delay: float | None = None) -> int:
        """Returns messages for redelivery.

        Args:
            ranges: First and last global id of each range. Ids that the consumer does not have are ignored.
            delay: The seconds until redelivery; `None`: the queue's retry delay.

        Returns:
            The number of these messages that were in flight.
        """
        if not self.active:
            return 0
        pieces = self._take_in_flight(ranges)
        for piece in pieces:
            self._queue_of(piece).retry(self._of_queue(piece), delay)
        self._record_progress(pieces)
        return sum(piece.count for piece in pieces)

    def progress(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Restarts the ack timeout of messages that the consumer works on, and of those delivered after them."""
        if not self.active:
            return
        pieces = self._take_in_flight(ranges)
        deadline = self._loop.time() + self._deadlines.timeout
        for piece in pieces:
            self.in_flight.put(piece.first, piece.last, piece.value._replace(deadline=deadline))
            self._deadlines.extend(piece, deadline)
        self._record_progress(pieces, keeps=True)

    def give_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Returns messages that the consumer has not begun with. Others get them, and this delivery does not count.

        This also takes all credit of the consumer, so that it gets nothing before it ends or adds credit.
        """
        if not self.active:
            return
        self.credit = self._withheld = 0
        for first, last in ranges:
            for piece in self.in_flight.take(first, last):
                self._queue_of(piece).requeue_uncounted(self._of_queue(piece))
        self._record_progress(())

    def end(self) -> None:
        """Ends the consumer and requeues its messages in flight. Idempotent."""
        if not self.active:
            return
        self.active = False
        for timer in (self._timer, self._backoff):
            if timer is not None:
                timer.cancel()
        self._timer = self._backoff = None
        self._dispatcher.consumer_ended(self)
        for piece, begun in self._split_by_begun(self.in_flight.take(0, self.last)):
            if begun:
                self._queue_of(piece).requeue(self._of_queue(piece))
            else:
                self._queue_of(piece).requeue_uncounted(self._of_queue(piece))

    def record_delivery(self, first: int, last: int, tries: int) -> None:
        """Records a delivery of messages to it.

        Args:
            first: The first global id.
            last: The last global id.
            tries: The delivery count of these messages, this delivery included.
        """
        deadline, order = self._deadlines.begin(first, last, self._loop.time())
        self.in_flight.put(first, last, InFlight(tries, deadline, order))
        self.credit -= last - first + 1
        self.last = max(self.last, last)
        if self._timer is None:
            self._set_timer(deadline)

    # ------------------------------------------------------------------ progress

    @property
    def hangs(self) -> bool:
        """Returns whether a deadline has passed, and the consumer has made no progress since."""
        return self._timeouts > 0

    def start_trial(self) -> None:
        """Restarts the backoff after one message was delivered on trial."""
        self.backoff_until = self._loop.time() + self._deadlines.timeout

    def _queue_of(self, piece: Range[InFlight]) -> WorkQueue:
        return self._queues[piece.first >> 64]

    def _of_queue(self, piece: Range[InFlight]) -> Range[InFlight]:
        """Converts a range of global ids to ids of its queue."""
        base = self._queue_of(piece).base
        return Range(piece.first - base, piece.last - base, piece.value) if base else piece

    def _take_in_flight(self, ranges: Iterable[tuple[int, int]]) -> list[Range[InFlight]]:
        """Removes ranges from the messages in flight and returns them. The consumer has reached them."""
        pieces: list[Range[InFlight]] = []
        for first, last in ranges:
            pieces += self.in_flight.take(first, last)
        for piece in pieces:
            if (piece.value.order, piece.last) > self._position:
                self._position = piece.value.order, piece.last  # so it has begun with all earlier ones
        if pieces:
            self._hung_until = 0.0
        return pieces

    def _split_by_begun(self, pieces: Iterable[Range[InFlight]]) -> Iterator[tuple[Range[InFlight], bool]]:
        """Yields ranges of messages that come back, each with whether the consumer had begun with them.

        A consumer that works in order has begun with all messages up to the last one that it has finished or reported
        progress on, and with the next one. It counts as having begun with one more each time that the ack timeout
        passes without progress.
        """
        now = self._loop.time()
        hangs = now < self._hung_until
        for piece in sorted(pieces, key=_delivery_order):
            first = piece.first
            if not self._in_order or piece.value.order < self._position[0]:
                begun = piece.last
            elif piece.value.order == self._position[0]:
                begun = min(max(self._position[1], first - 1), piece.last)
            else:
                begun = first - 1
            if begun < piece.last and not hangs:
                begun, hangs = begun + 1, True
                self._hung_until = now + self._deadlines.timeout * 0.9  # timers are not exact
            if begun >= first:
                yield Range(first, begun, piece.value), True
            if begun < piece.last:
                yield Range(max(begun + 1, first), piece.last, piece.value), False

    def _record_progress(self, pieces: Sequence[Range[InFlight]], *, keeps: bool = False) -> None:
        """Records that the consumer works, and returns the credit of messages that it does not have any more.

        Args:
            pieces: The messages that it has reached now.
            keeps: These messages stay in flight.
        """
        self._last_progress = self._loop.time()
        self._timeouts, self.backoff_until = 0, 0.0
        if pieces:
            self._deadlines.progress(*min((piece.value.order, piece.first) for piece in pieces), self._last_progress)
        messages = 0 if keeps else sum(piece.count for piece in pieces)
        messages += self._withheld
        self._withheld = 0
        self._drop_stale_deadlines()
        if len(self._deadlines) > _MIN_DEADLINES + 4 * len(self.in_flight):
            self._deadlines.rebuild(self.in_flight)
        if messages:
            self.more(messages)

    def _drop_stale_deadlines(self) -> None:
        """Drops the earliest deadlines, up to the first one that has a message in flight."""
        while (following := self._deadlines.next) is not None and not self.in_flight.overlaps(*following[1:]):
            self._deadlines.pop()

    # ------------------------------------------------------------------ overdue messages

    def _set_timer(self, deadline: float) -> None:
        if self._tick:
            deadline = (deadline // self._tick + 1) * self._tick
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time() + 0.001  # deadlines within 1 ms count as passed
        overdue: list[Range[InFlight]] = []
        while (following := self._deadlines.next) is not None and following[0] <= now:
            order, first, last = self._deadlines.pop()
            for piece in self.in_flight.take(first, last):
                if piece.value.order != order:  # a later delivery to the same consumer
                    self.in_flight.put(piece.first, piece.last, piece.value)
                    continue
                if (deadline := self._deadlines.of(piece)) > now:
                    self.in_flight.put(piece.first, piece.last, piece.value._replace(deadline=deadline))
                    self._deadlines.extend(piece, deadline)
                else:
                    overdue.append(piece)
        if overdue:
            self._redeliver_overdue(overdue)
        if len(self._overdue) > self._max_overdue:
            self._overdue = RangeSet(
                (first, last)
                for begin, end in self._overdue
                for first, last in self._queues[begin >> 64].waiting_global_ids(begin, end)
            )
            self._max_overdue = max(_MIN_DEADLINES, 2 * len(self._overdue))
        self._drop_stale_deadlines()
        if (following := self._deadlines.next) is not None:
            self._set_timer(following[0])

    def _redeliver_overdue(self, pieces: list[Range[InFlight]]) -> None:
        """Returns overdue messages to their queues for redelivery."""
        self._back_off()
        for piece in pieces:
            # With this credit, a consumer that hangs would get the same messages again and again.
            self._withheld += piece.count
            self._overdue.add(piece.first, piece.last)
        for piece, begun in self._split_by_begun(pieces):
            if begun:
                self._queue_of(piece).retry(self._of_queue(piece))
            else:
                self._queue_of(piece).requeue_uncounted(self._of_queue(piece))

    def _back_off(self) -> None:
        """Starts a backoff if the consumer has made no progress for an ack timeout.

        Each one is twice as long as the one before, up to a maximum. After recent progress, the method only schedules
        the return of the withheld credit.
        """
        now = self._loop.time()
        if now - self._last_progress < self._deadlines.timeout * 0.9:  # timers are not exact
            if self._backoff is None:  # without further progress, the withheld credit may be its only credit
                self._backoff = self._loop.call_at(now + self._deadlines.timeout, self._try_again)
            return
        self._timeouts += 1
        self.backoff_until = now + self._deadlines.timeout * min(2**self._timeouts, _MAX_BACKOFF_TIMEOUTS)
        if self._backoff is not None:
            self._backoff.cancel()
        self._backoff = self._loop.call_at(self.backoff_until, self._try_again)

    def _try_again(self) -> None:
        """Returns the withheld credit: the consumer may work again, and not acknowledge its overdue messages."""
        self._backoff = None
        messages, self._withheld = self._withheld, 0
        self.more(messages)


def _delivery_order(piece: Range[InFlight]) -> tuple[int, int]:
    return piece.value.order, piece.first
