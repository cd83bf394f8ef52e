"""One client of the S-expressions' server: its commands, and what is delivered to it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from omq._core import blocks
from omq.broker.core.broker import Broker
from omq.broker.core.topic import Topic
from omq.broker.errors import BrokerError, Damaged, Overrun, PermissionDenied, SyntaxFault, TopicError, VersionFault
from omq.broker.protocol import topic_name
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
    Replay,
    ServerSide,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    write_block,
    write_frame,
)
from omq.broker.sexp.syntax import shown
from omq.broker.sexp.transport import SexpTransport
from omq.ranges import ranges_of
from omq.unpatched import socket

#: Seconds that a message may wait for the kernel: it is given back when the connection ends, and not before.
_NO_TIMEOUT_S: Final = 1e8
_PREFETCH: Final = 256  # messages of a round-robin topic that wait for the kernel


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, sizes in bytes.

    Attributes:
        ping: Between two pings.
        handshake: Until a connection has sent `Connect`.
        linger: For a peer to end its side after ours.
        closing: For answers to go out when the broker ends.
        unsent: Of messages of transient topics that wait for a slow subscriber.
        window: Of messages of kept topics that wait; the rest waits in the store.
        consumer_window: Of messages of round-robin topics that wait: what waits here is not given to others.
        publishing: Of messages that wait for the store; beyond, the connection is not read.
        answers: Of answers that wait for the client; beyond, the connection is not read.
    """

    ping: float = 25.0
    handshake: float = 30.0
    linger: float = 2.0
    closing: float = 2.0
    unsent: int = 64 << 20
    window: int = 256 << 10
    consumer_window: int = 64 << 10
    publishing: int = 8 << 20
    answers: int = 256 << 10


class FrameCache:
    """Encodes each block once for all connections that get it in one turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._found: dict[tuple[int, bytes], tuple[bytes, list[int]]] = {}

    def encode(self, header: bytes, records: memoryview, topic_id: int) -> tuple[bytes, list[int]]:
        """Returns the frames of a block, and the offset at which each of them ends."""
        key = (topic_id, header)
        found = self._found.get(key)
        if found is None:
            if not self._found:
                self._loop.call_soon(self._found.clear)
            found = self._found[key] = write_block(header, records, topic_id)
        return found


class SexpConnection:
    """A client, from its first byte to its last. It owns its transport.

    Args:
        sock: Connected, and not blocking.
        peer: The endpoint that it came from.
        loop: The broker's loop.
        broker: The core.
        limits: See there.
        frames: Shared by the connections of one listener.
        clients: The connections of one listener by client id, which this one enters and leaves.
        on_close: Called once the connection is over.
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
        clients: dict[bytes, SexpConnection],
        on_close: Callable[[SexpConnection], None],
    ) -> None:
        self.peer = peer
        self.loop = loop
        self.broker = broker
        self.limits = limits
        self.frames = frames
        self._clients = clients
        self._on_close = on_close
        self.transport = SexpTransport(loop, sock, self)
        self.sinks: dict[str, SexpSubscriptionSink] = {}  # by topic
        self.leaving: set[SexpConsumerSink] = set()  # of shares that were unsubscribed from: their last messages wait
        self._protocol = ServerSide()
        self._pings = Pings()
        self._commands: deque[Command | BrokerError] = deque()  # that wait for the one before
        self._creating: asyncio.Task[None] | None = None  # the command that the others wait for
        self._batch: tuple[Topic, str, list[bytes]] | None = None
        self._publishing = 0  # bytes that wait for the store
        self._answers = Backlog()
        self._last_frame: bytes | None = None  # the last bytes to send, once this is the end
        self._finished = False  # they are sent, and the kernel has them
        self._last_written = 0  # at the last look whether a connection that ends moves
        self._timer: asyncio.TimerHandle = loop.call_later(limits.handshake, self._handshake_timeout)
        self.transport.read(True)

    # ------------------------------------------------------------------------------------------- what comes

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the client."""
        if self.ending:
            return
        if not self._protocol.version:
            try:
                answer, data = self._protocol.handshake(data)
            except VersionFault:
                self._end(REFUSAL)
                return
            self.transport.write(answer)
        if data:
            try:
                self._commands.extend(self._protocol.commands(data))
            except SyntaxFault as fault:
                self._commands.append(fault)
            self._run_commands()

    def eof_received(self) -> None:
        """The client sends nothing more: it gets the answers that it waits for."""
        if self.sinks or self._protocol.client is None:
            self.transport.close()
        else:
            self._end(b"")

    def _run_commands(self) -> None:
        """Obeys the commands that came, one after the other."""
        while self._commands and self._creating is None and not self.ending:
            self._execute(self._commands.popleft())
        if self._creating is None:
            self._publish_batch()
        self._update_reading()

    def _execute(self, command: Command | BrokerError) -> None:
        if isinstance(command, BrokerError):
            self._publish_batch()
            self.broker.count_refusal(command)
            self._end(write_frame(Error(str(command))))
            return
        try:
            if isinstance(command, Publish):
                self._add_to_batch(command)
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
                    self._creating = self.loop.create_task(self._create(command))
        except BrokerError as error:
            self._answer_error(command, error)

    def _answer_error(
        self, command: Subscribe | Unsubscribe | Publish | Create | Ack | Connect, error: BrokerError
    ) -> None:
        """Answers a command that a topic refuses; the connection stays open."""
        self.broker.count_refusal(error)
        topic = command.topic if not isinstance(command, Ack | Connect) else b""
        self.answer(Error(f"{type(command).__name__} {shown(topic)}: {error}"))

    def _connect(self, command: Connect) -> None:
        if command.client in self._clients:
            self._protocol.client = None  # it is another's
            self._end(write_frame(Error(f"client {shown(command.client)} is connected already")))
            return
        self._clients[command.client] = self
        self._set_timer(self.limits.ping, self._ping)

    def _subscribe(self, command: Subscribe) -> None:
        name = topic_name(command.topic)
        if name in self.sinks:
            raise TopicError("it is subscribed to already")
        topic = self._permitted(name, "subscribe", "consume")
        kind = SexpConsumerSink if topic.delivery == "round-robin" else SexpSubscriptionSink
        sink = self.sinks[name] = kind(self, topic, command.replay)
        self.answer(Subscribed(topic.id, command.topic))
        if sink.notice:
            self.answer(Error(f"Subscribe {shown(command.topic)}: {sink.notice}"))

    def _unsubscribe(self, command: Unsubscribe) -> None:
        sink = self.sinks.pop(topic_name(command.topic), None)
        if sink is None:
            raise TopicError("it is not subscribed to")
        sink.end()
        self.answer(Unsubscribed(sink.topic.id, command.topic))

    def _add_to_batch(self, command: Publish) -> None:
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
                self.broker.count_refusal(error)
                frames = [write_frame(Error(f"Publish {shown(name.encode())}: {error}"))] * count
            self._send(b"".join(frames))
            self._update_reading()
            self._try_finish()

        topic.append(records, count, done, alive=lambda: self.transport.open)

    async def _create(self, command: Create) -> None:
        try:
            try:
                self.answer(await self._create_topic(command))
            except BrokerError as error:
                self._answer_error(command, error)
        finally:
            self._creating = None
        self._run_commands()
        self._try_finish()

    async def _create_topic(self, command: Create) -> Created:
        name = topic_name(command.topic)
        if not self.broker.permissions.allows(None, "create", name):
            raise PermissionDenied("that is not permitted")
        # The protocol has no other settings: a topic that has some is as asked if the rest fits.
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
        """Returns the topic, if `*` may do that: a client of this server has shown no key."""
        topic = self.broker.topic(name)
        action = round_robin if topic.delivery == "round-robin" else broadcast
        if not self.broker.permissions.allows(None, action, name):
            raise PermissionDenied("that is not permitted")
        return topic

    # ------------------------------------------------------------------------------------------ what is sent

    def answer(self, frame: Frame) -> None:
        """Sends a frame that is not a message."""
        self._send(write_frame(frame))

    def _send(self, data: bytes) -> None:
        self.transport.write(data)
        self._answers.add(len(data), self.transport.queued)

    def data_written(self) -> None:
        """The kernel has taken more."""
        self._answers.written(self.transport.written, self.transport.queued)
        for sink in (*self.sinks.values(), *self.leaving):
            sink.data_written()
        self._update_reading()
        self._try_finish()

    def _update_reading(self) -> None:
        """Reads the client only while it can be served: what it sends waits with itself otherwise."""
        limits = self.limits
        self.transport.read(
            not self.ending
            and self._creating is None
            and self._publishing < limits.publishing
            and self._answers.size < limits.answers
        )

    def _ping(self) -> None:
        if not self.transport.reading:
            self._pings.clear()  # its answer may lie where we do not read
        ping = self._pings.next(int(time.time()), self.transport.queued, self.transport.written)
        if ping is None:
            self.fail("two pings were not answered")
            return
        self.transport.write(ping)
        self.transport.flush()
        self._pings.sent(self.transport.written)
        self._set_timer(self.limits.ping, self._ping)

    def _set_timer(self, seconds: float, then: Callable[[], None]) -> None:
        """One thing at a time is waited for."""
        self._timer.cancel()
        if self.transport.open:
            self._timer = self.loop.call_later(seconds, then)

    # ------------------------------------------------------------------------------------------------ the end

    @property
    def ending(self) -> bool:
        """Returns whether nothing more is read, and only answers and the last frame are sent."""
        return self._last_frame is not None

    def shut_down(self, text: str) -> None:
        """Ends in an orderly way, after the answers to what was published."""
        if not self.ending:
            self._commands.clear()
            self._publish_batch()
            self._end(write_frame(Error(text)) if self._protocol.version else b"")

    def fail(self, text: str) -> None:
        """Ends with an error that comes before the messages that wait for the client; they are not sent."""
        if not self.ending:
            self.transport.drop()
            for sink in (*self.sinks.values(), *self.leaving):
                sink.discard_unsent()
            self._end(write_frame(Error(text)))

    def _end(self, last: bytes) -> None:
        self._last_frame = last
        self._commands.clear()
        for sink in self.sinks.values():
            sink.end()
        self.sinks.clear()
        self._forget_client()
        self._set_timer(self.limits.ping, self._check_progress)
        self._update_reading()
        self._try_finish()

    def _try_finish(self) -> None:
        """Goes on with the end, once what it waits for has come."""
        if self._last_frame is None or self._finished or self._publishing or self._creating is not None:
            return
        if self._last_frame:
            self.transport.write(self._last_frame)
            self._last_frame = b""
        if not self.transport.unsent:
            self._finished = True
            self._timer.cancel()
            self.transport.finish(self.limits.linger)

    def _check_progress(self) -> None:
        """Closes a connection that should end and does not move."""
        if self.transport.written == self._last_written and not self._publishing:
            self.transport.close()
        self._last_written = self.transport.written
        self._set_timer(self.limits.ping, self._check_progress)

    def _handshake_timeout(self) -> None:
        self._end(write_frame(Error("Connect was not sent in time")) if self._protocol.version else b"")

    def _forget_client(self) -> None:
        client = self._protocol.client
        if client is not None and self._clients.get(client) is self:
            del self._clients[client]

    def connection_lost(self) -> None:
        """The connection is over."""
        for sink in (*self.sinks.values(), *self.leaving):
            sink.stop()
        self.sinks.clear()
        self.leaving.clear()
        self._last_frame, self._finished = b"", True
        self._commands.clear()
        self._timer.cancel()
        self._forget_client()
        self._on_close(self)


class Backlog:
    """Bytes of answers that wait for the client, about: in two parts, each gone when the kernel has its last byte."""

    __slots__ = ("_end", "_new", "_old")

    def __init__(self) -> None:
        self._old = self._new = 0
        self._end = 0  # where in the stream the old part ends

    @property
    def size(self) -> int:
        """The bytes that wait, at least."""
        return self._old + self._new

    def add(self, size: int, end: int) -> None:
        """Notes the *end* of what was sent in the stream."""
        if self._old:
            self._new += size
        else:
            self._old, self._end = size, end

    def written(self, written: int, queued: int) -> None:
        """The kernel has taken so much of the stream."""
        if written >= self._end:
            self._old, self._new, self._end = self._new, 0, queued


class SexpSubscriptionSink:
    """The sink of a subscription to a broadcast topic.

    Messages of a kept topic wait in the store for a slow client; those of a transient one wait here, until they are
    too many.

    Args:
        connection: The connection of the client.
        topic: The topic.
        replay: Where it begins.

    Attributes:
        notice: A remark for the client; empty for none.

    Raises:
        BrokerError: That cannot be read.
    """

    listener: Literal["zmtp", "sexp"] = "sexp"
    user: str | None = None

    def __init__(self, connection: SexpConnection, topic: Topic, replay: Replay) -> None:
        self.connection = connection
        self.topic = topic
        self.peer = connection.peer
        self.notice = ""
        self._limits = connection.limits
        self._paused = False  # `more` is to be called once there is room
        self._subscribe(replay)

    def _subscribe(self, replay: Replay) -> None:
        broker = self.connection.broker
        try:
            self._subscription = broker.subscribe(self.topic, replay, self)
        except Overrun as error:
            self._subscription = broker.subscribe(self.topic, "earliest", self)
            self.notice = _overrun(error)

    def room(self) -> int:
        """See `Sink`."""
        unsent = self.connection.transport.unsent
        if self.topic.persistence != "transient":
            self._paused = 2 * unsent > self._limits.window
            return 0 if self._paused else self._limits.window - unsent
        if unsent >= self._limits.unsent:
            self.connection.loop.call_soon(self._too_slow)
        return max(self._limits.unsent - unsent, 0)

    def send_block(self, header: bytes, records: memoryview, deliveries: bytes) -> None:
        """See `Sink`."""
        data, ends = self.connection.frames.encode(header, records, self.topic.id)
        self._queue(data, ends, int.from_bytes(header[8:16], "big"))

    def _queue(self, data: bytes, ends: list[int], first: int) -> None:
        self.connection.transport.write(data)

    def closed(self, error: BrokerError | None) -> None:
        """See `Sink`."""
        if error is None or self.connection.sinks.get(self.topic.name) is not self:
            return
        name = self.topic.name.encode()
        if isinstance(error, Overrun | Damaged) and error.first:
            # What follows the gap can be read.
            try:
                self._subscribe("earliest" if isinstance(error, Overrun) else error.last)
            except BrokerError as fault:
                error = fault
            else:
                notice = _overrun(error) if isinstance(error, Overrun) else str(error)
                self.connection.answer(Error(f"{shown(name)}: {notice}"))
                return
        del self.connection.sinks[self.topic.name]
        self.connection.answer(Unsubscribed(self.topic.id, name))
        self.connection.answer(Error(f"{shown(name)}: {error}"))

    def data_written(self) -> None:
        """The kernel has taken something."""
        if self._paused and 2 * self.connection.transport.unsent <= self._limits.window:
            self._paused = False
            self._subscription.resume()

    def end(self) -> None:
        """Ends it; what was sent goes out."""
        self.stop()

    def discard_unsent(self) -> None:
        """Drops what was sent and waited for the kernel: it will not go out."""

    def stop(self) -> None:
        """Ends it at once: what was sent and waits does not go out any more."""
        self._subscription.end()

    def _too_slow(self) -> None:
        limit = self._limits.unsent
        self.connection.fail(f"{shown(self.topic.name.encode())}: too slow: more than {limit} bytes were not yet taken")


class SexpConsumerSink(SexpSubscriptionSink):
    """The sink of a consumer of a round-robin topic: what the kernel has taken is finished, the rest goes to others."""

    def _subscribe(self, replay: Replay) -> None:
        if replay != "latest":
            raise TopicError("a round-robin topic is read From_current")
        self._waiting: deque[tuple[int, int]] = deque()  # where in the stream a message ends, and its id
        self._leaving = False
        self._consumer = self.connection.broker.consume(self.topic, self, ack_timeout=_NO_TIMEOUT_S, credit=_PREFETCH)

    def room(self) -> int:
        """See `Sink`."""
        unsent = self.connection.transport.unsent
        self._paused = self._leaving or 2 * unsent > self._limits.consumer_window
        return 0 if self._paused else self._limits.consumer_window - unsent

    def _queue(self, data: bytes, ends: list[int], first: int) -> None:
        base = self.connection.transport.queued
        self._waiting.extend((base + end, first + at) for at, end in enumerate(ends))
        self.connection.transport.write(data)

    def data_written(self) -> None:
        """See `SexpSubscriptionSink`."""
        written, acked = self.connection.transport.written, []
        while self._waiting and self._waiting[0][0] <= written:
            acked.append(self._waiting.popleft()[1])
        if acked:
            self._consumer.ack(ranges_of(acked))
        if self._leaving:
            if not self._waiting:
                self.stop()
                self.connection.leaving.discard(self)
        elif self._paused and 2 * self.connection.transport.unsent <= self._limits.consumer_window:
            self._paused = False
            self._consumer.more(0)

    def end(self) -> None:
        """See `SexpSubscriptionSink`: ending it at once would redeliver what the kernel is about to take."""
        self._leaving = True
        self.connection.leaving.add(self)
        self.data_written()

    def discard_unsent(self) -> None:
        """See `SexpSubscriptionSink`."""
        queued, returned = self.connection.transport.queued, []
        while self._waiting and self._waiting[-1][0] > queued:
            returned.append(self._waiting.pop()[1])
        if returned:
            self._consumer.nack(ranges_of(returned))

    def stop(self) -> None:
        """See `SexpSubscriptionSink`."""
        written = self.connection.transport.written
        acked = [number for end, number in self._waiting if end <= written]
        if acked:
            self._consumer.ack(ranges_of(acked))
        self._waiting.clear()
        self._consumer.end()


def _overrun(error: Overrun) -> str:
    return f"messages below {error.first} are no longer kept: it begins with {error.first}"
