"""The session of a ZMTP client: executes its requests and sends its deliveries."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import time
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
from omq.broker.core.topic_queue import TopicQueue
from omq.broker.core.user_limits import THROTTLE_DELAY_S
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
from omq.broker.start_time import StartTime
from omq.broker.zmtp.range_reads import RangeRead, answer_read, offset_after
from omq.store.errors import NotAllowed, StageError
from omq.store.interface import AbortStage, CommitStages, Stage, Write

log = logging.getLogger("omq.broker")

#: Bytes that may wait for a peer before its deliveries and READs pause.
MAX_PENDING_BYTES: Final = 16 << 20
#: Subscriptions and consumers of one session, and background requests of it.
_MAX_TAGS: Final = 65_536
_MAX_TASKS: Final = 1024
#: Requests of one session that may wait for the answer `busy`.
_MAX_THROTTLED: Final = 4096
#: After this many new topics a session forgets those that were deleted.
_MAX_READ_TOPICS: Final = 64
#: Limits of what `BusyRetryOrder` remembers; above one of them it forgets everything.
_MAX_REFUSED_PRODUCERS: Final = 64
_MAX_REFUSED_SEQUENCES: Final = 1024
#: READs of one session that may wait.
_MAX_READS: Final = 4096
#: Topics that are listed in one turn of the loop.
_LIST_BATCH: Final = 128
#: Names in the log of one lost connection.
_MAX_LOGGED_NAMES: Final = 20
_DEFAULT_CREDIT_BYTES: Final = 1 << 20
_CLIENT: Final = re.compile(r"[0-9a-fA-F]{32}")

#: The commands whose tag is the one of a subscription or consumer: their errors end it.
_OF_READERS: Final = frozenset(
    (p.SUBSCRIBE, p.CONSUME, p.CREDIT, p.POSITION, p.ACK, p.NACK, p.PROGRESS, p.RETURN, p.CANCEL)
)

#: The commands that a follower of a cluster executes. Those of consumers have no effect there.
_OF_FOLLOWERS: Final = frozenset(
    (p.HELLO, p.BYE, p.PING, p.FLUSH, p.READ, p.OFFSET_AFTER, p.OFFSET_AT, p.TOPICS, *_OF_READERS)
) - {p.CONSUME}

#: The answers that each broker of a cluster gives from its own store.
_READ_ANSWERS: Final = frozenset((p.RANGE, p.OFFSET, p.TOPICS))

#: The parts of a message to a client.
Parts: TypeAlias = tuple[bytes | memoryview, ...]


class SessionTransport(Protocol):
    """Sends the messages of sessions; `ZmtpServer` implements it."""

    #: The sessions that have sent HELLO, by user and client id.
    clients: dict[tuple[str | None, str], ClientSession]

    def put(self, session: ClientSession, parts: Parts) -> None:
        """Sends a message to the session's peer; never waits."""

    def pending(self, session: ClientSession) -> int:
        """Returns about how many bytes wait for the session's peer.

        After a result of `MAX_PENDING_BYTES` or more, `resume` of the session is called once there is room.
        """

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in a task of its own."""


class BusyRetryOrder:
    """Keeps a producer's order when an `APPEND` was refused as `busy`.

    All later appends of that producer are refused too, until it repeats the first one. An append that the producer
    gives up is below its `first_outstanding`, and then no longer blocks the others.
    """

    def __init__(self) -> None:
        self._refused: dict[bytes, set[int]] = {}

    def admit(
        self, reserve: Callable[[int], None], size: int, producer: bytes, sequence: int, first_outstanding: int
    ) -> None:
        """Admits an append, unless an earlier one of its producer waits to be repeated.

        Args:
            reserve: Reserves a number of bytes, or raises `Busy`.
            size: The bytes of the append.
            producer: The id of the producer.
            sequence: The producer's number of the append.
            first_outstanding: The lowest sequence that the producer may repeat.

        Raises:
            Busy: The broker has no room, or an earlier append was refused.
        """
        try:
            if self._refused and self._follows_refused(producer, sequence, first_outstanding):
                raise Busy("an earlier append of this producer was refused: repeat that one first")
            reserve(size)
        except Busy:
            self.record_refusal(producer, sequence)
            raise
        if (refused := self._refused.get(producer)) is not None:
            refused.discard(sequence)

    def _follows_refused(self, producer: bytes, sequence: int, first_outstanding: int) -> bool:
        refused = {one for one in self._refused.pop(producer, ()) if one >= first_outstanding}
        if refused:
            self._refused[producer] = refused
        return bool(refused) and min(refused) < sequence

    def record_refusal(self, producer: bytes, sequence: int) -> None:
        """Records a sequence that was refused as `busy`."""
        refused = self._refused.setdefault(producer, set())
        refused.add(sequence)
        if len(refused) > _MAX_REFUSED_SEQUENCES or len(self._refused) > _MAX_REFUSED_PRODUCERS:
            self._refused.clear()


class DeliverySink:
    """The sink of a subscription or a consumer, identified by a tag.

    Attributes:
        reader: The subscription or consumer.
        started: The answer was sent to the client, so that messages may follow.
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
    """The sink of a subscription; its credit counts bytes."""

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
        self.session.send((p.BLOCK, self.tag, header, records))

    def add_credit(self, more: int) -> None:
        """Adds *more* bytes of credit and resumes the delivery; with 0 it only resumes."""
        # The credit may be negative, as a block may exceed it. Otherwise the bytes in flight would grow with each block
        # that exceeds the credit.
        self._credit = min(self._credit + more, p.MAX_CREDIT_BYTES)
        self.reader.resume()


class ConsumerSink(DeliverySink):
    """The sink of a consumer; the core counts its credit, in messages."""

    reader: TopicConsumer

    def room(self) -> int:
        return 1 if self.started and self.session.has_room() else 0

    def send_block(self, header: bytes, records: memoryview, deliveries: bytes) -> None:
        self.session.send((p.JOBS, self.tag, header, records, deliveries))

    def add_credit(self, more: int) -> None:
        """Adds *more* messages of credit and resumes the delivery; with 0 it only resumes."""
        self.reader.more(min(more, p.MAX_PREFETCH - min(self.reader.credit, p.MAX_PREFETCH)))


def _read_replay(value: Any) -> str | int | StartTime:
    """Decodes the replay of SUBSCRIBE; the topic checks words and ids.

    Raises:
        SyntaxFault: It has a wrong type.
    """
    if isinstance(value, str | int):
        return value
    if isinstance(value, dict) and value.keys() == {"timestamp"}:
        return StartTime(min(p.whole(value, "timestamp", 0), 2**64 - 1))
    raise SyntaxFault(f"replay={value!r:.40}: must be 'latest', 'earliest', an id or {{\"timestamp\": microseconds}}")


class ClientSession:
    """The session of one connection.

    Args:
        broker: The core.
        transport: Sends its messages.
        identity: The identity of the peer at the ROUTER.
        user: The user id of the peer; `None` without one.
        peer: The address of the peer.
        since: The end of its handshake, in seconds since 1970.

    Attributes:
        tags: Its subscriptions and consumers by tag.
        bytes_queued: The bytes that its server has accepted for it.
        bytes_written: The number of them that had been written to the socket when the server checked last.
        bytes_checked: `bytes_queued` at that check.
        alive: The connection is open.
        broker: The core.
        usage: The usage of its user.
        listing_lock: Held while all topics are listed for this session.
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
        self.usage = broker.user_limits.of(user)
        self.listing_lock = asyncio.Lock()
        self._transport = transport
        self._client: str | None = None  # the client id, after HELLO
        self._unanswered_bytes = 0  # of publications
        self._publishing: Counter[bytes] = Counter()  # unanswered publications and commits, by tag
        self._cancelled: set[bytes] = set()  # tags of publications that the client has cancelled
        self._opening: dict[bytes, ConsumerSink] = {}  # consumers whose group is being created, by tag
        self._busy_order = BusyRetryOrder()
        self._unflushed: dict[Topic, None] = {}  # topics that FLUSH waits for
        self._lost_progress = False  # acknowledgements may be lost with an earlier core; the next FLUSH reports it
        self._tasks = 0
        self._throttled = 0  # requests that are answered `busy` later
        # Separates the stages and producers of users. The store's own names begin with a zero byte.
        self._prefix = b"-" if user is None else b"u" + hashlib.blake2b(user.encode(), digest_size=16).digest()
        self._reads: deque[RangeRead] = deque()  # waiting for room

    # ------------------------------------------------------------------ messages

    def handle(self, message: list[bytes]) -> None:
        """Executes the request in a message, which has no identity part; answers with an error if it is not valid."""
        tag = message[1] if len(message) > 1 else b""
        try:
            handler = self._HANDLERS.get(message[0])
            if handler is None:
                raise SyntaxFault(f"there is no command {message[0][:40]!r}")
            if len(message) < 2:
                raise SyntaxFault(f"{message[0].decode()} has no tag")
            if len(tag) > p.MAX_TAG_BYTES:
                raise SyntaxFault(f"the tag has {len(tag)} bytes; at most {p.MAX_TAG_BYTES} are allowed")
            if not self.broker.leads and message[0] not in _OF_FOLLOWERS:
                raise self.broker.not_leader()
            call, fewest, most = handler
            given = len(message) - 2
            if not fewest <= given <= most:
                allowed = str(fewest) if fewest == most else f"{fewest} to {most}"
                raise SyntaxFault(f"{message[0].decode()} has {given} parts after its tag; {allowed} are allowed")
            call(self, tag, message)
        except Busy as error:
            self._fail_busy(message[0], tag, error)
        except BrokerError as error:
            self._fail_request(message[0], tag, error)
        except Exception as error:
            log.exception("%s of %s failed", message[0][:40], self.peer)
            self._fail_request(message[0], tag, BrokerFailed(f"the broker has failed: {type(error).__name__}"))

    def _fail_request(self, command: bytes, tag: bytes, error: BrokerError) -> None:
        if command in _OF_READERS:
            self.fail(tag, error)
        else:
            self._answer_error(tag, error)

    def put(self, parts: Parts) -> None:
        """Sends an answer, if the connection is open, or an error instead if the answer may be out of date.

        The error is `not-leader`, or `busy` to a read: this broker answers it once it is a follower.
        """
        if self.broker.current():
            self.send(parts)
        elif parts[0] in _READ_ANSWERS:
            self.fail(bytes(parts[1]), Busy("this broker leads no longer, and is about to become a follower"))
        else:
            self.fail(bytes(parts[1]), self.broker.not_leader())

    def send(self, parts: Parts) -> None:
        """Sends a message that is true in any role of the broker, if the connection is open."""
        if self.alive:
            self._transport.put(self, parts)

    def fail(self, tag: bytes, error: BrokerError) -> None:
        """Answers with an error, and ends the subscription or consumer with this tag."""
        self._opening.pop(tag, None)
        held = self.tags.pop(tag, None)
        if held is not None:
            held.end()
        self._answer_error(tag, error)

    def _answer_error(self, tag: bytes, error: BrokerError) -> None:
        """Answers a request with an error. A subscription or consumer may have the same tag, and stays."""
        if not self.alive:
            return
        if not isinstance(error, Busy) and not self.broker.current():
            error = self.broker.not_leader()
        self.broker.count_refusal(error)
        parts: Parts = (
            p.ERROR,
            tag[: p.MAX_TAG_BYTES],
            error.code.encode(),
            str(error).encode("utf-8", "backslashreplace"),
        )
        if error.first or error.last:
            parts += (p.u64(error.first), p.u64(error.last))
        self.send(parts)

    def _fail_busy(self, command: bytes, tag: bytes, error: Busy) -> None:
        """Answers with an error; later, if the user has published more than its rate.

        A client repeats the request soon after the answer. Answered at once, it would send its bytes again and again.
        """
        if command in _OF_READERS or not self.usage.throttled or self._throttled >= _MAX_THROTTLED:
            self._fail_request(command, tag, error)
            return

        def answer() -> None:
            self._throttled -= 1
            self._answer_error(tag, error)

        self._throttled += 1
        self.broker.loop.call_later(THROTTLE_DELAY_S, answer)

    def _answer(self, tag: bytes, error: BrokerError | None, *answer: bytes) -> None:
        """Sends an answer, or the error instead."""
        if error is not None:
            self._answer_error(tag, error)
        else:
            self.put(answer)

    def has_room(self) -> bool:
        """Returns whether fewer than `MAX_PENDING_BYTES` wait for the peer."""
        return self._transport.pending(self) < MAX_PENDING_BYTES

    @property
    def in_flight(self) -> int:
        """The number of messages that its consumers have not acknowledged."""
        return sum(one.reader.in_flight.count for one in self.tags.values() if isinstance(one, ConsumerSink))

    def held(self) -> dict[str, Any]:
        """Returns what other clients get or may take once the connection ends, as fields for the log."""
        durables = sorted(
            f"{one.topic.name}/{one.reader.name}"
            for one in self.tags.values()
            if isinstance(one, SubscriptionSink) and one.reader.name is not None
        )
        consumed = sorted({one.topic.name for one in self.tags.values() if isinstance(one, ConsumerSink)})
        return {
            "in_flight": self.in_flight,
            "consumed": consumed[:_MAX_LOGGED_NAMES],
            "durables": durables[:_MAX_LOGGED_NAMES],
        }

    def resume(self) -> None:
        """Resumes the waiting READs and the deliveries; the transport has room."""
        while self._reads and self.has_room():
            read = self._reads.popleft()
            try:
                answer_read(self.broker.store.store, read, self.put)
            except BrokerError as error:
                self._answer_error(read.tag, error)
        for one in tuple(self.tags.values()):
            one.add_credit(0)

    def end(self, error: BrokerError | None = None) -> None:
        """Ends the session: requeues its messages in flight, and sends *error* for each tag, if there is one."""
        held, self.tags = self.tags, {}
        opening, self._opening = self._opening, {}
        for one in held.values():
            one.end()
        for tag in (*held, *opening):
            if error is not None:
                self.fail(tag, error)
        if self._client is not None:
            key = (self.user, self._client)
            if self._transport.clients.get(key) is self:
                del self._transport.clients[key]
            self._client = None

    def change_core(self, broker: Broker) -> None:
        """Continues with another core over the same store; the readers of the earlier one have moved, or ended."""
        if self.broker.leads and not broker.leads:
            # A client that follows the leader takes no answer after it.
            error = broker.not_leader()
            self.send((p.ERROR, b"", error.code.encode(), str(error).encode()))
        opening, self._opening = self._opening, {}
        for tag in opening:
            self.fail(tag, broker.not_leader())
        reads, self._reads = self._reads, deque()
        for read in reads:
            self._answer_error(read.tag, broker.not_leader())
        # The acknowledgements and positions that were not durable are lost.
        self._lost_progress = self._lost_progress or (bool(self._unflushed) and self.broker.leads)
        self._unflushed.clear()
        self.broker = broker

    def connection_lost(self) -> None:
        """Ends the session of a connection that was closed. Idempotent."""
        self.alive = False
        self._reads.clear()
        self.end()

    # ------------------------------------------------------------------ shared by commands

    def topic(self, part: bytes, action: str) -> Topic:
        """Returns the topic with the name in a part, if the client has the permission for *action*."""
        # Bytes that are not UTF-8 become surrogates, which are not in the name of any topic.
        topic = self.broker.topics.get(part.decode("utf-8", "surrogateescape"))
        name = p.topic_name(part) if topic is None else topic.name
        self.check_permission(action, name)
        return topic or self.broker.topic(name)

    def check_permission(self, action: str, name: str) -> None:
        """Raises `PermissionDenied` if the client may not perform *action* on the topic with this name."""
        if not self.broker.permissions.allows(self.user, action, name):
            raise self._denied(action, name)

    def _denied(self, action: str, name: str) -> PermissionDenied:
        user = "a client without a name" if self.user is None else self.user
        return PermissionDenied(f"{user} may not {action} {name!r}")

    def _check_new_tag(self, tag: bytes, command: str) -> None:
        """Checks that a new subscription or consumer may have this tag."""
        if self._client is None:
            raise WrongState(f"HELLO must come before {command}")
        if tag in self.tags or tag in self._opening:
            raise WrongState(f"the tag {tag!r} is in use; its subscription or consumer ends, too")
        if len(self.tags) >= _MAX_TAGS:
            raise Busy(
                f"this connection has {len(self.tags)} subscriptions and consumers; at most {_MAX_TAGS} are allowed"
            )

    def _track(self, topic: Topic) -> None:
        """Adds a topic to those that FLUSH waits for, and from time to time removes those that were deleted."""
        if topic not in self._unflushed and len(self._unflushed) % _MAX_READ_TOPICS == _MAX_READ_TOPICS - 1:
            self._unflushed = {one: None for one in self._unflushed if not one.deleted}
        self._unflushed[topic] = None

    def _run(self, tag: bytes, work: Coroutine[Any, Any, None], answer: bytes = b"") -> None:
        """Executes a request in the background, then sends its error, or else *answer*, if that is not empty."""
        if self._tasks >= _MAX_TASKS:
            work.close()
            raise Busy(f"{self._tasks} requests of this connection are in progress; send fewer at once")
        self._tasks += 1

        async def run() -> None:
            try:
                await work
                if answer:
                    self.put((answer, tag))
            except BrokerError as error:
                self._answer_error(tag, error)
            except Exception as error:
                log.exception("a request of %s failed", self.peer)
                self._answer_error(tag, BrokerFailed(f"the broker has failed: {type(error).__name__}"))
            finally:
                self._tasks -= 1

        self._transport.spawn(run())

    # ------------------------------------------------------------------ the session

    def _hello(self, tag: bytes, message: list[bytes]) -> None:
        arguments = p.json_object(message, 2)
        if arguments.get("version") != p.VERSION:
            raise VersionFault(
                f"version={arguments.get('version')!r:.40}: this broker has version {p.VERSION} of the protocol"
            )
        client = arguments.get("client")
        if not isinstance(client, str) or not _CLIENT.fullmatch(client):
            raise SyntaxFault(f"client={client!r:.40}: must be 16 bytes in hex")
        client = client.lower()
        if self._client is not None and client != self._client:
            raise WrongState("this session has another client id")
        key = (self.user, client)
        before = self._transport.clients.get(key)
        if before is not None and before is not self:
            before.end(WrongState("another session with this client id has begun"))
        self._client = client
        self._transport.clients[key] = self
        welcome: dict[str, Any] = {
            "version": p.VERSION,
            "broker": self.broker.id,
            "max_body": p.MAX_BODY_BYTES,
            "persistent": self.broker.persistent,
        }
        if (cluster := self.broker.cluster_stats()) is not None:
            welcome["cluster"] = cluster
        self.send((p.WELCOME, tag, p.pack_json(welcome)))

    def _bye(self, tag: bytes, _: list[bytes]) -> None:
        self.end()
        self._flushed(tag, p.BYE)

    def _flush(self, tag: bytes, _: list[bytes]) -> None:
        self._flushed(tag, p.FLUSHED)

    def _flushed(self, tag: bytes, answer: bytes) -> None:
        """Answers once all acknowledgements and positions of this session are durable."""
        topics = [topic for topic in self._unflushed if not topic.deleted]
        self._unflushed = {sink.topic: None for sink in self.tags.values()}
        remaining = len(topics) + 1
        first_error: BrokerError | None = None
        if self._lost_progress:
            self._lost_progress, first_error = False, self.broker.not_leader()

        def done(error: BrokerError | None) -> None:
            nonlocal remaining, first_error
            remaining -= 1
            first_error = first_error or error
            if not remaining:
                self._answer(tag, first_error, answer, tag)

        for topic in topics:
            topic.flush(done)
        done(None)

    def _ping(self, tag: bytes, _: list[bytes]) -> None:
        self.send((p.PONG, tag))

    # ------------------------------------------------------------------ publishing

    def _reserve(self, size: int) -> None:
        """Reserves *size* bytes of the session's publish window, and of the user's publish rate.

        Raises:
            Busy: The window is full, or the user publishes too much.
        """
        if self._unanswered_bytes and self._unanswered_bytes + size > p.WINDOW_BYTES:
            raise Busy(f"{self._unanswered_bytes} bytes of this connection wait for their answers: send fewer at once")
        self.usage.publish(size)
        self._unanswered_bytes += size

    def _check(self, records: bytes) -> int:
        """Checks the records of a request, and returns their number."""
        if len(records) > p.MAX_APPEND_BYTES:
            raise TooLarge(f"the records have {len(records)} bytes; at most {p.MAX_APPEND_BYTES} are allowed")
        try:
            count = blocks.check(records, p.MAX_BODY_BYTES)
        except blocks.BodyTooLarge as error:
            raise TooLarge(str(error)) from None
        except ValueError as error:
            raise SyntaxFault(str(error)) from None
        if not 1 <= count <= p.MAX_RECORDS:
            raise SyntaxFault(f"the request has {count} records; 1 to {p.MAX_RECORDS} are allowed")
        return count

    def _append(self, tag: bytes, message: list[bytes]) -> None:
        arrived_ns = time.monotonic_ns()
        topic = self.topic(message[2], "publish")
        records = message[3]
        if len(message) > 4:
            name, sequence = p.producer(message, 4)
            first_outstanding = (
                p.number(message[6], "the first outstanding sequence") if len(message) > 6 and message[6] else 0
            )
            count = self._check(records)
            producer = name and self._prefix + name
            message_id = p.message_id(message, 7, count)
            self._store(arrived_ns, tag, topic, records, count, producer, sequence, first_outstanding, message_id)
        else:
            self._store(arrived_ns, tag, topic, records, self._check(records))

    def _publish(self, tag: bytes, message: list[bytes]) -> None:
        arrived_ns = time.monotonic_ns()
        topic = self.topic(message[2], "publish")
        body, key = message[3], p.optional(message, 4)
        if len(body) > p.MAX_BODY_BYTES:
            raise TooLarge(f"the body has {len(body)} bytes; at most {p.MAX_BODY_BYTES} are allowed")
        headers: dict[str, bytes] = {}
        for name, value in p.json_object(message, 5, "headers").items():
            if not isinstance(value, str):
                raise SyntaxFault(f"the header {name[:80]!r} must be a string, not {type(value).__name__}")
            headers[name] = value.encode("utf-8", "surrogatepass")
        try:
            record = blocks.encode_record(body, key or None, headers or None)
        except ValueError as error:
            raise SyntaxFault(str(error)) from None
        if len(record) > p.MAX_APPEND_BYTES:
            raise TooLarge(f"the record has {len(record)} bytes; at most {p.MAX_APPEND_BYTES} are allowed")
        producer, sequence = p.producer(message, 6)
        self._store(arrived_ns, tag, topic, record, 1, producer and self._prefix + producer, sequence)

    def _store(
        self,
        arrived_ns: int,
        tag: bytes,
        topic: Topic,
        records: bytes,
        count: int,
        producer: bytes = b"",
        sequence: int = 0,
        first_outstanding: int = 0,
        message_id: bytes = b"",
    ) -> None:
        size = len(records)

        def on_stored(first: int, error: BrokerError | None) -> None:
            self._unanswered_bytes -= size
            self._publication_done(tag)
            if error is not None:
                if first_outstanding and isinstance(error, Busy):
                    self._busy_order.record_refusal(producer, sequence)
                self._answer_error(tag, error)
                return
            self.broker.publish_latency[topic.persistence].record(time.monotonic_ns() - arrived_ns)
            if self.alive:
                self._transport.put(self, (p.PUBLISHED, tag, p.u64(first)))

        if first_outstanding:
            self._busy_order.admit(self._reserve, size, producer, sequence, first_outstanding)
        else:
            self._reserve(size)
        self._publishing[tag] += 1
        deduplicated_by = producer, sequence, first_outstanding
        if message_id:
            # Detected whichever client repeats it: the id takes the place of producer and sequence in the store.
            digest = hashlib.blake2b(message_id, digest_size=32).digest()
            deduplicated_by = b"i" + self._prefix + digest, 1, 0
        topic.append(
            records,
            count,
            on_stored,
            *deduplicated_by,
            lambda: self._waits_for(tag),
            same_records=bool(message_id),
        )

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
            # The permissions may have changed since the messages were staged.
            return self.broker.permissions.allows(self.user, "publish", self._name_of(topic_id))

        self._publishing[tag] += 1
        self.broker.commit(commit, stages, check_permission, on_committed, lambda: self._waits_for(tag))

    def _waits_for(self, tag: bytes) -> bool:
        """Returns whether the client waits for the answer to a publication with this tag."""
        return self.alive and tag not in self._cancelled

    def _publication_done(self, tag: bytes) -> None:
        """Forgets a publication or commit that is answered."""
        if self._publishing[tag] > 1:
            self._publishing[tag] -= 1
        else:
            del self._publishing[tag]
            self._cancelled.discard(tag)

    def _stage_error(self, write: Write) -> BrokerError | None:
        """Returns the error of a write of stages, in which stages have the client's names."""
        error = write.error
        if error is None:
            return None
        if isinstance(error, NotAllowed):
            return self._denied("publish", self._name_of(error.topic_id))
        return WrongState(error.text_without(self._prefix)) if isinstance(error, StageError) else broker_error(error)

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
        name = p.optional_text(arguments, "name")
        if name is not None:
            self.broker.check_leads()
        self.broker.check_readable(topic)
        replay = _read_replay(arguments.get("replay", "latest"))
        reset, take_over, resume = (p.flag(arguments, key) for key in ("reset", "take_over", "resume"))
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

        client = self.user, self._client
        sink.reader = self.broker.subscribe(
            topic, replay, sink, name=name, reset=reset, take_over=take_over, resume=resume, client=client
        )
        self.tags[tag] = sink
        self._track(topic)
        if name is not None and isinstance(topic, BroadcastTopic) and not topic.is_durable(name):
            topic.flush(start)  # the first position must be durable before the client relies on it
        else:
            start(None)

    def _consume(self, tag: bytes, message: list[bytes]) -> None:
        self._check_new_tag(tag, "CONSUME")
        topic = self.topic(message[2], "consume")
        arguments = p.json_object(message, 3)
        credit = min(p.whole(arguments, "credit", p.DEFAULT_PREFETCH), p.MAX_PREFETCH)
        timeout = arguments.get("ack_timeout", p.DEFAULT_ACK_TIMEOUT_S)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise SyntaxFault(f"ack_timeout={timeout!r:.40}: must be a number of seconds")
        if not p.MIN_ACK_TIMEOUT_S <= timeout <= p.MAX_ACK_TIMEOUT_S:
            allowed = f"{p.MIN_ACK_TIMEOUT_S} to {p.MAX_ACK_TIMEOUT_S:.0f} seconds"
            raise SyntaxFault(f"ack_timeout={timeout!r:.40}: must be {allowed}")
        group = p.optional_text(arguments, "group")
        replay = _read_replay(arguments.get("replay", "latest"))
        sink = ConsumerSink(self, tag, topic)

        def start() -> None:
            sink.reader = self.broker.consume(topic, sink, ack_timeout=float(timeout), credit=credit, group=group)
            self.tags[tag] = sink
            self._track(topic)
            answer = {"topic_id": topic.id}
            if group is not None:
                answer["generation"] = sink.reader.generation
            self.put((p.CONSUMING, tag, p.pack_json(answer)))
            sink.started = True

        async def start_after_creation(topic: BroadcastTopic, group: str) -> None:
            try:
                while not topic.has_group(group):
                    await topic.make_group(group, replay)
                self.check_permission("consume", topic.name)  # it may have been revoked meanwhile
            except BrokerError:
                if self._opening.get(tag) is sink:
                    del self._opening[tag]
                    raise
            if self._opening.get(tag) is sink:  # otherwise the client has cancelled it, or the session has ended
                del self._opening[tag]
                start()

        if isinstance(topic, BroadcastTopic) and group is not None and not topic.has_group(group):
            self._run(tag, start_after_creation(topic, group))
            self._opening[tag] = sink
        else:
            start()

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
            raise WrongState("a consumer has no position: send ACK instead")

    def _ack(self, tag: bytes, message: list[bytes]) -> None:
        ranges = p.ranges(message[2:])
        if consumer := self._consumer_of(tag, "a subscription cannot acknowledge messages: send POSITION instead"):
            consumer.ack(ranges)

    def _nack(self, tag: bytes, message: list[bytes]) -> None:
        delay, ranges = p.delayed_ranges(message[2:])
        if consumer := self._consumer_of(tag, "a subscription cannot send NACK, only a consumer can"):
            consumer.nack(ranges, delay)

    def _progress(self, tag: bytes, message: list[bytes]) -> None:
        ranges = p.ranges(message[2:])
        if consumer := self._consumer_of(tag, "a subscription cannot send PROGRESS, only a consumer can"):
            consumer.progress(ranges)

    def _return(self, tag: bytes, message: list[bytes]) -> None:
        ranges = p.ranges(message[2:])
        if consumer := self._consumer_of(tag, "a subscription cannot send RETURN, only a consumer can"):
            consumer.give_back(ranges)

    def _consumer_of(self, tag: bytes, otherwise: str) -> TopicConsumer | None:
        """Returns the consumer with this tag; `None` if it has ended. *otherwise* is the error for a subscription."""
        held = self.tags.get(tag)
        if held is None:
            return None
        if not isinstance(held, ConsumerSink):
            raise WrongState(otherwise)
        return held.reader

    def _reack(self, tag: bytes, message: list[bytes]) -> None:
        """Acknowledges messages of an earlier session, whose ACKs may have been lost."""
        if self._client is None:
            raise WrongState("HELLO must come before REACK")  # HELLO ends the client's earlier session
        topic = self.topic(message[2], "consume")
        topic_id, ranges = p.number(message[3], "the topic's id"), p.ranges(message[4:])
        if topic.id != topic_id or not isinstance(topic, RoundRobinTopic):
            raise TopicError(f"{topic.name!r} is not a round-robin topic with the id {topic_id}")
        self._ack_late(tag, topic, topic.work, ranges)

    def _reack_group(self, tag: bytes, message: list[bytes]) -> None:
        """Acknowledges messages of an earlier session in a consumer group; see `_reack`."""
        if self._client is None:
            raise WrongState("HELLO must come before REACK_GROUP")
        topic = self.topic(message[2], "consume")
        topic_id, generation = p.number(message[3], "the topic's id"), p.number(message[5], "the generation")
        ranges = p.ranges(message[6:])
        if topic.id != topic_id or not isinstance(topic, BroadcastTopic):
            raise TopicError(f"{topic.name!r} is not a broadcast topic with the id {topic_id}")
        group = topic.group(_group_name(message[4]))
        # The acks of an earlier generation would undo a part of the move that has ended it.
        self._ack_late(tag, topic, group, ranges if generation == group.queue.generation else [])

    def _ack_late(self, tag: bytes, topic: Topic, work: TopicQueue, ranges: list[tuple[int, int]]) -> None:
        for held in self.tags.values():
            if isinstance(held, ConsumerSink) and held.reader in work.consumers:
                held.reader.ack(ranges)
        for first, last in ranges:
            work.ack_late(first, last)
        topic.flush(lambda error: self._answer(tag, error, p.REACKED, tag))

    def _cancel(self, tag: bytes, _: list[bytes]) -> None:
        held = self.tags.pop(tag, None)
        self._opening.pop(tag, None)
        if held is not None:
            held.end()
        elif tag in self._publishing:
            self._cancelled.add(tag)
        self.put((p.CANCELLED, tag))

    # ------------------------------------------------------------------ reading

    def _readable_topic(self, part: bytes) -> Topic:
        """Returns the topic with the name in a part, which the client may read here."""
        topic = self.topic(part, "subscribe")
        self.broker.check_readable(topic)
        return topic

    def _read(self, tag: bytes, message: list[bytes]) -> None:
        topic = self._readable_topic(message[2])
        start = p.number(message[3], "start") or 1
        stop = p.number(message[4], "stop")
        read = RangeRead(tag, topic, start, stop, p.short_number(message[5], "bytes"))
        if not self._reads and self.has_room():
            answer_read(self.broker.store.store, read, self.put)
            return
        if len(self._reads) >= _MAX_READS:
            raise Busy(f"{len(self._reads)} READs of this connection wait for their answers; read these first")
        self._reads.append(read)

    def _offset_after(self, tag: bytes, message: list[bytes]) -> None:
        topic = self._readable_topic(message[2])
        start, stop, size = map(p.number, message[3:6], ("start", "stop", "bytes"))
        self.put((p.OFFSET, tag, *map(p.u64, offset_after(self.broker.store.store, topic, start or 1, stop, size))))

    def _offset_at(self, tag: bytes, message: list[bytes]) -> None:
        found = self._readable_topic(message[2]).offset_at(p.number(message[3], "the time"))
        self.put((p.OFFSET, tag, *map(p.u64, found[:3])))

    # ------------------------------------------------------------------ topics and durable subscriptions

    def _create(self, tag: bytes, message: list[bytes]) -> None:
        """Creates a topic, or finds it with the same settings."""
        arguments = p.json_object(message, 2)
        name, settings = p.name_and_settings(arguments)
        delivery, persistence = arguments.get("delivery", "broadcast"), arguments.get("persistence", "strong")
        self.check_permission("create", name)
        if name not in self.broker.topics:
            self._check_dead_letter(name, str(delivery), settings)

        async def create() -> None:
            topic = await self.broker.create(
                name, delivery=str(delivery), persistence=str(persistence), settings=settings, client=self
            )
            self.put((p.CREATED, tag, topic.info()))

        self._run(tag, create())

    def _check_dead_letter(self, name: str, delivery: str, settings: dict[str, Any]) -> None:
        """Checks that the client may have the topic's dead letters in their topic."""
        target = dead_letter_of(name, delivery, settings)
        if target is not None:
            self._check_target(target)

    def _check_target(self, target: str) -> None:
        """Checks that the client may publish to a dead-letter topic, and create it if it does not exist."""
        self.check_permission("publish", target)
        if target not in self.broker.topics:
            self.check_permission("create", target)

    def _alter(self, tag: bytes, message: list[bytes]) -> None:
        """Changes settings of a topic."""
        arguments = p.json_object(message, 2)
        name, settings = p.name_and_settings(arguments)
        force = p.flag(arguments, "force")
        self.check_permission("admin", name)

        async def alter() -> None:
            topic = await self.broker.alter(name, settings, force=force, check_target=self._check_target, client=self)
            self.put((p.ALTERED, tag, topic.info()))

        self._run(tag, alter())

    def _delete(self, tag: bytes, message: list[bytes]) -> None:
        """Deletes a topic with all its messages."""
        name = p.topic_name(message[2])
        self.check_permission("delete", name)
        self._run(tag, self.broker.delete(name, self), p.DELETED)

    def _topics(self, tag: bytes, message: list[bytes]) -> None:
        """Sends the topics on which the client has at least one permission."""
        granted = self.broker.permissions.granted
        if p.optional(message, 2):
            name = p.topic_name(message[2])
            if not granted(self.user, name):
                raise PermissionDenied(f"{self.user or 'a client without a name'} has no permission for {name!r}")
            self.put((p.TOPICS, tag, b"[" + self.broker.topic(name).info() + b"]"))
            return

        async def list_topics() -> None:
            infos: list[bytes] = []
            # The sessions take turns, and each list yields to the loop, so that other requests do not wait.
            async with self.listing_lock, self.broker.listing_lock:
                for number, name in enumerate(sorted(self.broker.topics), 1):
                    if not self.alive:
                        return
                    topic = self.broker.topics.get(name)
                    if topic is not None and granted(self.user, name):
                        infos.append(topic.info())
                    if number % _LIST_BATCH == 0:
                        await asyncio.sleep(0)
            self.put((p.TOPICS, tag, b"[" + b",".join(infos) + b"]"))

        self._run(tag, list_topics())

    def _durables(self, tag: bytes, message: list[bytes]) -> None:
        """Sends the durable subscriptions of a topic."""
        topic = self.topic(message[2], "subscribe")
        self.put((p.DURABLES, tag, p.pack_json(sorted(topic.durables(), key=lambda one: one["name"]))))

    def _delete_durable(self, tag: bytes, message: list[bytes]) -> None:
        """Deletes a durable subscription."""
        topic = self.topic(message[2], "subscribe")
        name = _reader_name(message[3], "a subscription's name")
        if not isinstance(topic, BroadcastTopic):
            raise TopicError(f"{topic.name!r} is a round-robin topic: it has no durable subscriptions")
        self._run(tag, topic.delete_durable(name), p.DURABLE_DELETED)

    def _groups(self, tag: bytes, message: list[bytes]) -> None:
        """Sends the consumer groups of a topic."""
        topic = self.topic(message[2], "consume")
        self.put((p.GROUPS, tag, p.pack_json(sorted(topic.group_stats(), key=lambda one: one["name"]))))

    def _seek_group(self, tag: bytes, message: list[bytes]) -> None:
        """Moves a consumer group."""
        topic = self._broadcast_topic(message[2])
        replay = _read_replay(p.json_object(message, 4).get("replay"))
        self._run(tag, topic.seek_group(_group_name(message[3]), replay), p.GROUP_MOVED)

    def _delete_group(self, tag: bytes, message: list[bytes]) -> None:
        """Deletes a consumer group."""
        topic = self._broadcast_topic(message[2])
        self._run(tag, topic.delete_group(_group_name(message[3])), p.GROUP_DELETED)

    def _broadcast_topic(self, part: bytes) -> BroadcastTopic:
        """Returns the topic with the name in a part, which the client may consume and which may have groups."""
        topic = self.topic(part, "consume")
        if not isinstance(topic, BroadcastTopic):
            raise TopicError(f"{topic.name!r} is a round-robin topic: it has no consumer groups")
        return topic

    # ------------------------------------------------------------------ dropping and moving messages

    def _purge(self, tag: bytes, message: list[bytes]) -> None:
        topic, up_to = self.topic(message[2], "admin"), _up_to(message)

        async def purge() -> None:
            self.put((p.PURGED, tag, p.u64(await self.broker.purge(topic, up_to, self))))

        self._run(tag, purge())

    def _requeue(self, tag: bytes, message: list[bytes]) -> None:
        """Moves dead letters, which the client could also publish itself to the topics that they came from."""
        topic, up_to = self.topic(message[2], "admin"), _up_to(message)
        to = p.topic_name(message[4]) if p.optional(message, 4) else None

        def check(name: str) -> None:
            if not self.broker.permissions.allows(self.user, "admin", name):
                self.check_permission("publish", name)

        async def requeue() -> None:
            moved = await self.broker.requeue(topic, up_to, to, check, self)
            self.put((p.REQUEUED, tag, *map(p.u64, moved)))

        self._run(tag, requeue())

    #: The method of a command, and the minimum and maximum number of parts after its tag.
    _HANDLERS: ClassVar[dict[bytes, tuple[Callable[[ClientSession, bytes, list[bytes]], None], int, int]]] = {
        p.HELLO: (_hello, 1, 1),
        p.BYE: (_bye, 0, 0),
        p.FLUSH: (_flush, 0, 0),
        p.PING: (_ping, 0, 0),
        p.PUBLISH: (_publish, 2, 6),
        p.APPEND: (_append, 2, 6),
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
        p.REACK: (_reack, 3, p.MAX_PARTS),
        p.REACK_GROUP: (_reack_group, 5, p.MAX_PARTS),
        p.READ: (_read, 4, 4),
        p.OFFSET_AFTER: (_offset_after, 4, 4),
        p.OFFSET_AT: (_offset_at, 2, 2),
        p.CREATE: (_create, 1, 1),
        p.ALTER: (_alter, 1, 1),
        p.DELETE: (_delete, 1, 1),
        p.TOPICS: (_topics, 0, 1),
        p.DURABLES: (_durables, 1, 1),
        p.DELETE_DURABLE: (_delete_durable, 2, 2),
        p.GROUPS: (_groups, 1, 1),
        p.SEEK_GROUP: (_seek_group, 3, 3),
        p.DELETE_GROUP: (_delete_group, 2, 2),
        p.PURGE: (_purge, 1, 2),
        p.REQUEUE: (_requeue, 1, 3),
    }


def _up_to(message: list[bytes]) -> int | None:
    """Decodes the optional last id of a PURGE or REQUEUE."""
    part = p.optional(message, 3)
    return p.number(part, "up_to") if part else None


def _group_name(part: bytes) -> str:
    return _reader_name(part, "a group's name")


def _reader_name(part: bytes, what: str) -> str:
    """Decodes the name of a durable subscription or group that should exist, so its characters are not checked."""
    if len(part) > p.MAX_NAME_BYTES:
        raise TopicError(f"{what} has {len(part)} bytes; at most {p.MAX_NAME_BYTES} are allowed")
    return part.decode("utf-8", "replace")
