"""One client of the door: what it asks for, and what it gets."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from omq._core import blocks
from omq.broker.core.broker import Broker
from omq.broker.core.topic import Topic
from omq.broker.errors import BrokerError, PermissionDenied, SyntaxFault, TopicError, VersionFault
from omq.broker.protocol import topic_name
from omq.broker.sexp.frame_cache import FrameCache
from omq.broker.sexp.limits import Limits
from omq.broker.sexp.protocol import (
    REFUSAL,
    Ack,
    Command,
    Connect,
    Create,
    Created,
    Error,
    Frame,
    Pings,
    Publish,
    Published,
    ServerSide,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    write_frame,
)
from omq.broker.sexp.reading import Handing, Reading
from omq.broker.sexp.syntax import shown
from omq.broker.sexp.wire import Wire
from omq.unpatched import socket


class Connection:
    """A client, from its first byte to its last. It is its wire's owner.

    Args:
        sock: Connected, and not blocking.
        peer: The endpoint that it came from.
        loop: The broker's loop.
        broker: The core.
        limits: See there.
        frames: Shared by the connections of one listener.
        clients: The connections of one listener by client id, which this one enters and leaves.
        gone: Called once the connection is over.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        *,
        loop: asyncio.AbstractEventLoop,
        broker: Broker,
        limits: Limits,
        frames: FrameCache,
        clients: dict[bytes, Connection],
        gone: Callable[[Connection], None],
    ) -> None:
        self.peer = peer
        self.loop = loop
        self.broker = broker
        self.limits = limits
        self.frames = frames
        self._clients = clients
        self._gone = gone
        self.wire = Wire(loop, sock, self)
        self.readings: dict[str, Reading] = {}  # by topic
        self.left: set[Handing] = set()  # of shares that were unsubscribed from: their last messages wait
        self._side = ServerSide()
        self._pings = Pings()
        self._commands: deque[Command | BrokerError] = deque()  # that wait for the one before
        self._making: asyncio.Task[None] | None = None  # the command that the others wait for
        self._batch: tuple[Topic, str, list[bytes]] | None = None
        self._publishing = 0  # bytes that wait for the store
        self._answers = Backlog()
        self._last: bytes | None = None  # what is said last, once this is the end
        self._finished = False  # it is said, and the kernel has it
        self._taken = 0  # at the last look whether a connection that ends moves
        self._timer: asyncio.TimerHandle = loop.call_later(limits.handshake, self._too_late)
        self.wire.read(True)

    # ------------------------------------------------------------------------------------------- what comes

    def received(self, data: bytes) -> None:
        """Bytes of the client."""
        if self.ending:
            return
        if not self._side.version:
            try:
                answer, data = self._side.handshake(data)
            except VersionFault:
                self._end(REFUSAL)
                return
            self.wire.write(answer)
        if data:
            try:
                self._commands.extend(self._side.commands(data))
            except SyntaxFault as fault:
                self._commands.append(fault)
            self._work()

    def ended(self) -> None:
        """The client sends nothing more: it gets the answers that it waits for."""
        if self.readings or self._side.client is None:
            self.wire.close()
        else:
            self._end(b"")

    def _work(self) -> None:
        """Obeys the commands that came, one after the other."""
        while self._commands and self._making is None and not self.ending:
            self._obey(self._commands.popleft())
        if self._making is None:
            self._publish_batch()
        self._listen()

    def _obey(self, command: Command | BrokerError) -> None:
        if isinstance(command, BrokerError):
            self._publish_batch()
            self.broker.refuse(command)
            self._end(write_frame(Error(str(command))))
            return
        try:
            if isinstance(command, Publish):
                self._gather(command)
                return
            self._publish_batch()
            match command:
                case Ack(moment):
                    self._pings.ack(moment)
                case Connect():
                    self._connect(command)
                case Subscribe():
                    self._subscribe(command)
                case Unsubscribe():
                    self._unsubscribe(command)
                case Create():
                    self._making = self.loop.create_task(self._create(command))
        except BrokerError as error:
            self._refuse(command, error)

    def _refuse(self, command: Subscribe | Unsubscribe | Publish | Create | Ack | Connect, error: BrokerError) -> None:
        """What a topic refuses leaves the connection open."""
        self.broker.refuse(error)
        topic = command.topic if not isinstance(command, Ack | Connect) else b""
        self.answer(Error(f"{type(command).__name__} {shown(topic)}: {error}"))

    def _connect(self, command: Connect) -> None:
        if command.client in self._clients:
            self._side.client = None  # it is another's
            self._end(write_frame(Error(f"client {shown(command.client)} is connected already")))
            return
        self._clients[command.client] = self
        self._wait(self.limits.ping, self._ping)

    def _subscribe(self, command: Subscribe) -> None:
        name = topic_name(command.topic)
        if name in self.readings:
            raise TopicError("it is subscribed to already")
        topic = self._permitted(name, "subscribe", "consume")
        reading: Reading
        if topic.delivery == "round-robin":
            if command.replay != "current":
                raise TopicError("a round-robin topic is read From_current")
            reading = Handing(self, topic)
        else:
            reading = Reading(self, topic)
        note = reading.begin(command.replay)
        self.readings[name] = reading
        self.answer(Subscribed(topic.id, command.topic))
        if note:
            self.answer(Error(f"Subscribe {shown(command.topic)}: {note}"))
        reading.release()

    def _unsubscribe(self, command: Unsubscribe) -> None:
        reading = self.readings.pop(topic_name(command.topic), None)
        if reading is None:
            raise TopicError("it is not subscribed to")
        reading.end()
        self.answer(Unsubscribed(reading.topic.id, command.topic))

    def _gather(self, command: Publish) -> None:
        """Messages for one topic that came together go to the store together."""
        name = topic_name(command.topic)
        if self._batch is None or self._batch[1] != name:
            self._publish_batch()
            self._batch = (self._permitted(name, "publish", "publish"), name, [])
        self._batch[2].append(command.body)

    def _publish_batch(self) -> None:
        if self._batch is None:
            return
        (topic, name, bodies), self._batch = self._batch, None
        records = blocks.encode(bodies)
        count, size = len(bodies), len(records)
        self._publishing += size

        def done(first: int, error: BrokerError | None) -> None:
            self._publishing -= size
            if error is None:
                frames: list[bytes] = [write_frame(Published(first + at, topic.id)) for at in range(count)]
            else:
                self.broker.refuse(error)
                frames = [write_frame(Error(f"Publish {shown(name.encode())}: {error}"))] * count
            self._say(b"".join(frames))
            self._listen()
            self._finish()

        topic.append(records, count, done, alive=lambda: self.wire.open)

    async def _create(self, command: Create) -> None:
        try:
            try:
                self.answer(await self._made(command))
            except BrokerError as error:
                self._refuse(command, error)
        finally:
            self._making = None
        self._work()
        self._finish()

    async def _made(self, command: Create) -> Created:
        name = topic_name(command.topic)
        if not self.broker.permissions.allows(None, "create", name):
            raise PermissionDenied("that is not permitted")
        # The protocol knows no other settings: a topic that has some is as asked if the rest fits.
        topic = self.broker.topics.get(name)
        if topic is None:
            topic = await self.broker.create(
                name, delivery=command.delivery, persistence=command.persistence, settings=None
            )
        elif (topic.delivery, topic.persistence) != (command.delivery, command.persistence):
            raise TopicError(f"it is there, as {topic.delivery} and {topic.persistence}")
        return Created(topic.id, command.topic)

    def _permitted(
        self, name: str, broadcast: Literal["subscribe", "publish"], round_robin: Literal["consume", "publish"]
    ) -> Topic:
        """The topic, if everybody may do that: who comes by this door has shown no key."""
        topic = self.broker.topic(name)
        action = round_robin if topic.delivery == "round-robin" else broadcast
        if not self.broker.permissions.allows(None, action, name):
            raise PermissionDenied("that is not permitted")
        return topic

    # ------------------------------------------------------------------------------------------ what is said

    def answer(self, frame: Frame) -> None:
        """Says what is no message."""
        self._say(write_frame(frame))

    def _say(self, data: bytes) -> None:
        self.wire.write(data)
        self._answers.add(len(data), self.wire.said)

    def taken(self) -> None:
        """The kernel has taken more."""
        self._answers.taken(self.wire.taken, self.wire.said)
        for reading in (*self.readings.values(), *self.left):
            reading.taken()
        self._listen()
        self._finish()

    def _listen(self) -> None:
        """Reads the client only while it can be served: what it sends waits with itself otherwise."""
        limits = self.limits
        self.wire.read(
            not self.ending
            and self._making is None
            and self._publishing < limits.publishing
            and self._answers.size < limits.answers
        )

    def _ping(self) -> None:
        if not self.wire.reading:
            self._pings.forgive()  # its answer may lie where we do not read
        ping = self._pings.next(int(time.time()), self.wire.said, self.wire.taken)
        if ping is None:
            self.fail("two pings were not answered")
            return
        self.wire.write(ping)
        self.wire.flush()
        self._pings.sent(self.wire.taken)
        self._wait(self.limits.ping, self._ping)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        """One thing at a time is waited for."""
        self._timer.cancel()
        if self.wire.open:
            self._timer = self.loop.call_later(seconds, then)

    # ------------------------------------------------------------------------------------------------ the end

    @property
    def ending(self) -> bool:
        """Whether nothing more is read, and nothing is said but answers and the last word."""
        return self._last is not None

    def leave(self, text: str) -> None:
        """Ends in an orderly way, after the answers to what was published."""
        if not self.ending:
            self._commands.clear()
            self._publish_batch()
            self._end(write_frame(Error(text)) if self._side.version else b"")

    def fail(self, text: str) -> None:
        """Ends with an error that comes before the messages that wait for the client; they are not sent."""
        if not self.ending:
            self.wire.drop()
            for reading in (*self.readings.values(), *self.left):
                reading.dropped()
            self._end(write_frame(Error(text)))

    def _end(self, last: bytes) -> None:
        self._last = last
        self._commands.clear()
        for reading in self.readings.values():
            reading.end()
        self.readings.clear()
        self._forget_client()
        self._wait(self.limits.ping, self._look)
        self._listen()
        self._finish()

    def _finish(self) -> None:
        """Goes on with the end, once what it waits for has come."""
        if self._last is None or self._finished or self._publishing or self._making is not None:
            return
        if self._last:
            self.wire.write(self._last)
            self._last = b""
        if not self.wire.unsent:
            self._finished = True
            self._timer.cancel()
            self.wire.finish(self.limits.linger)

    def _look(self) -> None:
        """Closes a connection that should end and does not move."""
        if self.wire.taken == self._taken and not self._publishing:
            self.wire.close()
        self._taken = self.wire.taken
        self._wait(self.limits.ping, self._look)

    def _too_late(self) -> None:
        self._end(write_frame(Error("Connect was not said in time")) if self._side.version else b"")

    def _forget_client(self) -> None:
        client = self._side.client
        if client is not None and self._clients.get(client) is self:
            del self._clients[client]

    def lost(self) -> None:
        """The connection is over."""
        for reading in (*self.readings.values(), *self.left):
            reading.stop()
        self.readings.clear()
        self.left.clear()
        self._last, self._finished = b"", True
        self._commands.clear()
        self._timer.cancel()
        self._forget_client()
        self._gone(self)


class Backlog:
    """Bytes of answers that wait for the client, about: in two parts, each gone when the kernel has its last byte."""

    __slots__ = ("_end", "_new", "_old")

    def __init__(self) -> None:
        self._old = self._new = 0
        self._end = 0  # where in the stream the old part ends

    @property
    def size(self) -> int:
        """At least what waits."""
        return self._old + self._new

    def add(self, size: int, end: int) -> None:
        """More was said; it ends at *end* of the stream."""
        if self._old:
            self._new += size
        else:
            self._old, self._end = size, end

    def taken(self, taken: int, said: int) -> None:
        """The kernel has taken so much of the stream."""
        if taken >= self._end:
            self._old, self._new, self._end = self._new, 0, said
