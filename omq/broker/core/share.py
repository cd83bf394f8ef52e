"""A consumer of a round-robin topic: what it has, until when, and how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from omq.broker.core.delivery_state import DeliveryState
from omq.broker.core.leases import Leases
from omq.broker.core.sink import Sink
from omq.ranges import Range, RangeMap, RangeSet

#: Leases that are looked through before those that are over are thrown out.
_LEASES: Final = 1024
#: The longest time without messages of a consumer that hangs next to others, in times of its `ack_timeout`.
_MAX_BACKOFF_TIMEOUTS: Final = 64


class SharedTopic(Protocol):
    """The topic of a share."""

    def wants(self, share: Share) -> None:
        """A share has credit or room."""

    def left(self, share: Share) -> None:
        """A share has ended."""

    def settled(self, first: int, last: int) -> None:
        """Messages are acknowledged."""

    def settled_late(self, first: int, last: int) -> None:
        """Messages are acknowledged after their deadline."""

    def waiting_of(self, ids: RangeSet) -> RangeSet:
        """Returns those of some messages that wait to be delivered again."""

    def returned(self, piece: Range[DeliveryState]) -> None:
        """Messages come back from a consumer that is gone."""

    def failed(self, piece: Range[DeliveryState], delay: float | None = None) -> None:
        """Messages were delivered in vain."""

    def unseen(self, piece: Range[DeliveryState]) -> None:
        """Messages were delivered, and come back without having been looked at."""


class Share:
    """A consumer of a round-robin topic.

    Attributes:
        topic: The topic.
        sink: Where its messages go.
        credit: Messages that it takes more.
        flight: What it has and did not acknowledge.
        active: It has not ended.
        passed_over_until: Others come first until then: it hangs.
    """

    __slots__ = (
        "_backoff",
        "_hung_until",
        "_leases",
        "_loop",
        "_many_overdue",
        "_overdue",
        "_reached",
        "_signed",
        "_timeouts",
        "_timer",
        "_withheld",
        "active",
        "credit",
        "flight",
        "last",
        "passed_over_until",
        "sink",
        "topic",
    )

    def __init__(
        self, topic: SharedTopic, sink: Sink, ack_timeout: float, credit: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.topic = topic
        self.sink = sink
        self.credit = credit
        self.flight: RangeMap[DeliveryState] = RangeMap()
        self.active = True
        self.last = 0
        self._overdue = RangeSet()  # what it had until its deadline, and may acknowledge yet
        self._many_overdue = _LEASES  # its length at which ranges that another consumer has now are removed
        self._withheld = 0  # credit of what is overdue: it has it again when it shows that it lives
        #: The last message, in the order of delivery, that it has finished or shown to work at: order and id.
        self._reached = (0, 0)
        self._hung_until = 0.0  # until then it is at the message after that, which has come back already
        self._loop = loop
        self._leases = Leases(ack_timeout)
        self._timer: asyncio.TimerHandle | None = None
        self.passed_over_until = 0.0
        self._signed = loop.time()  # when it has last shown that it lives
        self._timeouts = 0  # deadlines in a row that have passed without such a sign
        self._backoff: asyncio.TimerHandle | None = None

    def more(self, messages: int) -> None:
        """Gives credit for `messages` more; with 0, the sink has room again."""
        self.credit += messages
        if self.active and self.credit > 0:
            self.topic.wants(self)

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledges ids, first and last of each range; what it does not hold is passed over."""
        if not self.active:
            return
        pieces = self._take(ranges)
        for piece in pieces:
            self.topic.settled(piece.first, piece.last)
        if self._overdue:
            for first, last in ranges:
                for late in self._overdue.discard(first, last):
                    self.topic.settled_late(*late)
        self._returned(pieces)

    def nack(self, ranges: Sequence[tuple[int, int]], delay: float | None = None) -> None:
        """Has messages delivered again.

        Args:
            ranges: Ids, first and last of each range; what it does not hold is passed over.
            delay: Seconds until then; `None`: as the topic's `retry_delay` says.
        """
        if not self.active:
            return
        pieces = self._take(ranges)
        for piece in pieces:
            self.topic.failed(piece, delay)
        self._returned(pieces)

    def progress(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Restarts the time of these and of what was delivered after them: the consumer works at them."""
        if not self.active:
            return
        pieces = self._take(ranges)
        deadline = self._loop.time() + self._leases.timeout
        for piece in pieces:
            self.flight.put(piece.first, piece.last, piece.value._replace(deadline=deadline))
            self._leases.go_on(piece, deadline)
        self._returned(pieces, keeps=True)

    def _take(self, ranges: Iterable[tuple[int, int]]) -> list[Range[DeliveryState]]:
        """Takes what it holds of these out of what is in flight: it has reached them."""
        pieces: list[Range[DeliveryState]] = []
        for first, last in ranges:
            for piece in self.flight.take(first, last):
                self._reach(piece)
                pieces.append(piece)
        return pieces

    def _reach(self, piece: Range[DeliveryState]) -> None:
        """It has finished a message, or works at it: so it had begun with all that were delivered before."""
        if (piece.value.order, piece.last) > self._reached:
            self._reached = piece.value.order, piece.last
        self._hung_until = 0.0

    def _attempted(self, pieces: Iterable[Range[DeliveryState]]) -> Iterator[tuple[Range[DeliveryState], bool]]:
        """Yields messages that come back, each with whether the consumer had begun with it: it works in their order.

        That is all up to the last one that it has finished or shown to work at, and the one after it; one more each
        time that `ack_timeout` has passed without a sign.
        """
        now = self._loop.time()
        hangs = now < self._hung_until
        for piece in sorted(pieces, key=_delivery):
            first = piece.first
            if piece.value.order < self._reached[0]:
                begun = piece.last
            elif piece.value.order == self._reached[0]:
                begun = min(max(self._reached[1], first - 1), piece.last)
            else:
                begun = first - 1
            if begun < piece.last and not hangs:
                begun, hangs = begun + 1, True
                self._hung_until = now + self._leases.timeout * 0.9  # timers are not exact
            if begun >= first:
                yield Range(first, begun, piece.value), True
            if begun < piece.last:
                yield Range(max(begun + 1, first), piece.last, piece.value), False

    def give_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Returns messages that the consumer has not looked at: they go to others, and this delivery does not count.

        Its credit is over, so that nothing follows before it ends or gives some more.
        """
        if not self.active:
            return
        self.credit = self._withheld = 0
        for first, last in ranges:
            for piece in self.flight.take(first, last):
                self.topic.unseen(piece)
        self._returned(())

    def _returned(self, pieces: Sequence[Range[DeliveryState]], *, keeps: bool = False) -> None:
        """Takes note that the consumer lives, and gives it the credit of what it holds no more.

        Args:
            pieces: What it has reached now.
            keeps: It holds them still.
        """
        self._signed = self._loop.time()
        self._timeouts, self.passed_over_until = 0, 0.0
        if pieces:
            self._leases.sign(*min((piece.value.order, piece.first) for piece in pieces), self._signed)
        messages = 0 if keeps else sum(piece.count for piece in pieces)
        messages += self._withheld
        self._withheld = 0
        self._forget()
        if len(self._leases) > _LEASES + 4 * len(self.flight):
            self._leases.renew(self.flight)
        if messages:
            self.more(messages)

    def _forget(self) -> None:
        """Forgets the next deadlines, as far as nothing is held any more of what they are for."""
        while (following := self._leases.next) is not None and not self.flight.overlaps(*following[1:]):
            self._leases.pop()

    def end(self) -> None:
        """Gives back what was not acknowledged. Idempotent."""
        if not self.active:
            return
        self.active = False
        for timer in (self._timer, self._backoff):
            if timer is not None:
                timer.cancel()
        self._timer = self._backoff = None
        self.topic.left(self)
        for piece, begun in self._attempted(self.flight.take(1, self.last)):
            if begun:
                self.topic.returned(piece)
            else:
                self.topic.unseen(piece)

    def hold(self, first: int, last: int, tries: int) -> None:
        """Records a delivery to it: it is the delivery numbered `tries` of these messages."""
        deadline, order = self._leases.begin(first, last, self._loop.time())
        self.flight.put(first, last, DeliveryState(tries, deadline, order))
        self.credit -= last - first + 1
        self.last = max(self.last, last)
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time() + 0.001  # what is due in a moment is due now
        lost: list[Range[DeliveryState]] = []
        while (following := self._leases.next) is not None and following[0] <= now:
            order, first, last = self._leases.pop()
            for piece in self.flight.take(first, last):
                if piece.value.order != order:  # delivered to it again meanwhile
                    self.flight.put(piece.first, piece.last, piece.value)
                    continue
                if (deadline := self._leases.of(piece)) > now:
                    self.flight.put(piece.first, piece.last, piece.value._replace(deadline=deadline))
                    self._leases.go_on(piece, deadline)
                else:
                    lost.append(piece)
        self._lose(lost)
        if len(self._overdue) > self._many_overdue:
            self._overdue = self.topic.waiting_of(self._overdue)
            self._many_overdue = max(_LEASES, 2 * len(self._overdue))
        self._forget()
        if (following := self._leases.next) is not None:
            self._timer = self._loop.call_at(following[0], self._expire)

    def _back_off(self) -> None:
        """Lets other consumers come first for a while, which doubles each time, after a deadline without any sign."""
        now = self._loop.time()
        if now - self._signed < self._leases.timeout * 0.9:  # timers are not exact
            return
        self._timeouts += 1
        self.passed_over_until = now + self._leases.timeout * min(2**self._timeouts, _MAX_BACKOFF_TIMEOUTS)
        if self._backoff is not None:
            self._backoff.cancel()
        self._backoff = self._loop.call_at(self.passed_over_until, self._try_again)

    def _try_again(self) -> None:
        """Gives it the credit of what is overdue: it may live, and acknowledge nothing of what it had."""
        self._backoff = None
        messages, self._withheld = self._withheld, 0
        self.more(messages)

    def _lose(self, pieces: list[Range[DeliveryState]]) -> None:
        """The time of these is up."""
        if pieces:
            self._back_off()
        for piece in pieces:
            # A consumer that hangs would else be given the same ones for ever.
            self._withheld += piece.count
            self._overdue.add(piece.first, piece.last)
        for part, begun in self._attempted(pieces):
            if begun:
                self.topic.failed(part)
            else:
                self.topic.unseen(part)


def _delivery(piece: Range[DeliveryState]) -> tuple[int, int]:
    return piece.value.order, piece.first
