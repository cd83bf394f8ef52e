"""The state of a client of a broker, without I/O: requests in flight, subscriptions and consumers.

A twin opens a connection, calls `connected`, sends the messages in `out`, and passes received messages to `receive`.
When the connection ends it calls `lost` and opens the next one. Unanswered requests are then sent again with their old
sequences, so the broker stores nothing twice. Subscriptions resume after the last id that has arrived. Consumers start
over, because the broker has requeued their deliveries. Acknowledgements that no flush has confirmed as durable are
repeated first, by REACK.

Nothing here waits or locks: the twin does. It may set `wake` of a request or a stream to a function, which is called
at the next change.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count
from typing import Any, Final, NamedTuple, Self

from omq.broker import protocol
from omq.broker.client.stream_state import (
    Acked,
    AckTarget,
    Block,
    ConsumerState,
    LaterMessage,
    Replay,
    StreamState,
    SubscriptionState,
)
from omq.broker.errors import BrokerError, Busy, NotLeader, Overrun, SyntaxFault, TopicError, VersionFault, error_for
from omq.broker.protocol import pack_json, packed_ranges, read_json, u64
from omq.broker.types import Message
from omq.errors import ClosedError, OmqError
from omq.ranges import ranges_of

BLOCK_BYTES: Final = 128 << 10  #: The approximate bytes of records in one request of a pipeline.
BLOCK_RECORDS: Final = 256  #: The maximum number of records in one request of a pipeline.
MAX_IN_FLIGHT_REQUESTS: Final = 64  #: The maximum number of unanswered requests of `publish_many` and `stage`.
#: The maximum number of bytes of unanswered records; a single request may have more.
MAX_IN_FLIGHT_BYTES: Final = 8 << 20

_ANSWERS: Final = {
    protocol.HELLO: protocol.WELCOME,
    protocol.BYE: protocol.BYE,
    protocol.FLUSH: protocol.FLUSHED,
    protocol.PING: protocol.PONG,
    protocol.APPEND: protocol.PUBLISHED,
    protocol.STAGE: protocol.STAGED,
    protocol.COMMIT: protocol.COMMITTED,
    protocol.ABORT: protocol.ABORTED,
    protocol.SUBSCRIBE: protocol.SUBSCRIBED,
    protocol.CONSUME: protocol.CONSUMING,
    protocol.CANCEL: protocol.CANCELLED,
    protocol.READ: protocol.RANGE,
    protocol.OFFSET_AFTER: protocol.OFFSET,
    protocol.OFFSET_AT: protocol.OFFSET,
    protocol.CREATE: protocol.CREATED,
    protocol.ALTER: protocol.ALTERED,
    protocol.DELETE: protocol.DELETED,
    protocol.TOPICS: protocol.TOPICS,
    protocol.DURABLES: protocol.DURABLES,
    protocol.DELETE_DURABLE: protocol.DURABLE_DELETED,
    protocol.PURGE: protocol.PURGED,
    protocol.REQUEUE: protocol.REQUEUED,
    protocol.REACK: protocol.REACKED,
    protocol.REACK_GROUP: protocol.REACKED,
    protocol.GROUPS: protocol.GROUPS,
    protocol.SEEK_GROUP: protocol.GROUP_MOVED,
    protocol.DELETE_GROUP: protocol.GROUP_DELETED,
}
#: Commands that repeat acknowledgements.
_REACKING: Final = {protocol.REACK, protocol.REACK_GROUP}
#: Commands that remove something: a repetition that finds nothing means that the first one succeeded.
_REMOVING: Final = {protocol.DELETE, protocol.DELETE_DURABLE, protocol.DELETE_GROUP}
#: Unconfirmed acknowledgements of a consumer after which the client flushes, to bound its memory.
_MAX_UNCONFIRMED_ACKS: Final = 16_384
#: Requests that the broker may keep until there is room for what they publish.
_MAY_WAIT_FOR_ROOM: Final = {protocol.APPEND, protocol.COMMIT}
#: Commands that have no meaning in another connection.
_SESSION_BOUND: Final = {protocol.HELLO, protocol.BYE, protocol.CANCEL}

_MIN_RETRY_DELAY_S: Final = 0.02
_MAX_RETRY_DELAY_S: Final = 1.0


class State(Enum):
    """The progress of a connection."""

    DOWN = "not connected"
    GREETING = "HELLO was sent"
    UP = "the broker has answered"


class ClusterInfo(NamedTuple):
    """The cluster of a broker, as its `WELCOME` has it.

    Attributes:
        name: The name of the cluster.
        role: The role of the broker: `leader` or `follower`.
        leader: The endpoints of the leader; empty if the broker knows none.
        members: The endpoints of the members.
        trouble: The reason for which the broker takes no part in the cluster now; empty if it does.
    """

    name: str
    role: str
    leader: tuple[str, ...]
    members: tuple[str, ...]
    trouble: str = ""

    @classmethod
    def read(cls, about: dict[str, Any]) -> Self:
        """Returns the cluster of a `WELCOME`. Raises `LookupError`, `TypeError` or `ValueError` if it is not valid."""
        leader, members = (tuple(about.get(key, ())) for key in ("leader", "members"))
        if not all(isinstance(endpoint, str) for endpoint in (*leader, *members)):
            raise ValueError("an endpoint of the cluster is not a string")
        return cls(str(about["name"]), str(about["role"]), leader, members, str(about.get("trouble", "")))

    @property
    def is_led_here(self) -> bool:
        """Returns whether the broker is the leader."""
        return self.role == "leader"

    def __str__(self) -> str:
        leader = f"whose leader is {', '.join(self.leader)}" if self.leader else "which has no leader now"
        if self.trouble and not self.leader:
            leader += f" ({self.trouble:.400})"
        return f"a follower of the cluster {self.name!r:.80}, {leader}"


class LeaderElsewhere(Exception):
    """Raised when the broker does not serve this client, as it is not the leader of its cluster; with the reason."""


class PendingRequest:
    """A request to the broker.

    Attributes:
        command: The command.
        done: True once the request has an `answer` or an `error`, or was given up.
        answer: The parts of the answer after its tag.
        error: The error in place of an answer; `None` without one.
        wake: A function to call once the request is done; `None` for none.
        session: The number of the connection in which a flush confirms acknowledgements; 0 for none.
    """

    __slots__ = (
        "acked",
        "answer",
        "command",
        "done",
        "error",
        "message_id",
        "parts",
        "repeated",
        "sent",
        "sequence",
        "session",
        "size",
        "stream",
        "tag",
        "wake",
    )

    def __init__(self, command: bytes, tag: bytes, parts: tuple[bytes, ...]) -> None:
        self.command = command
        self.tag = tag
        self.parts = parts
        self.sequence = 0  # of an APPEND
        self.message_id = b""  # of an APPEND
        self.size = 0  # bytes of its records
        self.stream: StreamState | None = None  # that it begins
        self.acked: list[Acked] = []  # that the answer to a FLUSH confirms
        self.session = 0
        self.sent = False
        self.repeated = False  # sent in an earlier connection, too
        self.done = False
        self.answer: list[bytes] = []
        self.error: OmqError | None = None
        self.wake: Callable[[], None] | None = None

    def result(self) -> list[bytes]:
        """Returns the answer.

        Raises:
            BrokerError: The broker has refused the request.
            ClosedError: The client was closed.
        """
        if self.error is not None:
            raise self.error
        return self.answer

    def finish(self, answer: list[bytes], error: OmqError | None = None) -> None:
        """Ends the request with an answer or an error, and calls `wake`."""
        self.done, self.answer, self.error, self.parts = True, answer, error, ()
        if self.wake is not None:
            self.wake()


class RetryBackoff:
    """Delays between attempts: longer each time, until one succeeds."""

    def __init__(self) -> None:
        self._delay = 0.0

    @property
    def active(self) -> bool:
        """Returns whether an attempt has failed since the last success."""
        return self._delay > 0

    def next(self) -> float:
        """Returns the seconds until the next attempt."""
        self._delay = min(max(2 * self._delay, _MIN_RETRY_DELAY_S), _MAX_RETRY_DELAY_S)
        # Jitter, so that the clients of a restarted broker do not connect all at once.
        return self._delay * random.uniform(0.75, 1.0)

    def reset(self) -> None:
        """Starts again with the shortest delay, after an attempt has succeeded."""
        self._delay = 0.0


class ClientProtocol:
    """The client's side of the protocol.

    Args:
        client: The client's id, 16 random bytes.
        follows_leader: True makes the client leave a broker that does not lead its cluster.

    Attributes:
        out: Messages to send, in order; a twin takes them from the left.
        state: The progress of the connection.
        session: The number of connections so far.
        broker: The id of the broker's store; empty before the first connection.
        cluster: The cluster of the broker; `None` before its `WELCOME`, or if it is in none.
        max_body: The largest body that the broker accepts, in bytes.
        in_flight_bytes: The bytes of records that wait for their answers.
        fault: The error after which this client cannot use this broker; `None` without one.
        flushing: The last flush that was requested, which may have finished; `None` before the first.
        unsent_consumers: The consumers with unsent acknowledgements.
        busy_backoff: The delays before requests to a busy broker are repeated.
    """

    def __init__(self, client: bytes, follows_leader: bool = True) -> None:
        self.client = client
        self.follows_leader = follows_leader
        self.cluster: ClusterInfo | None = None
        self._cluster_name = ""  # of all brokers from the first one on that is in a cluster
        self.out: deque[list[bytes]] = deque()
        self.state = State.DOWN
        self.session = 0
        self.broker = ""
        self.max_body = protocol.MAX_BODY_BYTES
        self.in_flight_bytes = 0
        self._in_flight_requests = 0  # requests with records that wait for their answers
        self.fault: OmqError | None = None
        self.busy_backoff = RetryBackoff()
        self._requests: dict[bytes, PendingRequest] = {}
        self._streams: dict[bytes, StreamState] = {}
        self.unsent_consumers: list[ConsumerState] = []
        self._appends: dict[int, PendingRequest] = {}  # by sequence, which grows
        self._busy: set[bytes] = set()  # tags of requests that are to be repeated
        self.flushing: PendingRequest | None = None
        self._changed = False  # an acknowledgement or a cursor was not flushed
        self._unconfirmed: list[Acked] = []  # of consumers that have ended
        self._reack_tags: set[bytes] = set()  # of acknowledgements that are being repeated
        self._tags = count(1)
        self._sequences = count(1)

    # ------------------------------------------------------------------ the connection

    def connected(self) -> None:
        """Starts the session of a new connection."""
        self.lost()
        self.state = State.GREETING
        self.cluster = None
        self.session += 1
        hello = PendingRequest(protocol.HELLO, self._tag(), ())
        self._requests[hello.tag] = hello
        self._queue_message(
            protocol.HELLO, hello.tag, pack_json({"version": protocol.VERSION, "client": self.client.hex()})
        )

    def lost(self) -> None:
        """Ends the session of a lost connection."""
        if self.state is State.DOWN:
            return
        self.state = State.DOWN
        self.out.clear()
        self._busy.clear()  # the next connection makes every request again
        for request in list(self._requests.values()):
            if request.command in _SESSION_BOUND:
                self._finish(request, [])
            elif request.stream is not None and request.stream.began:
                del self._requests[request.tag]  # `_handle_welcome` resumes its stream
        for stream in self._streams.values():
            stream.interrupt()

    def fail(self, error: OmqError) -> None:
        """Fails every call with an error after which this client cannot use this broker."""
        self.fault = error
        for stream in list(self._streams.values()):
            stream.end(error)
        self._streams.clear()
        for request in list(self._requests.values()):
            self._finish(request, [], error)

    def receive(self, parts: bytes | list[bytes]) -> None:
        """Handles a message of the broker.

        Raises:
            SyntaxFault: The message violates the protocol: the caller must drop the connection.
            LeaderElsewhere: The broker is not, or no longer, the leader: the caller must drop the connection at once,
                as later answers do not count.
        """
        try:
            if isinstance(parts, bytes):
                raise ValueError("it has one part")
            command, tag = parts[0], parts[1]
            if command in (protocol.BLOCK, protocol.JOBS):
                if (stream := self._streams.get(tag)) is not None and not stream.ended:
                    counts = parts[4] if len(parts) > 4 else b""
                    self._queue_reply(stream.handle_block(parts[2], parts[3], counts))
            elif command == protocol.ERROR:
                self._handle_error(tag, _error(parts))
            elif (request := self._requests.get(tag)) is not None and _ANSWERS[request.command] == command:
                self._handle_answer(request, parts[2:])
            # Any other tag is of a request or stream that was given up.
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, BrokerError) as error:
            raise SyntaxFault(f"the broker sent a message that is not valid in its protocol: {error}") from error

    def _handle_answer(self, request: PendingRequest, answer: list[bytes]) -> None:
        if request.command == protocol.HELLO:
            self._handle_welcome(read_json(answer[0]))
        elif request.stream is not None:
            about = read_json(answer[0])
            if not request.stream.is_same_topic(about):
                self._handle_replaced_topic(request, request.stream)
                return
            for message in request.stream.handle_started(about, self.session):
                self._queue_reply(message)
                self._changed = True
        else:
            self.busy_backoff.reset()
        self._finish(request, answer)

    def _handle_replaced_topic(self, request: PendingRequest, stream: StreamState) -> None:
        """Ends a stream whose topic was deleted and created again while the client was not connected."""
        error = TopicError(f"topic {stream.topic!r} was deleted and created again")
        self._remove(stream.tag)
        stream.end(error)
        self._finish(request, [], error)
        self._enter(PendingRequest(protocol.CANCEL, stream.tag, ()))

    def _handle_welcome(self, about: dict[str, Any]) -> None:
        if about.get("version", protocol.VERSION) != protocol.VERSION:
            theirs = about["version"]
            self.fail(VersionFault(f"the broker has version {theirs!r:.40} of the protocol, not {protocol.VERSION}"))
            return
        cluster = ClusterInfo.read(about["cluster"]) if "cluster" in about else None
        self._check_cluster("" if cluster is None else cluster.name)
        self.cluster = cluster
        if self.follows_leader and self.cluster is not None and not self.cluster.is_led_here:
            raise LeaderElsewhere(str(self.cluster))
        self.state = State.UP
        before, self.broker = self.broker, str(about.get("broker", self.broker))
        if before and before != self.broker:
            # The broker has another store, with other ids.
            for stream in self._streams.values():
                stream.renumber(self.session)
            self._drop_acks()
        self.max_body = int(about.get("max_body", self.max_body))
        self._reack_all()
        for request in [one for one in self._requests.values() if one.done]:
            self._drop(request)
        waiting = [one for one in self._requests.values() if one.command not in {protocol.HELLO, *_REACKING}]
        for stream in self._streams.values():
            if stream.began and not stream.ended:
                self._begin(stream)
        for request in waiting:
            request.repeated = request.sent
            self._send(request)

    def _check_cluster(self, name: str) -> None:
        """Refuses a broker of another cluster, which has other messages; so its members are not tried either."""
        self._cluster_name = self._cluster_name or name
        if name != self._cluster_name:
            found = f"a broker of the cluster {name!r:.80}" if name else "a broker without a cluster"
            raise LeaderElsewhere(
                f"{found}, and others are of {self._cluster_name!r:.80}: give endpoints of one cluster"
            )

    def _handle_error(self, tag: bytes, error: BrokerError) -> None:
        if isinstance(error, NotLeader) and self.follows_leader:
            raise LeaderElsewhere(str(error))
        request = self._requests.get(tag)
        if request is None:
            if (stream := self._remove(tag)) is not None:
                stream.end(error)
            return
        if request.command == protocol.HELLO:
            self.fail(error)
        elif request.stream is not None:
            if isinstance(error, Overrun) and error.first and request.stream.start_over(error.first - 1):
                self._finish(request, [])
                self._begin(request.stream)
                return
            self._remove(tag)
            request.stream.end(error)
        elif isinstance(error, Busy):
            self._busy.add(tag)  # nothing was done
            return
        elif request.command in _REMOVING and request.repeated and isinstance(error, TopicError):
            self._finish(request, [])
            return
        self._finish(request, [], error)

    # ------------------------------------------------------------------ requests

    def request(self, command: bytes, *parts: bytes) -> PendingRequest:
        """Makes a request."""
        return self._enter(PendingRequest(command, self._tag(), parts))

    def append(self, topic: str, records: bytes, message_id: bytes = b"") -> PendingRequest:
        """Publishes records; `read_first` reads the answer.

        Args:
            topic: The topic's name.
            records: The records; with a message id a single one.
            message_id: The idempotency key; empty for none.

        Raises:
            TopicError: The name of the topic is not valid.
        """
        request = PendingRequest(
            protocol.APPEND, self._tag(), (protocol.check_name(topic).encode(), records, self.client)
        )
        request.sequence, request.size, request.message_id = next(self._sequences), len(records), message_id
        return self._enter_publish(request)

    def stage(self, topic: str, records: bytes, stage: bytes, sequence: int) -> PendingRequest:
        """Stages records under a name; raises as `append`."""
        parts = protocol.check_name(topic).encode(), records, stage, u64(sequence)
        request = PendingRequest(protocol.STAGE, self._tag(), parts)
        request.size = len(records)
        return self._enter_publish(request)

    def _enter_publish(self, request: PendingRequest) -> PendingRequest:
        # No call stands between these, as a signal handler may raise there: see `give_up_since`.
        self._requests[request.tag] = request
        if request.sequence:
            self._appends[request.sequence] = request
        self.in_flight_bytes += request.size
        self._in_flight_requests += 1
        return self._enter(request)

    def has_room(self, size: int) -> bool:
        """Returns whether records of *size* bytes may be sent in addition to those in flight."""
        return not self._in_flight_requests or self.in_flight_bytes + size <= MAX_IN_FLIGHT_BYTES

    def may_send(self, size: int) -> bool:
        """Returns whether a pipeline may send one more request, with records of *size* bytes."""
        return self._in_flight_requests < MAX_IN_FLIGHT_REQUESTS and self.has_room(size)

    def flush(self) -> PendingRequest:
        """Requests that earlier acknowledgements become durable.

        The answer confirms it, unless the client has reconnected meanwhile. Then they are durable once `resuming` is
        false and, if `dirty` is true, after a second flush.
        """
        self.queue_acks()
        request = self._flush()
        self._changed = False
        return request

    def _flush(self) -> PendingRequest:
        request = PendingRequest(protocol.FLUSH, self._tag(), ())
        # Streams that resume may send acknowledgements and positions, which this flush does not cover.
        request.session = 0 if self.state is not State.UP or self.resuming else self.session
        self._requests[request.tag] = request  # first: a signal handler may raise, see `give_up_since`
        request.acked = self._take_unconfirmed()
        self.flushing = request
        return self._enter(request)

    @property
    def dirty(self) -> bool:
        """Returns whether acknowledgements or cursors may not be durable before another flush."""
        return self._changed or bool(self._reack_tags)

    @property
    def is_busy(self) -> bool:
        """Returns whether the broker has refused requests as busy: `repeat` is due after a `busy_backoff`."""
        return bool(self._busy)

    def repeat(self) -> None:
        """Repeats the requests that the broker has refused as busy, in their order."""
        busy, self._busy = self._busy, set()
        for request in self._requests.values():
            if request.tag in busy:
                self._send(request)

    @property
    def resuming(self) -> bool:
        """Returns whether a resumed stream or a repeated acknowledgement is unconfirmed."""
        return bool(self._reack_tags) or any(request.stream is not None for request in self._requests.values())

    def give_up(self, request: PendingRequest) -> None:
        """Drops a request for which no call waits: it is not repeated, and its answer is ignored."""
        if request.stream is not None:
            self.cancel(request.stream)
        elif request.done:
            self._drop(request)  # a signal handler has raised before `_finish` could
        else:
            may_wait = request.sent and request.tag in self._requests and request.tag not in self._busy
            self._drop(request)
            self._abandon(request)
            request.done = True  # another call may wait for this FLUSH
            self.out = deque(one for one in self.out if one[1] != request.tag or one[0] == protocol.CANCEL)
            if may_wait and self.state is State.UP and request.command in _MAY_WAIT_FOR_ROOM:
                self._queue_message(protocol.CANCEL, request.tag)

    def give_up_since(self, mark: bytes) -> None:
        """Gives up the requests and streams that were made after a `mark`."""
        for request in list(self._requests.values()):
            if request.tag > mark:
                self.give_up(request)
        for tag in [tag for tag in self._streams if tag > mark]:
            self.cancel(self._streams[tag])

    def mark(self) -> bytes:
        """Returns a tag that is lower than those of later requests; see `give_up_since`."""
        return self._tag()

    # ------------------------------------------------------------------ subscriptions and consumers

    def subscribe(
        self, topic: str, replay: Replay | None, name: str | None, credit: int, take_over: bool = False
    ) -> tuple[SubscriptionState, PendingRequest]:
        """Subscribes to a broadcast topic; see `omq.broker.Client.subscribe`.

        Raises:
            TopicError: The name of the topic is not valid.
        """
        stream = SubscriptionState(self._tag(), protocol.check_name(topic), replay, name, credit, take_over)
        return stream, self._open(stream)

    def consume(
        self, topic: str, ack_timeout: float, credit: int, group: str | None = None, replay: Replay | None = None
    ) -> tuple[ConsumerState, PendingRequest]:
        """Adds a consumer; see `omq.broker.Client.consume`. Raises as `subscribe`."""
        stream = ConsumerState(self._tag(), protocol.check_name(topic), ack_timeout, credit, group, replay)
        return stream, self._open(stream)

    def take_block(self, stream: StreamState) -> Block | None:
        """Returns the next block of a stream; `None` if the queue is empty."""
        if not stream.queue:
            return None
        block = stream.queue.popleft()
        self._queue_reply(stream.block_taken(block[1]))
        return block

    def ack_or_nack(
        self, stream: ConsumerState, session: int, ids: Sequence[int], acked: bool, delay: float | None = None
    ) -> None:
        """Acknowledges messages, or requests their redelivery.

        Args:
            stream: The consumer.
            session: The number of the connection in which the messages were delivered.
            ids: The ids of the messages.
            acked: True acknowledges; false requests redelivery.
            delay: Seconds before the redelivery; `None` for the topic's `retry_delay`.
        """
        self.queue_acks()  # to keep the order
        if session < stream.first_session or not ids:
            return  # messages of an earlier store or generation
        for message_id in ids:
            stream.remember(message_id, acked)
        if session == self.session and stream.in_force:
            first = [protocol.ACK, stream.tag] if acked else [protocol.NACK, stream.tag]
            if delay is not None:
                first.append(protocol.pack_delay(delay))
            self.out += [[*first, part] for part in _parts(ids)]
            self._changed = True
            if acked:
                stream.unconfirmed += ids
                self._limit_unconfirmed(stream)
        elif acked:
            self._ack_earlier_session(stream, ids)

    def progress(self, stream: ConsumerState, session: int, message_id: int) -> None:
        """Restarts the `ack_timeout` of a message, if the broker still has it as delivered."""
        self.queue_acks()
        if session == self.session and stream.in_force:
            self._queue_message(protocol.PROGRESS, stream.tag, *_parts((message_id,)))
            self._changed = True

    def add_ack(self, stream: ConsumerState, session: int, message_id: int) -> bool:
        """Acknowledges a message, in one request with others.

        Args:
            stream: The consumer.
            session: The number of the connection in which the message was delivered.
            message_id: The id of the message.

        Returns:
            True if `queue_acks` is due at once. Else it is due soon, and before any wait.
        """
        if session < stream.first_session:
            return False  # a message of an earlier store or generation
        stream.remember(message_id, True)
        if session != self.session or not stream.in_force:
            self._ack_earlier_session(stream, [message_id])
            return False
        self._changed = True
        if not stream.unsent_acks:
            self.unsent_consumers.append(stream)
        stream.unsent_acks.append(message_id)
        return len(stream.unsent_acks) >= stream.ack_batch

    def queue_acks(self) -> None:
        """Queues the unsent acknowledgements for sending."""
        for stream in self.unsent_consumers:
            if stream.unsent_acks and stream.in_force:
                for part in _parts(stream.unsent_acks):
                    self._queue_message(protocol.ACK, stream.tag, part)
                stream.unconfirmed += stream.unsent_acks
                self._limit_unconfirmed(stream)
            stream.unsent_acks.clear()
        self.unsent_consumers.clear()

    # ------------------------------------------------------------------ unconfirmed acknowledgements

    def _limit_unconfirmed(self, stream: ConsumerState) -> None:
        """Flushes acknowledgements once there are many, to bound the memory that they take."""
        if len(stream.unconfirmed) >= _MAX_UNCONFIRMED_ACKS:
            self._flush()

    def _ack_earlier_session(self, stream: ConsumerState, ids: Sequence[int]) -> None:
        """Acknowledges deliveries of an earlier connection, which the broker has requeued."""
        self._changed = True
        if self.state is State.UP:
            self._reack(stream.ack_target, ids)
        else:
            stream.unconfirmed += ids

    def _reack(self, target: AckTarget, ids: Sequence[int]) -> None:
        """Repeats acknowledgements by REACK or REACK_GROUP; its answer confirms them."""
        command = protocol.REACK_GROUP if target.group else protocol.REACK
        names = [target.topic.encode(), u64(target.topic_id)]
        if target.group:
            names += [target.group.encode(), u64(target.generation)]
        for part in _parts(ids):
            request = PendingRequest(command, self._tag(), (*names, part))
            self._reack_tags.add(request.tag)
            self._enter(request)

    def _reack_all(self) -> None:
        """Repeats the acknowledgements that may have been lost, as the first requests of a new connection."""
        for tag in sorted(self._reack_tags):
            self._send(self._requests[tag])
        acked = self._take_unconfirmed()
        for request in self._requests.values():
            acked += request.acked  # an answer in another connection does not confirm them
            request.acked = []
        together: dict[AckTarget, list[int]] = {}
        for target, ids in acked:
            together.setdefault(target, []).extend(ids)
        for target, ids in together.items():
            self._reack(target, ids)

    def _take_unconfirmed(self) -> list[Acked]:
        for stream in self._streams.values():
            if isinstance(stream, ConsumerState):
                self._unconfirmed += stream.take_unconfirmed()
        found, self._unconfirmed = self._unconfirmed, []  # in one statement, as a signal handler may raise
        return found

    def _drop_acks(self) -> None:
        """Drops the acknowledgements of another store."""
        self._unconfirmed.clear()
        for request in list(self._requests.values()):
            request.acked = []
            if request.command in _REACKING:
                self._finish(request, [])

    def _abandon(self, request: PendingRequest) -> None:
        """Ends a request without an answer."""
        if request.command == protocol.FLUSH:
            self._changed = True  # the next flush covers the acknowledgements of this one
            self._unconfirmed += request.acked

    def move(self, stream: SubscriptionState, message: Message | int) -> None:
        """Moves the cursor of a durable subscription to a message, or an id."""
        position = message if isinstance(message, int) else message.id
        if stream.first_session and (
            position > stream.last or (isinstance(message, Message) and _store(message) != stream.first_session)
        ):
            return  # a message of an earlier store
        stream.position = position
        self._changed = True
        if stream.in_force:
            self._queue_message(protocol.POSITION, stream.tag, u64(position))

    def cancel(self, stream: StreamState) -> PendingRequest | None:
        """Ends a stream; returns the CANCEL request, or `None` if the broker does not know the stream."""
        self.queue_acks()
        self._return_undelivered(stream)
        known = self._remove(stream.tag) is not None
        pending = self._requests.pop(stream.tag, None)
        stream.end(None)
        if pending is not None:
            pending.finish([])
        if not known or self.state is not State.UP:
            return None
        return self._enter(PendingRequest(protocol.CANCEL, stream.tag, ()))

    def return_undelivered(self) -> None:
        """Returns deliveries that no caller has received to the broker."""
        for stream in self._streams.values():
            self._return_undelivered(stream)

    def _return_undelivered(self, stream: StreamState) -> None:
        if not isinstance(stream, ConsumerState):
            return
        undelivered_ids = stream.undelivered_ids(self.session)
        if not stream.in_force:
            return  # the broker has requeued them
        acked = [message_id for message_id in undelivered_ids if stream.is_acked(message_id)]
        rest = [message_id for message_id in undelivered_ids if not stream.is_acked(message_id)]
        for command, ids in ((protocol.ACK, acked), (protocol.RETURN, rest)):
            for part in _parts(ids):
                self._queue_message(command, stream.tag, part)

    def close(self) -> None:
        """Ends all streams and requests."""
        self.lost()
        for stream in list(self._streams.values()):
            stream.end(None)
        self._streams.clear()
        for request in list(self._requests.values()):
            self._finish(request, [], ClosedError("the client is closed"))

    def _open(self, stream: StreamState) -> PendingRequest:
        self._streams[stream.tag] = stream
        return self._begin(stream)

    def _remove(self, tag: bytes) -> StreamState | None:
        stream = self._streams.pop(tag, None)
        if isinstance(stream, ConsumerState):
            self._unconfirmed += stream.take_unconfirmed()
        return stream

    def _begin(self, stream: StreamState) -> PendingRequest:
        request = PendingRequest(stream.command, stream.tag, (stream.topic.encode(), pack_json(stream.begin())))
        request.stream = stream
        return self._enter(request)

    # ------------------------------------------------------------------ messages

    def _tag(self) -> bytes:
        return u64(next(self._tags))

    def _enter(self, request: PendingRequest) -> PendingRequest:
        self._requests[request.tag] = request
        if self.fault is not None:
            self._finish(request, [], self.fault)
        elif self.state is State.UP:
            self._send(request)
        return request

    def _send(self, request: PendingRequest) -> None:
        request.sent = True
        if request.sequence:
            if self._busy:  # it is sent after those
                self._busy.add(request.tag)
                return
            first_outstanding = next(iter(self._appends))
            numbers = u64(request.sequence), u64(first_outstanding)
            unique = (request.message_id,) if request.message_id else ()
            self._queue_message(request.command, request.tag, *request.parts, *numbers, *unique)
        else:
            self._queue_message(request.command, request.tag, *request.parts)

    def _queue_message(self, *parts: bytes) -> None:
        self.out.append([*parts])

    def _queue_reply(self, message: list[bytes] | None) -> None:
        if message is not None:
            self.out.append(message)

    def _drop(self, request: PendingRequest) -> None:
        if request.tag not in self._requests:
            return
        # No call that may raise stands between these, as in `_enter_publish`.
        del self._requests[request.tag]
        if request.size:
            self.in_flight_bytes -= request.size
            self._in_flight_requests -= 1
            if request.sequence:
                del self._appends[request.sequence]
        self._busy.discard(request.tag)
        self._reack_tags.discard(request.tag)

    def _finish(self, request: PendingRequest, answer: list[bytes], error: OmqError | None = None) -> None:
        if error is not None:
            self._abandon(request)
        # Before it is dropped: a signal handler may raise in between, and a call may wait for it.
        request.finish(answer, error)
        self._drop(request)


def read_first(request: PendingRequest) -> int:
    """Returns the id of the first record of an `append`; raises as `PendingRequest.result`."""
    return protocol.number(request.result()[0])


def _store(message: Message) -> int:
    """Returns the `first_session` of the store that a subscription's message is from."""
    return message.store if isinstance(message, LaterMessage) else 0


def _parts(ids: Sequence[int]) -> list[bytes]:
    """Encodes message ids as ranges, in parts of at most `MAX_PAIRS` ranges."""
    pairs = [(ids[0], ids[0])] if len(ids) == 1 else ranges_of(ids)
    return packed_ranges(pairs)


def _error(parts: list[bytes]) -> BrokerError:
    """Decodes the error of an ERROR."""
    first, last = (protocol.number(part) for part in parts[4:6]) if len(parts) > 5 else (0, 0)
    return error_for(parts[2].decode(), parts[3].decode(), first, last)
