"""What a client has subscribed to: where the broker's core puts the messages of one topic."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Literal, Protocol

from omq.broker.core.broadcast import Subscription
from omq.broker.core.broker import Broker
from omq.broker.core.share import Share
from omq.broker.core.topic import Topic
from omq.broker.errors import BrokerError, Damaged, Overrun
from omq.broker.sexp.frame_cache import FrameCache
from omq.broker.sexp.limits import Limits
from omq.broker.sexp.protocol import Error, Frame, Replay, Unsubscribed
from omq.broker.sexp.syntax import shown
from omq.broker.sexp.wire import Wire
from omq.ranges import ranges_of

__all__ = ["Handing", "Reading", "Subscriber"]

#: Seconds that a message may wait for the kernel: it is given back when the connection ends, and not before.
_FOREVER: Final = 1e8
_CREDIT: Final = 256  # messages of a round-robin topic that wait for the kernel


class Subscriber(Protocol):
    """The part of a connection that its readings use.

    Attributes:
        readings: By topic.
        left: Shares that were unsubscribed from, and whose last messages wait for the kernel.
    """

    peer: str
    loop: asyncio.AbstractEventLoop
    broker: Broker
    limits: Limits
    frames: FrameCache
    wire: Wire
    readings: dict[str, Reading]
    left: set[Handing]

    def answer(self, frame: Frame) -> None:
        """Sends a frame that is no message."""

    def fail(self, text: str) -> None:
        """Ends the connection with an error."""


class Reading:
    """A broadcast topic. It is the subscription's sink.

    Messages of a kept topic wait in the store for a slow client; those of a transient one wait here, until they are
    too many.

    Args:
        connection: The one that it reads for.
        topic: The topic.
    """

    door: Literal["zmtp", "sexp"] = "sexp"
    user: str | None = None

    def __init__(self, connection: Subscriber, topic: Topic) -> None:
        self.connection = connection
        self.topic = topic
        self.peer = connection.peer
        self._limits = connection.limits
        self._kept = topic.persistence != "transient"
        self._held: list[tuple[bytes, list[int], int]] | None = []  # what comes before the client knows
        self._full = False  # the core waits to hear that there is room
        self._subscription: Subscription | None = None

    def begin(self, replay: Replay) -> str:
        """Begins to read; gives what the client should know of it.

        Raises:
            BrokerError: That cannot be read.
        """
        broker = self.connection.broker
        try:
            self._subscription = broker.subscribe(self.topic, replay, self)
        except Overrun as error:
            self._subscription = broker.subscribe(self.topic, "beginning", self)
            return _overrun(error)
        return ""

    def release(self) -> None:
        """The client knows: what was held goes out."""
        held, self._held = self._held or [], None
        for data, ends, first in held:
            self._send(data, ends, first)

    def room(self) -> int:
        """See `Sink`."""
        unsent = self.connection.wire.unsent
        if self._kept:
            self._full = 2 * unsent > self._limits.window
            return 0 if self._full else self._limits.window - unsent
        if unsent < self._limits.unsent:
            return self._limits.unsent - unsent
        self.connection.loop.call_soon(self._too_slow)
        return 0

    def block(self, header: bytes, records: memoryview, counts: bytes) -> None:
        """See `Sink`."""
        data, ends = self.connection.frames.encode(header, records, self.topic.id)
        first = int.from_bytes(header[8:16], "big")
        if self._held is None:
            self._send(data, ends, first)
        else:
            self._held.append((data, ends, first))

    def _send(self, data: bytes, ends: list[int], first: int) -> None:
        self.connection.wire.write(data)

    def ended(self, error: BrokerError | None) -> None:
        """See `Sink`."""
        if error is None or self.connection.readings.get(self.topic.name) is not self:
            return
        name = self.topic.name.encode()
        if isinstance(error, Overrun | Damaged) and error.first:
            # What is behind the gap can be read.
            broker = self.connection.broker
            try:
                behind = "beginning" if isinstance(error, Overrun) else error.last
                self._subscription = broker.subscribe(self.topic, behind, self)
            except BrokerError as fault:
                error = fault
            else:
                note = _overrun(error) if isinstance(error, Overrun) else str(error)
                self.connection.answer(Error(f"{shown(name)}: {note}"))
                return
        del self.connection.readings[self.topic.name]
        self.connection.answer(Unsubscribed(self.topic.id, name))
        self.connection.answer(Error(f"{shown(name)}: {error}"))

    def taken(self) -> None:
        """The kernel has taken something."""
        if self._full and 2 * self.connection.wire.unsent <= self._limits.window and self._subscription is not None:
            self._full = False
            self._subscription.more()

    def end(self) -> None:
        """Nothing more is to come; what was sent goes out."""
        self.stop()

    def dropped(self) -> None:
        """What was sent, and waited for the kernel, will not go out."""

    def stop(self) -> None:
        """Nothing more is to come, and nothing that was sent goes out any more."""
        if self._subscription is not None:
            self._subscription.end()

    def _too_slow(self) -> None:
        limit = self._limits.unsent
        self.connection.fail(f"{shown(self.topic.name.encode())}: too slow: more than {limit} bytes were not yet taken")


class Handing(Reading):
    """A share of a round-robin topic: what the kernel has taken is done, the rest goes to others."""

    def __init__(self, connection: Subscriber, topic: Topic) -> None:
        super().__init__(connection, topic)
        self._waiting: deque[tuple[int, int]] = deque()  # where in the stream a message ends, and its id
        self._share: Share | None = None
        self._leaving = False

    def begin(self, replay: Replay) -> str:
        """See `Reading`."""
        self._share = self.connection.broker.consume(self.topic, self, ack_timeout=_FOREVER, credit=_CREDIT)
        return ""

    def room(self) -> int:
        """See `Sink`."""
        unsent = self.connection.wire.unsent
        self._full = self._leaving or 2 * unsent > self._limits.share
        return 0 if self._full else self._limits.share - unsent

    def _send(self, data: bytes, ends: list[int], first: int) -> None:
        if self._leaving:
            if self._share is not None:
                self._share.nack([(first, first + len(ends) - 1)])
            return
        base = self.connection.wire.said
        self._waiting.extend((base + end, first + at) for at, end in enumerate(ends))
        self.connection.wire.write(data)

    def taken(self) -> None:
        """See `Reading`."""
        share, waiting = self._share, self._waiting
        if share is None:
            return
        taken = self.connection.wire.taken
        done = []
        while waiting and waiting[0][0] <= taken:
            done.append(waiting.popleft()[1])
        if done:
            share.ack(ranges_of(done))
        if self._leaving:
            if not waiting:
                self.stop()
                self.connection.left.discard(self)
        elif self._full and 2 * self.connection.wire.unsent <= self._limits.share:
            self._full = False
            share.more(0)

    def end(self) -> None:
        """See `Reading`: to end the share at once would give to others what the kernel is about to take."""
        self._leaving = True
        self.connection.left.add(self)
        self.taken()

    def dropped(self) -> None:
        """See `Reading`."""
        said = self.connection.wire.said
        back = []
        while self._waiting and self._waiting[-1][0] > said:
            back.append(self._waiting.pop()[1])
        if back and self._share is not None:
            self._share.nack(ranges_of(back))

    def stop(self) -> None:
        """See `Reading`."""
        if self._share is None:
            return
        share, self._share = self._share, None
        taken = self.connection.wire.taken
        done = [number for end, number in self._waiting if end <= taken]
        if done:
            share.ack(ranges_of(done))
        self._waiting.clear()
        share.end()


def _overrun(error: Overrun) -> str:
    return f"messages below {error.first} are no longer kept: it begins with {error.first}"
