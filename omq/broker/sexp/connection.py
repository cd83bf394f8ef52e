"""The connection of one S-expression client: executes its commands and sends its deliveries."""

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
from omq.broker.errors import (
    BrokerError,
    Damaged,
    NotLeader,
    Overrun,
    PermissionDenied,
    SyntaxFault,
    TopicError,
    VersionFault,
)
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
    SexpServerProtocol,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    write_block,
    write_frame,
)
from omq.broker.sexp.syntax import shown
from omq.broker.sexp.transport import SexpTransport
from omq.event import HandshakeFailure
from omq.ranges import ranges_of
from omq.unpatched import socket

_ACK_TIMEOUT_S: Final = 1e8  # practically none: a message is only redelivered after its connection has ended
_PREFETCH_MESSAGES: Final = 256  # of a round-robin topic, that may wait for the kernel


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a connection: times in seconds, sizes in bytes.

    Attributes:
        ping_interval: The interval between two pings.
        handshake_timeout: The time until a connection must have sent `Connect`.
        linger: The time for the peer to close its side after the server has closed its own.
        close_timeout: The time to send answers when the broker stops.
        transient_window: The bytes of transient messages that may wait for a slow subscriber.
        window: The bytes of persistent messages that may wait for a subscriber; the rest waits in the store.
        consumer_window: The bytes of round-robin messages that may wait: other consumers cannot get these.
        publish_window: The bytes of publications that may wait for the store before the connection is no longer read.
        answer_window: The bytes of answers that may wait for the client before the connection is no longer read.
    """

    ping_interval: float = 25.0
    handshake_timeout: float = 30.0
    linger: float = 2.0
    close_timeout: float = 2.0
    transient_window: int = 64 << 20
    window: int = 256 << 10
    consumer_window: int = 64 << 10
    publish_window: int = 8 << 20
    answer_window: int = 256 << 10


class FrameCache:
    """Encodes each block once for all connections that send it in one turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._cache: dict[tuple[int, bytes], tuple[int, bytes, list[int]]] = {}

    def encode(self, header: bytes, records: memoryview, topic_id: int) -> tuple[int, bytes, list[int]]:
        """Returns the first id of a block, its frames, and the end offset of each frame."""
        key = (topic_id, header)
        frames = self._cache.get(key)
        if frames is None:
            if not self._cache:
                self._loop.call_soon(self._cache.clear)
            frames = self._cache[key] = write_block(header, records, topic_id)
        return frames


class SexpConnection:
    """The connection of one client. It owns its transport.

    Args:
        sock: A connected, non-blocking socket.
        peer: The endpoint of the peer.
        loop: The broker's loop.
        broker: The core.
        limits: The limits of the connection.
        frames: The cache that the connections of one server share.
        clients: The connections of one server by client id; this one adds and removes itself.
        on_close: Called once the connection is closed.

    Attributes:
        sinks: The sinks of open subscriptions and consumers, by topic name.
        leaving: The sinks of consumers that have unsubscribed, while their last messages wait for the kernel.
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
        self.user: str | None = None
        self.loop = loop
        self.broker = broker
        self.limits = limits
        self.frames = frames
        self._clients = clients
        self._on_close = on_close
        self.transport = SexpTransport(loop, sock, self)
        self.sinks: dict[str, SexpSubscriptionSink] = {}
        self.leaving: set[SexpConsumerSink] = set()
        self._protocol = SexpServerProtocol()
        self._pings = Pings()
        self._commands: deque[Command | BrokerError] = deque()  # waiting for an earlier one
        self._creating: asyncio.Task[None] | None = None  # other commands wait for it
        self._batch: tuple[Topic, str, list[bytes]] | None = None
        self._publishing = 0  # bytes of publications that wait for the store
        self._throttle: asyncio.TimerHandle | None = None  # set while its user has published more than its rate
        self._answers = Backlog()
        self._last_frame: bytes | None = None  # sent before the connection closes; `None` while it is open
        self._finished = False  # the kernel has taken all that was queued
        self._last_written = 0  # at the last progress check of a closing connection
        self._timer: asyncio.TimerHandle = loop.call_later(limits.handshake_timeout, self._handshake_timeout)
        self.transport.read(True)

    # ------------------------------------------------------------------------------------------- receiving

    def data_received(self, data: bytes) -> None:
        """Executes the commands in bytes of the client."""
        if self.ending:
            return
        if not self._protocol.version:
            try:
                answer, data = self._protocol.handshake(data)
            except VersionFault:
                self.broker.handshake_failures[HandshakeFailure.PROTOCOL] += 1
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
        """Closes the connection after the client has closed its side; pending answers are sent first."""
        if self._protocol.client is None:
            self.transport.close()
            return
        # The client may have closed its other side, too: a message that the kernel takes from now on may be lost.
        for sink in (*self.sinks.values(), *self.leaving):
            sink.stop()
        self.sinks.clear()
        self.leaving.clear()
        self._end(b"")

    def _run_commands(self) -> None:
        """Executes the received commands in order."""
        while self._commands and self._creating is None and not self.ending:
            if self._must_wait(self._commands[0]):
                break
            self._execute(self._commands.popleft())
        if self._creating is None:
            self._publish_batch()
        self._update_reading()

    def _must_wait(self, command: Command | BrokerError) -> bool:
        """Returns whether a command waits until its user may publish again; other connections share the rate."""
        if self._throttle is None and self._batch is None and isinstance(command, Publish):
            self._throttle_for(self.broker.user_limits.of(None).publish_delay(0))
        return self._throttle is not None

    def _throttle_for(self, delay: float) -> None:
        """Executes and reads nothing for some seconds."""
        if delay:
            if self._throttle is not None:
                self._throttle.cancel()
            self._throttle = self.loop.call_later(delay, self._end_throttle)

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

    def _answer_error(self, command: Command, error: BrokerError) -> None:
        """Answers a command with an error; the connection stays open."""
        self.broker.count_refusal(error)
        topic = command.topic if not isinstance(command, Ack | Connect) else b""
        self.answer(Error(f"{type(command).__name__} {shown(topic)}: {self.error_text(error)}"))

    def error_text(self, error: BrokerError) -> str:
        """Returns the text of an error, with what a client of S-expressions can do about it."""
        member = self.broker.member
        advice = member.sexp_advice() if isinstance(error, NotLeader) and member is not None else ""
        return f"{error}{advice}"

    def _connect(self, command: Connect) -> None:
        if command.client in self._clients:
            self._protocol.client = None  # another connection has this id
            self._end(write_frame(Error(f"client {shown(command.client)} is connected already")))
            return
        self._clients[command.client] = self
        self._set_timer(self.limits.ping_interval, self._ping)

    def _subscribe(self, command: Subscribe) -> None:
        name = topic_name(command.topic)
        if name in self.sinks:
            raise TopicError(f"this connection already has a subscription to topic {name!r}")
        topic = self._permitted(name, "subscribe", "consume")
        kind = SexpConsumerSink if topic.delivery == "round-robin" else SexpSubscriptionSink
        sink = self.sinks[name] = kind(self, topic, command.replay)
        self.answer(Subscribed(topic.id, command.topic))
        if sink.notice:
            self.answer(Error(f"Subscribe {shown(command.topic)}: {sink.notice}"))

    def _unsubscribe(self, command: Unsubscribe) -> None:
        name = topic_name(command.topic)
        sink = self.sinks.pop(name, None)
        if sink is None:
            raise TopicError(f"this connection has no subscription to topic {name!r}")
        sink.end()
        self.answer(Unsubscribed(sink.topic.id, command.topic))

    def _add_to_batch(self, command: Publish) -> None:
        """Adds a message to the batch for its topic: messages received together are appended together."""
        name = topic_name(command.topic)
        if self._batch is None or self._batch[1] != name:
            self._publish_batch()
            self._batch = (self._permitted(name, "publish", "publish"), name, [])
        self._batch[2].append(command.body)

    def _publish_batch(self) -> None:
        if self._batch is None:
            return
        (topic, name, bodies), self._batch = self._batch, None
        begun = time.monotonic_ns()
        records = blocks.encode(bodies)
        count, size = len(bodies), len(records)
        self._publishing += size
        self._throttle_for(self.broker.user_limits.of(None).publish_delay(size))

        def done(first: int, error: BrokerError | None) -> None:
            self._publishing -= size
            if error is None:
                self.broker.publish_latency[topic.persistence].record(time.monotonic_ns() - begun)
                frames: list[bytes] = [write_frame(Published(first + at, topic.id)) for at in range(count)]
            else:
                self.broker.count_refusal(error)
                frames = [write_frame(Error(f"Publish {shown(name.encode())}: {self.error_text(error)}"))] * count
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
            raise PermissionDenied(f"a client without a name may not create {name!r}")
        self.broker.check_leads()
        # The protocol has no other settings, so these are not compared.
        topic = self.broker.topics.get(name)
        if topic is None:
            topic = await self.broker.create(
                name, delivery=command.delivery, persistence=command.persistence, settings=None, client=self
            )
        elif (topic.delivery, topic.persistence) != (command.delivery, command.persistence):
            raise TopicError(
                f"topic {name!r} exists with delivery {topic.delivery} and persistence {topic.persistence}"
            )
        return Created(topic.id, command.topic)

    def _permitted(
        self, name: str, broadcast: Literal["subscribe", "publish"], round_robin: Literal["consume", "publish"]
    ) -> Topic:
        """Returns the topic, if `*` has the permission: clients of this server have no user id."""
        topic = self.broker.topic(name)
        action = round_robin if topic.delivery == "round-robin" else broadcast
        if action != "subscribe":
            self.broker.check_leads()
        self.broker.check_readable(topic)
        if not self.broker.permissions.allows(None, action, name):
            raise PermissionDenied(f"a client without a name may not {action} {name!r}")
        return topic

    # --------------------------------------------------------------------------------------------- sending

    def answer(self, frame: Frame) -> None:
        """Sends an answer, which is a frame that is not a message."""
        self._send(write_frame(frame))

    def _send(self, data: bytes) -> None:
        self.transport.write(data)
        self._answers.add(len(data), self.transport.queued)

    def data_written(self) -> None:
        """Resumes deliveries and reading, after the kernel has taken more."""
        self._answers.written(self.transport.written, self.transport.queued)
        for sink in (*self.sinks.values(), *self.leaving):
            sink.data_written()
        self._update_reading()
        self._try_finish()

    def _end_throttle(self) -> None:
        self._throttle = None
        self._run_commands()

    def _update_reading(self) -> None:
        """Reads from the client only while its commands can be executed, so that it gets back-pressure."""
        limits = self.limits
        self.transport.read(
            not self.ending
            and self._creating is None
            and self._publishing < limits.publish_window
            and self._throttle is None
            and self._answers.size < limits.answer_window
        )

    def _ping(self) -> None:
        if not self.transport.reading:
            self._pings.clear()  # an answer may be unread
        ping = self._pings.next(int(time.time()), self.transport.queued, self.transport.written)
        if ping is None:
            self.fail("two pings were not answered")
            return
        self.transport.write(ping)
        self.transport.flush()
        self._pings.sent(self.transport.written)
        self._set_timer(self.limits.ping_interval, self._ping)

    def _set_timer(self, seconds: float, then: Callable[[], None]) -> None:
        """Replaces the timer of the connection."""
        self._timer.cancel()
        if self.transport.open:
            self._timer = self.loop.call_later(seconds, then)

    # ----------------------------------------------------------------------------------------------- closing

    @property
    def ending(self) -> bool:
        """Returns whether the connection is closing: it reads nothing, and sends pending answers and a last frame."""
        return self._last_frame is not None

    def shut_down(self, text: str) -> None:
        """Closes the connection with an error text, after the answers to all publications."""
        if not self.ending:
            self._commands.clear()
            self._publish_batch()
            self._end(write_frame(Error(text)) if self._protocol.version else b"")

    def fail(self, text: str) -> None:
        """Closes the connection with an error text; messages that wait for the client are discarded."""
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
        self._set_timer(self.limits.ping_interval, self._check_progress)
        self._update_reading()
        self._try_finish()

    def _try_finish(self) -> None:
        """Closes the transport of a closing connection, once all answers are sent."""
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
        """Closes a closing connection that makes no progress."""
        if self.transport.written == self._last_written and not self._publishing:
            self.transport.close()
        self._last_written = self.transport.written
        self._set_timer(self.limits.ping_interval, self._check_progress)

    def _handshake_timeout(self) -> None:
        self.broker.handshake_failures[HandshakeFailure.TIMEOUT] += 1
        self._end(write_frame(Error("Connect was not sent in time")) if self._protocol.version else b"")

    def _forget_client(self) -> None:
        client = self._protocol.client
        if client is not None and self._clients.get(client) is self:
            del self._clients[client]

    def connection_lost(self) -> None:
        """Ends all deliveries after the transport was closed."""
        for sink in (*self.sinks.values(), *self.leaving):
            sink.stop()
        self.sinks.clear()
        self.leaving.clear()
        self._last_frame, self._finished = b"", True
        self._commands.clear()
        self._timer.cancel()
        if self._throttle is not None:
            self._throttle.cancel()
        self._forget_client()
        self._on_close(self)


class Backlog:
    """Counts the bytes of answers that wait for the client, approximately.

    It counts two parts. A part counts in full until the kernel has taken its last byte.
    """

    __slots__ = ("_end", "_new", "_old")

    def __init__(self) -> None:
        self._old = self._new = 0
        self._end = 0  # of the old part, as an offset in the stream

    @property
    def size(self) -> int:
        """The number of bytes that wait, or more."""
        return self._old + self._new

    def add(self, size: int, end: int) -> None:
        """Counts *size* bytes that end at the offset *end* of the stream."""
        if self._old:
            self._new += size
        else:
            self._old, self._end = size, end

    def written(self, written: int, queued: int) -> None:
        """Updates the count.

        Args:
            written: The bytes of the stream that the kernel has taken.
            queued: The bytes of the stream in all.
        """
        if written >= self._end:
            self._old, self._new, self._end = self._new, 0, queued


class SexpSubscriptionSink:
    """The sink of a subscription to a broadcast topic.

    For a slow client, messages of a persistent topic wait in the store. Those of a transient topic wait in memory; if
    they are too many, the connection is closed.

    Args:
        connection: The connection of the client.
        topic: The topic.
        replay: The start of the subscription.

    Attributes:
        notice: A remark for the client, for instance that messages were dropped; empty for none.

    Raises:
        BrokerError: The subscription is not possible.
    """

    listener: Literal["zmtp", "sexp"] = "sexp"
    user: str | None = None

    def __init__(self, connection: SexpConnection, topic: Topic, replay: Replay) -> None:
        self.connection = connection
        self.topic = topic
        self.peer = connection.peer
        self.notice = ""
        self._limits = connection.limits
        self._paused = False  # the delivery resumes once there is room
        self._subscribe(replay)

    def _subscribe(self, replay: Replay) -> None:
        broker = self.connection.broker
        try:
            self._subscription = broker.subscribe(self.topic, replay, self)
        except Overrun as error:
            self._subscription = broker.subscribe(self.topic, "earliest", self)
            self.notice = _overrun(error)

    def room(self) -> int:
        """Returns the number of bytes that the connection has room for now. Closes it if a transient topic has none."""
        unsent = self.connection.transport.unsent
        if self.topic.persistence != "transient":
            self._paused = 2 * unsent > self._limits.window
            return 0 if self._paused else self._limits.window - unsent
        if unsent >= self._limits.transient_window:
            self.connection.loop.call_soon(self._too_slow)
        return max(self._limits.transient_window - unsent, 0)

    def send_block(self, header: bytes, records: memoryview, deliveries: bytes) -> None:
        """Sends a block of the topic; see `Sink.send_block`."""
        first, data, ends = self.connection.frames.encode(header, records, self.topic.id)
        self._queue(data, ends, first)

    def _queue(self, data: bytes, ends: list[int], first: int) -> None:
        self.connection.transport.write(data)

    def closed(self, error: BrokerError | None) -> None:
        """Subscribes again after a gap; reports any other end of the delivery to the client; see `Sink.closed`."""
        if error is None or self.connection.sinks.get(self.topic.name) is not self:
            return
        name = self.topic.name.encode()
        if isinstance(error, Overrun | Damaged) and error.first:
            # The messages after the gap can be read.
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
        self.connection.answer(Error(f"{shown(name)}: {self.connection.error_text(error)}"))

    def data_written(self) -> None:
        """Resumes the delivery if there is room again, after the kernel has taken more."""
        if self._paused and 2 * self.connection.transport.unsent <= self._limits.window:
            self._paused = False
            self._subscription.resume()

    def end(self) -> None:
        """Ends the delivery; messages that wait for the kernel are still sent."""
        self.stop()

    def discard_unsent(self) -> None:
        """Handles the messages that the transport has dropped."""

    def stop(self) -> None:
        """Ends the delivery at once, without the messages that wait for the kernel."""
        self._subscription.end()

    def _too_slow(self) -> None:
        limit = self._limits.transient_window
        self.connection.fail(f"{shown(self.topic.name.encode())}: too slow: more than {limit} bytes wait to be read")


class SexpConsumerSink(SexpSubscriptionSink):
    """The sink of a consumer of a round-robin topic.

    A message is acknowledged when the kernel has taken it. The others are redelivered if the connection breaks.
    """

    def _subscribe(self, replay: Replay) -> None:
        if replay != "latest":
            raise TopicError("a round-robin topic is read From_current")
        self._waiting: deque[tuple[int, int]] = deque()  # end offsets in the stream, and ids
        self._leaving = False
        self._consumer = self.connection.broker.consume(
            self.topic, self, ack_timeout=_ACK_TIMEOUT_S, credit=_PREFETCH_MESSAGES
        )

    def room(self) -> int:
        unsent = self.connection.transport.unsent
        self._paused = self._leaving or 2 * unsent > self._limits.consumer_window
        return 0 if self._paused else self._limits.consumer_window - unsent

    def _queue(self, data: bytes, ends: list[int], first: int) -> None:
        base = self.connection.transport.queued
        self._waiting.extend((base + end, first + at) for at, end in enumerate(ends))
        self.connection.transport.write(data)

    def data_written(self) -> None:
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
        """Ends the delivery once the kernel has taken the waiting messages, which would else be redelivered."""
        self._leaving = True
        self.connection.leaving.add(self)
        self.data_written()

    def discard_unsent(self) -> None:
        queued, returned = self.connection.transport.queued, []
        while self._waiting and self._waiting[-1][0] > queued:
            returned.append(self._waiting.pop()[1])
        if returned:
            self._consumer.nack(ranges_of(returned))

    def stop(self) -> None:
        written = self.connection.transport.written
        acked = [number for end, number in self._waiting if end <= written]
        if acked:
            self._consumer.ack(ranges_of(acked))
        self._waiting.clear()
        self._consumer.end()


def _overrun(error: Overrun) -> str:
    return f"messages below {error.first} are no longer kept: the subscription begins with {error.first}"
