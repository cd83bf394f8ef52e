"""One connection of the ZMTP server: the requests of its client, and what is delivered to it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

from omq._core import blocks
from omq.broker import protocol as p
from omq.broker.core.broadcast import BroadcastTopic, TopicSubscription
from omq.broker.core.broker import Broker
from omq.broker.core.round_robin import RoundRobinTopic
from omq.broker.core.topic import Topic, check_waiting
from omq.broker.core.topic_consumer import TopicConsumer
from omq.broker.errors import (
    BrokerError,
    BrokerFailed,
    Busy,
    PermissionDenied,
    SyntaxFault,
    TooLarge,
    TopicError,
    VersionFault,
    WrongState,
    broker_error,
)
from omq.broker.settings import dead_letter_of
from omq.broker.zmtp.range_reads import RangeRead, answer_read, offset_after
from omq.store.errors import NotAllowed, StageError
from omq.store.interface import AbortStage, CommitStages, Stage, Write

log = logging.getLogger("omq.broker")

#: Bytes that may wait for a connection's peer before what it reads pauses.
MAX_PENDING_BYTES: Final = 16 << 20
#: Subscriptions and consumers of one connection, and other requests that are under way.
_MAX_TAGS: Final = 65_536
_MAX_TASKS: Final = 1024
#: Topics that a connection has read until it looks which of them are gone.
_MAX_READ_TOPICS: Final = 64
#: Producers of a connection, and refused sequences of one of them, that are remembered; beyond, all are forgotten.
_MAX_REFUSED_PRODUCERS: Final = 64
_MAX_REFUSED_SEQUENCES: Final = 1024
#: READs of one connection that may wait for their turn.
_MAX_READS: Final = 4096
#: Topics that are listed in one turn of the loop.
_LIST_BATCH: Final = 128
_DEFAULT_CREDIT_BYTES: Final = 1 << 20
_DEFAULT_PREFETCH: Final = 100
_MIN_ACK_TIMEOUT_S: Final = 0.01
_MAX_ACK_TIMEOUT_S: Final = 1e9
_CLIENT: Final = re.compile(r"[0-9a-fA-F]{32}")

#: Where a session's messages go: `(parts, bytes in them)`.
Parts: TypeAlias = tuple[bytes | memoryview, ...]


class SessionTransport(Protocol):
    """The server of a session."""

    #: Sessions that have sent HELLO, by user and client id.
    clients: dict[tuple[str | None, str], ClientSession]

    def put(self, session: ClientSession, parts: Parts) -> None:
        """Sends a message to the session's peer; never waits."""

    def pending(self, session: ClientSession) -> int:
        """Returns about how many bytes wait for the session's peer; from `MAX_PENDING_BYTES` on, `resume` follows."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something next to the connections."""


class BusyRetryOrder:
    """The `APPEND`s of one connection that were refused as `busy`: those after one are, too, until it comes again.

    Producers that send what is settled use it: an append that is given up is not waited for, it is settled.
    """

    def __init__(self) -> None:
        self._refused: dict[bytes, set[int]] = {}

    def admit(self, reserve: Callable[[int], None], size: int, producer: bytes, sequence: int, settled: int) -> None:
        """Takes something in, where nothing before it waits to be repeated.

        Args:
            admit: Takes a number of bytes in, if there is room.
            size: How many.
            producer: Who it is of.
            sequence: Its place.
            settled: Nothing below is repeated.

        Raises:
            Busy: The broker has no room, or something before it was refused.
        """
        try:
            if self._refused and self._follows_refused(producer, sequence, settled):
                raise Busy("what this producer sent before was refused: repeat that first")
            reserve(size)
        except Busy:
            self.record_refusal(producer, sequence)
            raise
        if (refused := self._refused.get(producer)) is not None:
            refused.discard(sequence)

    def _follows_refused(self, producer: bytes, sequence: int, settled: int) -> bool:
        refused = {one for one in self._refused.pop(producer, ()) if one >= settled}
        if refused:
            self._refused[producer] = refused
        return bool(refused) and min(refused) < sequence

    def record_refusal(self, producer: bytes, sequence: int) -> None:
        """Notes a sequence that was refused as `busy`: what follows it waits for its repetition."""
        refused = self._refused.setdefault(producer, set())
        refused.add(sequence)
        if len(refused) > _MAX_REFUSED_SEQUENCES or len(self._refused) > _MAX_REFUSED_PRODUCERS:
            self._refused.clear()


class DeliverySink:
    """The sink of a subscription or a consumer, which has a tag.

    Attributes:
        started: The client has its answer: messages may follow.
    """

    listener: Literal["zmtp", "sexp"] = "zmtp"
    reader: TopicSubscription | TopicConsumer

    def __init__(self, session: ClientSession, tag: bytes, topic: Topic) -> None:
        self.session = session
        self.tag = tag
        self.topic = topic
        self.user = session.user
        self.peer = session.peer
        self.started = False

    def closed(self, error: BrokerError | None) -> None:
        self.session.tags.pop(self.tag, None)
        if error is not None:
            self.session.fail(self.tag, error)

    def end(self) -> None:
        """Ends the delivery."""
        self.reader.end()


class SubscriptionSink(DeliverySink):
    """A subscription's sink; its credit counts bytes."""

    reader: TopicSubscription

    def __init__(self, session: ClientSession, tag: bytes, topic: Topic, credit: int) -> None:
        super().__init__(session, tag, topic)
        self._credit = min(credit, p.MAX_CREDIT_BYTES)

    def room(self) -> int:
        if not self.started or self._credit <= 0 or not self.session.has_room():
            return 0
        return self._credit

    def send_block(self, header: bytes, records: memoryview, deliveries: bytes) -> None:
        self._credit -= len(records)
        self.session.put((p.BLOCK, self.tag, header, records))

    def add_credit(self, more: int) -> None:
        """The client takes more, or with 0 has read on."""
        # What a block took beyond the credit is owed: a client that gives back what it has used would else be sent more
        # and more ahead, by each block that exceeds what is left.
        self._credit = min(self._credit + more, p.MAX_CREDIT_BYTES)
        self.reader.resume()


class ConsumerSink(DeliverySink):
    """A consumer's sink; the core counts its credit, in messages."""

    reader: TopicConsumer

    def room(self) -> int:
        return 1 if self.started and self.session.has_room() else 0

    def send_block(self, header: bytes, records: memoryview, deliveries: bytes) -> None:
        self.session.put((p.JOBS, self.tag, header, records, deliveries))

    def add_credit(self, more: int) -> None:
        """The client takes more, or with 0 has read on."""
        self.reader.more(min(more, p.MAX_JOBS - min(self.reader.credit, p.MAX_JOBS)))


class ClientSession:
    """One connection.

    Args:
        broker: The core.
        transport: Its server.
        identity: What the ROUTER calls the peer.
        user: Its user id; `None` for none.
        peer: Where it is.
        since: When its handshake was done: seconds since the epoch.

    Attributes:
        tags: What is delivered to it.
        bytes_queued: Bytes that its server has accepted for it.
        bytes_written: The number of them that had left when its server looked last.
        alive: The connection is not over.
        broker: The core.
        listing_lock: Held by its list of all topics.
    """

    def __init__(
        self,
        broker: Broker,
        transport: SessionTransport,
        identity: bytes,
        user: str | None,
        peer: str,
        since: float = 0.0,
    ) -> None:
        self.identity = identity
        self.user = user
        self.peer = peer
        self.since = since
        self.tags: dict[bytes, SubscriptionSink | ConsumerSink] = {}
        self.bytes_queued = self.bytes_written = self.bytes_checked = 0
        self.alive = True
        self.broker = broker
        self.listing_lock = asyncio.Lock()
        self._transport = transport
        self._client: str | None = None  # its id, once it has sent HELLO
        self._unanswered_bytes = 0  # bytes of its messages that are not answered
        self._publishing: Counter[bytes] = Counter()  # publications and commits that are not answered, by their tags
        self._cancelled: set[bytes] = set()  # tags of those that are not to be stored any more
        self._busy_order = BusyRetryOrder()
        self._unflushed: dict[Topic, None] = {}  # where it has left something that is to be durable
        self._tasks = 0
        # What one user stages, another one neither publishes nor forgets; nor takes the place of its producers. None of
        # these names is one of the store's own, which begin with a zero.
        self._prefix = b"-" if user is None else b"u" + hashlib.blake2b(user.encode(), digest_size=16).digest()
        self._reads: deque[RangeRead] = deque()  # that wait until the peer reads on

    # ------------------------------------------------------------------ in and out

    def handle(self, message: list[bytes]) -> None:
        """Carries out one message, without the peer's identity; answers with an error if it is wrong."""
        tag = message[1] if len(message) > 1 else b""
        try:
            handler = self._HANDLERS.get(message[0])
            if handler is None:
                raise SyntaxFault(f"there is no command {message[0][:40]!r}")
            if len(message) < 2:
                raise SyntaxFault(f"{message[0].decode()} has no tag")
            if len(tag) > p.MAX_TAG_BYTES:
                raise SyntaxFault(f"a tag has {p.MAX_TAG_BYTES} bytes at most, not {len(tag)}")
            call, least, most = handler
            given = len(message) - 2
            if not least <= given <= most:
                wanted = str(least) if least == most else f"{least} to {most}"
                raise SyntaxFault(f"{message[0].decode()} has {wanted} parts after its tag, not {given}")
            call(self, tag, message)
        except BrokerError as error:
            self.fail(tag, error)
        except Exception as error:
            log.exception("%s of %s has failed", message[0][:40], self.peer)
            self.fail(tag, BrokerFailed(f"the broker has failed: {type(error).__name__}"))

    def put(self, parts: Parts) -> None:
        """Sends a message; one to a connection that is over goes nowhere."""
        if self.alive:
            self._transport.put(self, parts)

    def fail(self, tag: bytes, error: BrokerError) -> None:
        """Answers with an error, which ends what its tag names."""
        held = self.tags.pop(tag, None)
        if held is not None:
            held.end()
        if not self.alive:
            return
        self.broker.count_refusal(error)
        parts: Parts = (
            p.ERROR,
            tag[: p.MAX_TAG_BYTES],
            error.code.encode(),
            str(error).encode("utf-8", "backslashreplace"),
        )
        if error.first or error.last:
            parts += (p.u64(error.first), p.u64(error.last))
        self.put(parts)

    def _answer(self, tag: bytes, error: BrokerError | None, *answer: bytes) -> None:
        """Sends an answer, or the error in place of it."""
        if error is not None:
            self.fail(tag, error)
        else:
            self.put(answer)

    def has_room(self) -> bool:
        """Returns whether its peer reads what it is sent."""
        return self._transport.pending(self) < MAX_PENDING_BYTES

    @property
    def in_flight(self) -> int:
        """Messages that its consumers have and did not acknowledge."""
        return sum(one.reader.flight.count for one in self.tags.values() if isinstance(one, ConsumerSink))

    def resume(self) -> None:
        """Its peer has read on."""
        while self._reads and self.has_room():
            read = self._reads.popleft()
            try:
                answer_read(self.broker.store.store, read, self.put)
            except BrokerError as error:
                self.fail(read.tag, error)
        for one in tuple(self.tags.values()):
            one.add_credit(0)

    def end(self, error: BrokerError | None = None) -> None:
        """Ends the session: gives back what it holds, and sends its peer the error if there is one."""
        held, self.tags = self.tags, {}
        for one in held.values():
            one.end()
        for tag in held:
            if error is not None:
                self.fail(tag, error)
        if self._client is not None:
            key = (self.user, self._client)
            if self._transport.clients.get(key) is self:
                del self._transport.clients[key]
            self._client = None

    def connection_lost(self) -> None:
        """The connection is over."""
        self.alive = False
        self._reads.clear()
        self.end()

    # ------------------------------------------------------------------ what commands have in common

    def topic(self, part: bytes, action: str) -> Topic:
        """The topic that a part names, if the client may do *action* with it."""
        # No topic's name has a surrogate, so what is not UTF-8 is not the name of one.
        topic = self.broker.topics.get(part.decode("utf-8", "surrogateescape"))
        name = p.topic_name(part) if topic is None else topic.name
        self.check_permission(action, name)
        return topic or self.broker.topic(name)

    def check_permission(self, action: str, name: str) -> None:
        """Raises `PermissionDenied` if the client may not do *action* with what has this name."""
        if not self.broker.permissions.allows(self.user, action, name):
            raise self._denied(action, name)

    def _denied(self, action: str, name: str) -> PermissionDenied:
        who = "a client without a name" if self.user is None else self.user
        return PermissionDenied(f"{who} may not {action} {name!r}")

    def _check_new_tag(self, tag: bytes, what: str) -> None:
        """Checks that a tag is free for a delivery."""
        if self._client is None:
            raise WrongState(f"HELLO comes before {what}")
        if tag in self.tags:
            raise WrongState(f"the tag {tag!r} was in use: that is over, too")
        if len(self.tags) >= _MAX_TAGS:
            raise Busy(f"a connection has {_MAX_TAGS} subscriptions and consumers at most")

    def _track(self, topic: Topic) -> None:
        """Remembers a topic of the session; those that were deleted meanwhile are dropped now and then."""
        if topic not in self._unflushed and len(self._unflushed) % _MAX_READ_TOPICS == _MAX_READ_TOPICS - 1:
            self._unflushed = {one: None for one in self._unflushed if not one.deleted}
        self._unflushed[topic] = None

    def _run(self, tag: bytes, work: Coroutine[Any, Any, None], answer: bytes = b"") -> None:
        """Has the request with this tag go on in the background; its errors are the answer, or else *answer* is."""
        if self._tasks >= _MAX_TASKS:
            work.close()
            raise Busy(f"{self._tasks} requests of this connection are under way")
        self._tasks += 1

        async def run() -> None:
            try:
                await work
                if answer:
                    self.put((answer, tag))
            except BrokerError as error:
                self.fail(tag, error)
            except Exception as error:
                log.exception("a request of %s has failed", self.peer)
                self.fail(tag, BrokerFailed(f"the broker has failed: {type(error).__name__}"))
            finally:
                self._tasks -= 1

        self._transport.spawn(run())

    # ------------------------------------------------------------------ the session

    def _hello(self, tag: bytes, message: list[bytes]) -> None:
        arguments = p.json_object(message, 2)
        if arguments.get("version") != p.VERSION:
            raise VersionFault(f"this broker speaks version {p.VERSION}, not {str(arguments.get('version'))[:40]!r}")
        client = arguments.get("client")
        if not isinstance(client, str) or not _CLIENT.fullmatch(client):
            raise SyntaxFault("client is 16 bytes in hex")
        client = client.lower()
        if self._client is not None and client != self._client:
            raise WrongState("this session has another client id")
        key = (self.user, client)
        before = self._transport.clients.get(key)
        if before is not None and before is not self:
            before.end(WrongState("another session with this client id has begun"))
        self._client = client
        self._transport.clients[key] = self
        welcome = {
            "version": p.VERSION,
            "broker": self.broker.id,
            "max_body": p.MAX_BODY_BYTES,
            "persistent": self.broker.persistent,
        }
        self.put((p.WELCOME, tag, p.pack_json(welcome)))

    def _bye(self, tag: bytes, _: list[bytes]) -> None:
        self.end()
        self._flushed(tag, p.BYE)

    def _flush(self, tag: bytes, _: list[bytes]) -> None:
        self._flushed(tag, p.FLUSHED)

    def _flushed(self, tag: bytes, answer: bytes) -> None:
        """Answers once everything that this connection has left with topics is durable."""
        topics = [topic for topic in self._unflushed if not topic.deleted]
        self._unflushed = {one.topic: None for one in self.tags.values()}
        bytes_written = len(topics) + 1
        failed: BrokerError | None = None

        def done(error: BrokerError | None) -> None:
            nonlocal bytes_written, failed
            bytes_written -= 1
            failed = failed or error
            if not bytes_written:
                self._answer(tag, failed, answer, tag)

        for topic in topics:
            topic.flush(done)
        done(None)

    def _ping(self, tag: bytes, _: list[bytes]) -> None:
        self.put((p.PONG, tag))

    # ------------------------------------------------------------------ publishing

    def _reserve(self, size: int) -> None:
        """Takes a number of bytes in, if they are not too many."""
        if self._unanswered_bytes and self._unanswered_bytes + size > p.WINDOW_BYTES:
            raise Busy(f"{self._unanswered_bytes} bytes of this connection wait for their answers: send fewer at once")
        self._unanswered_bytes += size

    def _check(self, records: bytes) -> int:
        """Checks records, and returns how many they are."""
        if len(records) > p.MAX_APPEND_BYTES:
            raise TooLarge(f"{len(records)} bytes of records are more than {p.MAX_APPEND_BYTES}")
        try:
            count = blocks.check(records, p.MAX_BODY_BYTES)
        except blocks.BodyTooLarge as error:
            raise TooLarge(str(error)) from None
        except ValueError as error:
            raise SyntaxFault(str(error)) from None
        if not 1 <= count <= p.MAX_RECORDS:
            raise SyntaxFault(f"1 to {p.MAX_RECORDS} records, not {count}")
        return count

    def _append(self, tag: bytes, message: list[bytes]) -> None:
        topic = self.topic(message[2], "publish")
        records = message[3]
        if len(message) > 4:
            name, sequence = p.producer(message, 4)
            settled = p.number(message[6], "settled") if len(message) > 6 and message[6] else 0
            self._store(tag, topic, records, self._check(records), name and self._prefix + name, sequence, settled)
        else:
            self._store(tag, topic, records, self._check(records))

    def _publish(self, tag: bytes, message: list[bytes]) -> None:
        topic = self.topic(message[2], "publish")
        body, key = message[3], p.optional(message, 4)
        if len(body) > p.MAX_BODY_BYTES:
            raise TooLarge(f"a body has {p.MAX_BODY_BYTES} bytes at most, not {len(body)}")
        headers: dict[str, bytes] = {}
        for name, value in p.json_object(message, 5, "headers").items():
            if not isinstance(value, str):
                raise SyntaxFault(f"the header {name[:80]!r} is a string, not {type(value).__name__}")
            headers[name] = value.encode("utf-8", "surrogatepass")
        try:
            record = blocks.encode_record(body, key or None, headers or None)
        except ValueError as error:
            raise SyntaxFault(str(error)) from None
        if len(record) > p.MAX_APPEND_BYTES:
            raise TooLarge(f"{len(record)} bytes of a record are more than {p.MAX_APPEND_BYTES}")
        who, sequence = p.producer(message, 6)
        self._store(tag, topic, record, 1, who and self._prefix + who, sequence)

    def _store(
        self,
        tag: bytes,
        topic: Topic,
        records: bytes,
        count: int,
        producer: bytes = b"",
        sequence: int = 0,
        settled: int = 0,
    ) -> None:
        size = len(records)

        def on_stored(first: int, error: BrokerError | None) -> None:
            self._unanswered_bytes -= size
            self._publication_done(tag)
            if error is not None:
                if settled and isinstance(error, Busy):
                    self._busy_order.record_refusal(producer, sequence)
                self.fail(tag, error)
            elif self.alive:
                self._transport.put(self, (p.PUBLISHED, tag, p.u64(first)))

        if settled:
            self._busy_order.admit(self._reserve, size, producer, sequence, settled)
        else:
            self._reserve(size)
        self._publishing[tag] += 1
        topic.append(records, count, on_stored, producer, sequence, settled, lambda: self._waits_for(tag))

    def _stage(self, tag: bytes, message: list[bytes]) -> None:
        topic = self.topic(message[2], "publish")
        records = message[3]
        stage = self._prefix + p.named(message[4], "a stage")
        sequence = p.number(message[5], "the sequence") if len(message) > 5 and message[5] else 0
        count = self._check(records)
        check_waiting(self.broker, self.broker.store, len(records))
        self._reserve(len(records))
        self.broker.store.waiting += len(records)

        def on_staged(write: Write) -> None:
            self._unanswered_bytes -= len(records)
            self.broker.store.waiting -= len(records)
            self._answer(tag, self._stage_error(write), p.STAGED, tag)

        self.broker.store.submit(Stage(topic.id, records, count, stage, sequence), on_staged)

    def _commit(self, tag: bytes, message: list[bytes]) -> None:
        commit = self._prefix + p.named(message[2], "a commit")
        stages = [self._prefix + name for name in p.stage_names(message[3])]

        def on_committed(write: CommitStages) -> None:
            self._publication_done(tag)
            published = [
                {
                    "stage": base64.b64encode(stage[len(self._prefix) :]).decode(),
                    "topic": write.names.get(id) or self._name_of(id),
                    "first": first,
                    "count": count,
                }
                for stage, id, first, count in write.published
            ]
            self._answer(tag, self._stage_error(write), p.COMMITTED, tag, p.pack_json(published))

        def check_permission(topic_id: int) -> bool:
            # It was asked when they were staged: that may be long ago.
            return self.broker.permissions.allows(self.user, "publish", self._name_of(topic_id))

        self._publishing[tag] += 1
        self.broker.commit(commit, stages, check_permission, on_committed, lambda: self._waits_for(tag))

    def _waits_for(self, tag: bytes) -> bool:
        """Returns whether the client waits for what it publishes under a tag."""
        return self.alive and tag not in self._cancelled

    def _publication_done(self, tag: bytes) -> None:
        """A publication or a commit is answered."""
        if self._publishing[tag] > 1:
            self._publishing[tag] -= 1
        else:
            del self._publishing[tag]
            self._cancelled.discard(tag)

    def _stage_error(self, write: Write) -> BrokerError | None:
        """Returns why a stage was left alone, which has another name at the client."""
        error = write.error
        if error is None:
            return None
        if isinstance(error, NotAllowed):
            return self._denied("publish", self._name_of(error.topic_id))
        return WrongState(error.without(self._prefix)) if isinstance(error, StageError) else broker_error(error)

    def _name_of(self, topic_id: int) -> str:
        topic = self.broker.topic_of(topic_id)
        return "" if topic is None else topic.name

    def _abort(self, tag: bytes, message: list[bytes]) -> None:
        stage = self._prefix + p.named(message[2], "a stage")

        def on_aborted(write: Write) -> None:
            self._answer(tag, self._stage_error(write), p.ABORTED, tag)

        self.broker.store.submit(AbortStage(stage, prefix=bool(p.optional(message, 3))), on_aborted)

    # ------------------------------------------------------------------ subscribing and consuming

    def _subscribe(self, tag: bytes, message: list[bytes]) -> None:
        self._check_new_tag(tag, "SUBSCRIBE")
        topic = self.topic(message[2], "subscribe")
        arguments = p.json_object(message, 3)
        credit = p.whole(arguments, "credit", _DEFAULT_CREDIT_BYTES)
        name = arguments.get("name")
        if name is not None and not isinstance(name, str):
            raise SyntaxFault("name is a string or null")
        replay = arguments.get("replay", "latest")
        if not isinstance(replay, str | int):
            raise SyntaxFault("replay is 'latest', 'earliest' or an id")
        reset = arguments.get("reset", False)
        if not isinstance(reset, bool):
            raise SyntaxFault("reset is true or false")
        sink = SubscriptionSink(self, tag, topic, credit)

        def start(error: BrokerError | None) -> None:
            if self.tags.get(tag) is not sink:
                return
            if error is not None:
                self.fail(tag, error)
                return
            sink.started = True
            answer = {
                "topic_id": topic.id,
                "position": sink.reader.position,
                "persistence": topic.persistence,
            }
            self.put((p.SUBSCRIBED, tag, p.pack_json(answer)))
            sink.reader.resume()

        sink.reader = self.broker.subscribe(topic, replay, sink, name=name, reset=reset)
        self.tags[tag] = sink
        self._track(topic)
        if name is not None and isinstance(topic, BroadcastTopic) and not topic.is_durable(name):
            topic.flush(start)  # where a name begins is durable before a client relies on it
        else:
            start(None)

    def _consume(self, tag: bytes, message: list[bytes]) -> None:
        self._check_new_tag(tag, "CONSUME")
        topic = self.topic(message[2], "consume")
        arguments = p.json_object(message, 3)
        credit = min(p.whole(arguments, "credit", _DEFAULT_PREFETCH), p.MAX_JOBS)
        timeout = arguments.get("ack_timeout", 30.0)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise SyntaxFault(f"ack_timeout is a number of seconds, not {str(timeout)[:40]!r}")
        if not _MIN_ACK_TIMEOUT_S <= timeout <= _MAX_ACK_TIMEOUT_S:
            raise SyntaxFault(
                f"ack_timeout is {_MIN_ACK_TIMEOUT_S} s to {_MAX_ACK_TIMEOUT_S:.0f} s, not {str(timeout)[:40]!r}"
            )
        sink = ConsumerSink(self, tag, topic)
        sink.reader = self.broker.consume(topic, sink, ack_timeout=float(timeout), credit=credit)
        self.tags[tag] = sink
        self._track(topic)
        self.put((p.CONSUMING, tag, p.pack_json({"topic_id": topic.id})))
        sink.started = True

    def _credit(self, tag: bytes, message: list[bytes]) -> None:
        more = p.number(message[2], "the credit")
        held = self.tags.get(tag)
        if held is not None:
            held.add_credit(more)

    def _position(self, tag: bytes, message: list[bytes]) -> None:
        position = p.number(message[2], "the position")
        held = self.tags.get(tag)
        if isinstance(held, SubscriptionSink):
            held.reader.move(position)
        elif held is not None:
            raise WrongState("a consumer has no position: it acknowledges")

    def _ack(self, tag: bytes, message: list[bytes]) -> None:
        ranges = p.ranges(message[2:])
        if consumer := self._consumer_of(tag, "a subscription has nothing to acknowledge: it moves its position"):
            consumer.ack(ranges)

    def _nack(self, tag: bytes, message: list[bytes]) -> None:
        delay, ranges = p.delayed_ranges(message[2:])
        if consumer := self._consumer_of(tag, "a subscription has nothing to give back"):
            consumer.nack(ranges, delay)

    def _progress(self, tag: bytes, message: list[bytes]) -> None:
        ranges = p.ranges(message[2:])
        if consumer := self._consumer_of(tag, "a subscription has nothing to work at"):
            consumer.progress(ranges)

    def _return(self, tag: bytes, message: list[bytes]) -> None:
        ranges = p.ranges(message[2:])
        if consumer := self._consumer_of(tag, "a subscription has nothing to give back"):
            consumer.give_back(ranges)

    def _consumer_of(self, tag: bytes, otherwise: str) -> TopicConsumer | None:
        """Returns the consumer of a tag; `None` where it is over. *otherwise* is the error for a subscription's tag."""
        held = self.tags.get(tag)
        if held is None:
            return None
        if not isinstance(held, ConsumerSink):
            raise WrongState(otherwise)
        return held.reader

    def _settle(self, tag: bytes, message: list[bytes]) -> None:
        """Settles what the client acknowledged in another session, which this broker may not have received."""
        if self._client is None:
            raise WrongState("HELLO comes before SETTLE")  # it gives back what the session before holds
        topic = self.topic(message[2], "consume")
        topic_id, ranges = p.number(message[3], "the topic's id"), p.ranges(message[4:])
        if topic.id != topic_id or not isinstance(topic, RoundRobinTopic):
            raise TopicError(f"the topic {topic.name!r} is not the one with the id {topic_id}")
        for held in self.tags.values():
            if isinstance(held, ConsumerSink) and held.topic is topic:
                held.reader.ack(ranges)
        for first, last in ranges:
            topic.ack_late(first, last)

        topic.flush(lambda error: self._answer(tag, error, p.SETTLED, tag))

    def _cancel(self, tag: bytes, _: list[bytes]) -> None:
        held = self.tags.pop(tag, None)
        if held is not None:
            held.end()
        elif tag in self._publishing:
            self._cancelled.add(tag)
        self.put((p.CANCELLED, tag))

    # ------------------------------------------------------------------ reading

    def _read(self, tag: bytes, message: list[bytes]) -> None:
        topic = self.topic(message[2], "subscribe")
        start = p.number(message[3], "start") or 1
        stop = p.number(message[4], "stop")
        read = RangeRead(tag, topic, start, stop, p.short_number(message[5], "bytes"))
        if not self._reads and self.has_room():
            answer_read(self.broker.store.store, read, self.put)
            return
        if len(self._reads) >= _MAX_READS:
            raise Busy(f"{len(self._reads)} READs wait for their answers")
        self._reads.append(read)

    def _offset_after(self, tag: bytes, message: list[bytes]) -> None:
        topic = self.topic(message[2], "subscribe")
        start, stop, size = map(p.number, message[3:6], ("start", "stop", "bytes"))
        self.put((p.OFFSET, tag, *map(p.u64, offset_after(self.broker.store.store, topic, start or 1, stop, size))))

    # ------------------------------------------------------------------ topics and names

    def _create(self, tag: bytes, message: list[bytes]) -> None:
        """Makes a topic, or finds it as it is asked for."""
        arguments = p.json_object(message, 2)
        name, settings = arguments.get("name"), arguments.get("settings", {})
        delivery, persistence = arguments.get("delivery", "broadcast"), arguments.get("persistence", "strong")
        if not isinstance(name, str):
            raise SyntaxFault("name is a string")
        if not isinstance(settings, dict):
            raise SyntaxFault("settings is an object")
        p.check_name(name)
        self.check_permission("create", name)
        if name not in self.broker.topics:
            self._check_dead_letter(name, str(delivery), settings)

        async def made() -> None:
            topic = await self.broker.create(
                name, delivery=str(delivery), persistence=str(persistence), settings=settings
            )
            self.put((p.CREATED, tag, topic.info()))

        self._run(tag, made())

    def _check_dead_letter(self, name: str, delivery: str, settings: dict[str, Any]) -> None:
        """Refuses dead letters that would go where the client may not publish, or make what it may not create."""
        target = dead_letter_of(name, delivery, settings)
        if target is not None:
            self.check_permission("publish", target)
            if target not in self.broker.topics:
                self.check_permission("create", target)

    def _delete(self, tag: bytes, message: list[bytes]) -> None:
        """Deletes a topic, with everything in it."""
        name = p.topic_name(message[2])
        self.check_permission("delete", name)
        self._run(tag, self.broker.delete(name), p.DELETED)

    def _topics(self, tag: bytes, message: list[bytes]) -> None:
        """Sends the topics on which the client has any permission."""
        granted = self.broker.permissions.granted
        if p.optional(message, 2):
            name = p.topic_name(message[2])
            if not granted(self.user, name):
                raise PermissionDenied(f"{self.user or 'a client without a name'} may do nothing with {name!r}")
            self.put((p.TOPICS, tag, b"[" + self.broker.topic(name).info() + b"]"))
            return

        async def list_topics() -> None:
            infos: list[bytes] = []
            # One list at a time, of each connection in turn, and bit by bit: the loop has others to look after.
            async with self.listing_lock, self.broker.listing_lock:
                for at, name in enumerate(sorted(self.broker.topics)):
                    if not self.alive:
                        return
                    topic = self.broker.topics.get(name)
                    if topic is not None and granted(self.user, name):
                        infos.append(topic.info())
                    if at % _LIST_BATCH == _LIST_BATCH - 1:
                        await asyncio.sleep(0)
            self.put((p.TOPICS, tag, b"[" + b",".join(infos) + b"]"))

        self._run(tag, list_topics())

    def _durables(self, tag: bytes, message: list[bytes]) -> None:
        """Sends the named positions of a topic."""
        topic = self.topic(message[2], "subscribe")
        self.put((p.DURABLES, tag, p.pack_json(topic.durables())))

    def _delete_durable(self, tag: bytes, message: list[bytes]) -> None:
        """Forgets a named position."""
        topic = self.topic(message[2], "subscribe")
        if len(message[3]) > p.MAX_NAME_BYTES:
            raise TopicError(f"a subscription's name has {p.MAX_NAME_BYTES} bytes at most, not {len(message[3])}")
        name = message[3].decode("utf-8", "replace")
        if not isinstance(topic, BroadcastTopic):
            raise TopicError(f"{topic.name!r} is a round-robin topic: it has no named positions")
        self._run(tag, topic.delete_durable(name), p.DURABLE_DELETED)

    #: The method of a command, and how many parts it has after its tag.
    _HANDLERS: ClassVar[dict[bytes, tuple[Callable[[ClientSession, bytes, list[bytes]], None], int, int]]] = {
        p.HELLO: (_hello, 1, 1),
        p.BYE: (_bye, 0, 0),
        p.FLUSH: (_flush, 0, 0),
        p.PING: (_ping, 0, 0),
        p.PUBLISH: (_publish, 2, 6),
        p.APPEND: (_append, 2, 5),
        p.STAGE: (_stage, 3, 4),
        p.COMMIT: (_commit, 2, 2),
        p.ABORT: (_abort, 1, 2),
        p.SUBSCRIBE: (_subscribe, 1, 2),
        p.CREDIT: (_credit, 1, 1),
        p.POSITION: (_position, 1, 1),
        p.CANCEL: (_cancel, 0, 0),
        p.CONSUME: (_consume, 1, 2),
        p.ACK: (_ack, 1, p.MAX_PARTS),
        p.NACK: (_nack, 1, p.MAX_PARTS),
        p.RETURN: (_return, 1, p.MAX_PARTS),
        p.PROGRESS: (_progress, 1, p.MAX_PARTS),
        p.SETTLE: (_settle, 3, p.MAX_PARTS),
        p.READ: (_read, 4, 4),
        p.OFFSET_AFTER: (_offset_after, 4, 4),
        p.CREATE: (_create, 1, 1),
        p.DELETE: (_delete, 1, 1),
        p.TOPICS: (_topics, 0, 1),
        p.DURABLES: (_durables, 1, 1),
        p.DELETE_DURABLE: (_delete_durable, 2, 2),
    }
