"""A consumer of work queues: what it has in flight, until when, and how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from omq.ranges import Range, RangeMap, RangeSet
from omq.workqueue.ack_deadlines import AckDeadlines, InFlight
from omq.workqueue.queue import WorkQueue

#: Deadlines that are kept before those of what is not in flight any more are dropped.
_MIN_DEADLINES: Final = 1024
#: The longest time without messages of a consumer that hangs next to others, in times of its ack timeout.
_MAX_BACKOFF_TIMEOUTS: Final = 64


class DispatcherView(Protocol):
    """The dispatcher as its consumers see it (see `omq.workqueue.dispatcher`)."""

    @property
    def queues(self) -> Sequence[WorkQueue]:
        """The queues whose messages it delivers."""

    def wants(self, consumer: QueueConsumer) -> None:
        """Takes note that a consumer has credit or room."""

    def left(self, consumer: QueueConsumer) -> None:
        """Takes note that a consumer has ended."""


class QueueConsumer:
    """A consumer, which may take from several queues: it has messages by their places (see `WorkQueue`).

    Args:
        dispatcher: Who delivers to it.
        ack_timeout: Seconds within which a message is acknowledged, or delivered again.
        credit: Messages that it takes.
        in_order: It works at its messages in the order of their delivery: what comes back and was not its turn yet was
            no attempt, and has time from when the one before it was finished.
        tick: Seconds; deadlines are looked at together, at multiples of this. 0: each at its time.

    Attributes:
        credit: Messages that it takes more.
        flight: What it has and did not acknowledge, by place.
        last: The highest place that it was delivered.
        active: It has not ended.
        passed_over_until: Others come first until then: it hangs.
    """

    def __init__(
        self, dispatcher: DispatcherView, ack_timeout: float, credit: int, *, in_order: bool = True, tick: float = 0.0
    ) -> None:
        self.credit = credit
        self.flight: RangeMap[InFlight] = RangeMap()
        self.active = True
        self.last = 0
        self.passed_over_until = 0.0
        self._dispatcher = dispatcher
        self._queues = dispatcher.queues
        self._in_order = in_order
        self._tick = tick
        self._overdue = RangeSet()  # what it had until its deadline, and may acknowledge yet
        self._max_overdue = _MIN_DEADLINES  # its length at which ranges that another consumer has now are removed
        self._withheld = 0  # credit of what is overdue: it has it again when it shows that it lives
        #: The last message, in the order of delivery, that it has finished or shown to work at: order and place.
        self._reached = (0, 0)
        self._hung_until = 0.0  # until then it is at the message after that, which has come back already
        self._loop = asyncio.get_running_loop()
        self._deadlines = AckDeadlines(ack_timeout, in_order=in_order)
        self._timer: asyncio.TimerHandle | None = None
        self._signed = self._loop.time()  # when it has last shown that it lives
        self._timeouts = 0  # deadlines in a row that have passed without such a sign
        self._backoff: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ what a front end defines

    def has_room(self) -> bool:
        """Returns whether what is delivered can be sent; where not, `more(0)` is called once it can."""
        raise NotImplementedError

    def fits(self, queue: WorkQueue, header: bytes, records: memoryview, count: int) -> int:
        """Returns how many messages of a block it takes; fewer than all where no consumer has room for more.

        Args:
            queue: Where it is from.
            header: 32 bytes; see docs/reference/broker-protocol.md.
            records: The store's own memory: valid until `send` returns, unless it is a view over `bytes`.
            count: How many messages it has.
        """
        return count

    def send(self, queue: WorkQueue, header: bytes, records: memoryview, count: int, tries: int) -> None:
        """Sends the first messages of a block, which it has in flight now.

        Args:
            queue: Where it is from.
            header: As for `fits`.
            records: As for `fits`.
            count: How many messages `fits` has returned.
            tries: Which delivery of them this is.
        """
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Ends it: `send` has raised."""
        raise NotImplementedError

    # ------------------------------------------------------------------ statistics

    def more(self, messages: int) -> None:
        """Gives credit for `messages` more; with 0, there is room again."""
        self.credit += messages
        if self.active and self.credit > 0:
            self._dispatcher.wants(self)

    def ack(self, ranges: Sequence[tuple[int, int]]) -> int:
        """Acknowledges messages.

        Args:
            ranges: Places, first and last of each range; what it does not have is passed over.

        Returns:
            How many count now: those in flight, and those overdue that no other consumer has begun with.
        """
        if not self.active:
            return 0
        pieces = self._take(ranges)
        counted = sum(piece.count for piece in pieces)
        for piece in pieces:
            queue = self._queue_of(piece)
            queue.finish(piece.first - queue.base, piece.last - queue.base)
        if self._overdue:
            for first, last in ranges:
                for late in self._overdue.discard(first, last):
                    queue = self._queues[late[0] >> 64]
                    counted += queue.finish_late(late[0] - queue.base, late[1] - queue.base)
        self._released(pieces)
        return counted

    def nack(self, ranges: Sequence[tuple[int, int]], delay: float | None = None) -> int:
        """Has messages delivered again.

        Args:
            ranges: Places, first and last of each range; what it does not have is passed over.
            delay: Seconds until then; `None`: as the queue's retry delay is.

        Returns:
            How many of them it had in flight.
        """
        if not self.active:
            return 0
        pieces = self._take(ranges)
        for piece in pieces:
            self._queue_of(piece).failed(self._of_queue(piece), delay)
        self._released(pieces)
        return sum(piece.count for piece in pieces)

    def progress(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Restarts the time of these and of what was delivered after them: the consumer works at them."""
        if not self.active:
            return
        pieces = self._take(ranges)
        deadline = self._loop.time() + self._deadlines.timeout
        for piece in pieces:
            self.flight.put(piece.first, piece.last, piece.value._replace(deadline=deadline))
            self._deadlines.extend(piece, deadline)
        self._released(pieces, keeps=True)

    def give_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Returns messages that the consumer has not looked at: they go to others, and this delivery does not count.

        Its credit is over, so that nothing follows before it ends or gives some more.
        """
        if not self.active:
            return
        self.credit = self._withheld = 0
        for first, last in ranges:
            for piece in self.flight.take(first, last):
                self._queue_of(piece).unseen(self._of_queue(piece))
        self._released(())

    def end(self) -> None:
        """Gives back what was not acknowledged. Idempotent."""
        if not self.active:
            return
        self.active = False
        for timer in (self._timer, self._backoff):
            if timer is not None:
                timer.cancel()
        self._timer = self._backoff = None
        self._dispatcher.left(self)
        for piece, begun in self._attempted(self.flight.take(0, self.last)):
            if begun:
                self._queue_of(piece).returned(self._of_queue(piece))
            else:
                self._queue_of(piece).unseen(self._of_queue(piece))

    def hold(self, first: int, last: int, tries: int) -> None:
        """Records a delivery to it: it is the delivery numbered `tries` of these messages, by place."""
        deadline, order = self._deadlines.begin(first, last, self._loop.time())
        self.flight.put(first, last, InFlight(tries, deadline, order))
        self.credit -= last - first + 1
        self.last = max(self.last, last)
        if self._timer is None:
            self._set_timer(deadline)

    # ------------------------------------------------------------------ how far it is

    @property
    def hangs(self) -> bool:
        """Returns whether it has let a deadline pass, and shown no sign since."""
        return self._timeouts > 0

    def on_trial(self) -> None:
        """Passes it over again from the next message on, until it shows a sign or lets another deadline pass."""
        self.passed_over_until = self._loop.time() + self._deadlines.timeout

    def _queue_of(self, piece: Range[InFlight]) -> WorkQueue:
        return self._queues[piece.first >> 64]

    def _of_queue(self, piece: Range[InFlight]) -> Range[InFlight]:
        """Returns the piece with the ids of its queue."""
        base = self._queue_of(piece).base
        return Range(piece.first - base, piece.last - base, piece.value) if base else piece

    def _take(self, ranges: Iterable[tuple[int, int]]) -> list[Range[InFlight]]:
        """Takes what it has of these out of what is in flight: it has reached them."""
        pieces: list[Range[InFlight]] = []
        for first, last in ranges:
            pieces += self.flight.take(first, last)
        for piece in pieces:
            if (piece.value.order, piece.last) > self._reached:
                self._reached = piece.value.order, piece.last  # so it had begun with all that were delivered before
        if pieces:
            self._hung_until = 0.0
        return pieces

    def _attempted(self, pieces: Iterable[Range[InFlight]]) -> Iterator[tuple[Range[InFlight], bool]]:
        """Yields messages that come back, each with whether the consumer had begun with it.

        Where it works in order that is all up to the last one that it has finished or shown to work at, and the one
        after it; one more each time that the ack timeout has passed without a sign.
        """
        now = self._loop.time()
        hangs = now < self._hung_until
        for piece in sorted(pieces, key=_delivered):
            first = piece.first
            if not self._in_order or piece.value.order < self._reached[0]:
                begun = piece.last
            elif piece.value.order == self._reached[0]:
                begun = min(max(self._reached[1], first - 1), piece.last)
            else:
                begun = first - 1
            if begun < piece.last and not hangs:
                begun, hangs = begun + 1, True
                self._hung_until = now + self._deadlines.timeout * 0.9  # timers are not exact
            if begun >= first:
                yield Range(first, begun, piece.value), True
            if begun < piece.last:
                yield Range(max(begun + 1, first), piece.last, piece.value), False

    def _released(self, pieces: Sequence[Range[InFlight]], *, keeps: bool = False) -> None:
        """Takes note that the consumer lives, and gives it the credit of what it does not have any more.

        Args:
            pieces: What it has reached now.
            keeps: It has them still.
        """
        self._signed = self._loop.time()
        self._timeouts, self.passed_over_until = 0, 0.0
        if pieces:
            self._deadlines.sign(*min((piece.value.order, piece.first) for piece in pieces), self._signed)
        messages = 0 if keeps else sum(piece.count for piece in pieces)
        messages += self._withheld
        self._withheld = 0
        self._forget()
        if len(self._deadlines) > _MIN_DEADLINES + 4 * len(self.flight):
            self._deadlines.rebuild(self.flight)
        if messages:
            self.more(messages)

    def _forget(self) -> None:
        """Drops the next deadlines, as far as nothing is in flight any more of what they are for."""
        while (following := self._deadlines.next) is not None and not self.flight.overlaps(*following[1:]):
            self._deadlines.pop()

    # ------------------------------------------------------------------ what is overdue

    def _set_timer(self, deadline: float) -> None:
        if self._tick:
            deadline = (deadline // self._tick + 1) * self._tick
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time() + 0.001  # what is due in a moment is due now
        lost: list[Range[InFlight]] = []
        while (following := self._deadlines.next) is not None and following[0] <= now:
            order, first, last = self._deadlines.pop()
            for piece in self.flight.take(first, last):
                if piece.value.order != order:  # delivered to it again meanwhile
                    self.flight.put(piece.first, piece.last, piece.value)
                    continue
                if (deadline := self._deadlines.of(piece)) > now:
                    self.flight.put(piece.first, piece.last, piece.value._replace(deadline=deadline))
                    self._deadlines.extend(piece, deadline)
                else:
                    lost.append(piece)
        if lost:
            self._lose(lost)
        if len(self._overdue) > self._max_overdue:
            self._overdue = RangeSet(
                (first, last)
                for begin, end in self._overdue
                for first, last in self._queues[begin >> 64].waiting_places(begin, end)
            )
            self._max_overdue = max(_MIN_DEADLINES, 2 * len(self._overdue))
        self._forget()
        if (following := self._deadlines.next) is not None:
            self._set_timer(following[0])

    def _lose(self, pieces: list[Range[InFlight]]) -> None:
        """Has what is overdue delivered again."""
        self._back_off()
        for piece in pieces:
            # A consumer that hangs would else be given the same ones for ever.
            self._withheld += piece.count
            self._overdue.add(piece.first, piece.last)
        for piece, begun in self._attempted(pieces):
            if begun:
                self._queue_of(piece).failed(self._of_queue(piece))
            else:
                self._queue_of(piece).unseen(self._of_queue(piece))

    def _back_off(self) -> None:
        """Lets other consumers come first for a while, which doubles each time, after a deadline without any sign."""
        now = self._loop.time()
        if now - self._signed < self._deadlines.timeout * 0.9:  # timers are not exact
            if self._backoff is None:  # it may show no further sign, and have no credit left but what is withheld
                self._backoff = self._loop.call_at(now + self._deadlines.timeout, self._try_again)
            return
        self._timeouts += 1
        self.passed_over_until = now + self._deadlines.timeout * min(2**self._timeouts, _MAX_BACKOFF_TIMEOUTS)
        if self._backoff is not None:
            self._backoff.cancel()
        self._backoff = self._loop.call_at(self.passed_over_until, self._try_again)

    def _try_again(self) -> None:
        """Gives it the credit of what is overdue: it may live, and acknowledge nothing of what it had."""
        self._backoff = None
        messages, self._withheld = self._withheld, 0
        self.more(messages)


def _delivered(piece: Range[InFlight]) -> tuple[int, int]:
    return piece.value.order, piece.first
