"""The blocking client of the S-expression protocol.

Calls write in the caller's thread. A background thread reads, so that pings are answered while the program is busy.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

from omq._core.blocks import Message
from omq.broker.errors import BrokerError, TooLarge, VersionFault
from omq.broker.protocol import check_name
from omq.broker.sexp import protocol
from omq.broker.sexp.protocol import Command, Delivery, Frame, Persistence, Replay, SexpClientProtocol
from omq.broker.sexp.syntax import MAX_EXPRESSION_BYTES, shown
from omq.broker.start_time import start_time
from omq.broker.types import buffer_of, check_bodies
from omq.errors import ClosedError, ConnectError, OmqError, ReceiveTimeout, StateError, Timeout
from omq.unpatched import socket, threading

#: Bytes of messages that may wait for the program; above that the client stops reading.
MAX_BACKLOG_BYTES: Final = 16 << 20
_READ_BYTES: Final = 256 << 10
#: Commands in one write. The server can hold all their answers while it reads on, so that a write never blocks until
#: the client reads.
_MAX_BATCH_COMMANDS: Final = 64
_ANSWERS: Final[dict[type[Command], type[Frame]]] = {
    protocol.Subscribe: protocol.Subscribed,
    protocol.Unsubscribe: protocol.Unsubscribed,
    protocol.Publish: protocol.Published,
    protocol.Create: protocol.Created,
}


class Subscription:
    """A subscription to one topic: an iterator of its messages, in order.

    Attributes:
        topic: The topic's name.
        topic_id: The topic's id.
        note: The last text of the server about the topic, such as the id with which a replay begins; empty for none.
    """

    def __init__(self, client: Client, topic: str, topic_id: int) -> None:
        self._client = client
        self.topic = topic
        self.topic_id = topic_id
        self.note = ""
        self._messages: deque[Message] = deque()
        self._bytes = 0  # of the bodies
        self._end: OmqError | None = None  # set once no more messages follow

    def recv(self, *, timeout: float | None = None) -> Message:
        """Returns the next message.

        Args:
            timeout: Seconds; `None` waits for ever, 0 never waits.

        Raises:
            ReceiveTimeout: No message arrived in time.
            BrokerError: The server has ended the subscription.
            ClosedError: The connection or the subscription is closed. For a persistent topic, a new subscription with
                the last id as `replay` continues without a gap.
        """
        changed = self._client._changed
        with changed:
            if not changed.wait_for(lambda: self._messages or self._end, timeout):
                raise ReceiveTimeout(f"no message within {timeout} seconds")
            if not self._messages and self._end is not None:
                raise type(self._end)(*self._end.args)
            message = self._messages.popleft()
            self._bytes -= len(message.body)
            changed.notify_all()  # the reading thread may wait for room
        return message

    def _append(self, id: int, body: bytes) -> None:
        self._messages.append(Message(id, self.topic, body))
        self._bytes += len(body)

    def close(self) -> None:
        """Unsubscribes. Idempotent.

        Raises:
            BrokerError: The server has refused the command.
            Timeout: No answer arrived in time.
        """
        with self._client._changed:
            if self._end is not None:
                return
            self._end = ClosedError("the subscription is closed")
            self._client._changed.notify_all()
        with suppress(ClosedError):
            self._client._call([protocol.Unsubscribe(self.topic.encode())])

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.recv()
        except ClosedError:
            if self._client._error is None or self._client._closed:
                raise StopIteration from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Request:
    """Commands of one kind about one topic, and their answers."""

    def __init__(self, command: Command, count: int) -> None:
        self.topic: bytes = getattr(command, "topic", b"")
        self.prefix = f"{type(command).__name__} {shown(self.topic)}: "  # of the errors that answer it
        self._kind = _ANSWERS[type(command)]
        self._count = count
        self.numbers: list[int] = []
        self.errors: list[BrokerError] = []

    @property
    def pending(self) -> int:
        """The number of missing answers."""
        return self._count - len(self.numbers) - len(self.errors)

    def matches(self, frame: Frame) -> bool:
        """Returns whether the frame answers the request."""
        return isinstance(frame, self._kind) and getattr(frame, "topic", self.topic) == self.topic


class Client:
    """A client of the broker's S-expression server, or of any server of the protocol.

    It can be used from any thread. It answers pings in the background. It does not reconnect: a program that wants to
    continue creates another client and subscribes with the last message's id as `replay`.

    Args:
        endpoint: The server's `tcp://host:port`.
        client: The client's id, which only one connection can have at a time. The default is random.
        version: The version of the protocol; 1 can only subscribe, 2 can also publish and create.
        timeout: Seconds to wait for a connection and for each answer; `None` waits for ever.

    Raises:
        ConnectError: The connection fails.
        EndpointError: The endpoint is not valid.
        StateError: The version is neither 1 nor 2.
        VersionFault: The server does not support this version.
    """

    def __init__(
        self, endpoint: str, *, client: str | bytes | None = None, version: int = 2, timeout: float | None = 5.0
    ) -> None:
        if version not in protocol.VERSIONS:
            raise StateError(f"version must be one of {protocol.VERSIONS}, not {version}")
        host, port = protocol.parse_endpoint(endpoint)
        if client is None:
            client = f"omq-{os.urandom(8).hex()}"
        self._protocol = SexpClientProtocol(client.encode() if isinstance(client, str) else client, version)
        self._timeout = timeout
        self._changed = threading.Condition()  # guards the state that both threads use
        self._call_lock = threading.Lock()  # one request at a time, as answers have no id
        self._write_lock = threading.Lock()
        self._request: _Request | None = None
        self._subscriptions: dict[int, Subscription] = {}
        self._ended: Subscription | None = None  # by the server, which sends the reason next
        self._acks = b""  # unsent answers to pings
        self._last_text = ""  # of the last error about the connection
        self._error: OmqError | None = None
        self._closed = False  # by the program
        try:
            self._sock = socket.create_connection((host or "127.0.0.1", port), timeout)
        except TimeoutError:
            raise ConnectError(f"{endpoint}: no connection within {timeout} seconds") from None
        except OSError as error:
            raise ConnectError(error.errno, f"{endpoint}: {error.strerror or error}") from error
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = threading.Thread(target=self._read, name="omq-sexp-client", daemon=True)
        self._reader.start()
        try:
            self._connect(endpoint)
        except BaseException:
            self.close()
            raise

    def _connect(self, endpoint: str) -> None:
        with suppress(OSError):  # the reading thread reports it
            self._write(self._protocol.hello())
        with self._changed:
            if not self._changed.wait_for(lambda: self._protocol.agreed or self._error, self._timeout):
                raise ConnectError(f"{endpoint}: no connection within {self._timeout} seconds")
            if self._error is not None:
                raise self._error if isinstance(self._error, VersionFault) else ConnectError(str(self._error))
        with suppress(OSError):
            self._write(self._protocol.connect())

    def create(self, topic: str, *, delivery: Delivery = "broadcast", persistence: Persistence = "strong") -> int:
        """Creates a topic, or finds an existing one with the same settings. Returns its id.

        Args:
            topic: The topic's name: 1 to 255 bytes of UTF-8, without slashes and control characters.
            delivery: `"broadcast"` or `"round-robin"`.
            persistence: `"strong"`, `"weak"`, `"async"` or `"transient"`; see `omq.broker.Client.create`.

        Raises:
            BrokerError: The server has refused the command.
            StateError: The client uses version 1 of the protocol.
            Timeout: No answer arrived in time; the connection is then closed.
            ClosedError: The connection is closed.
        """
        self._needs_version_2()
        return self._call([protocol.Create(check_name(topic).encode(), delivery, persistence)])[0]

    def publish(self, topic: str, body: bytes) -> int:
        """Publishes a message, and returns its id once the topic's persistence holds for it.

        Args:
            topic: The topic's name.
            body: The content. Its command has 64 KiB at most, in which a byte that is not printable takes four.

        Raises:
            BrokerError: As `create`; `TooLarge` if the command has more than 64 KiB.
            TypeError: The body has no buffer.
        """
        return self.publish_many(topic, [body])[0]

    def publish_many(self, topic: str, bodies: Iterable[bytes]) -> list[int]:
        """Publishes messages in a pipeline, and returns their ids in order; raises as `publish`.

        After an error some of them may be published. A single body in place of several raises `TypeError`.
        """
        self._needs_version_2()
        name = check_name(topic).encode()
        check_bodies(bodies)
        return self._call([protocol.Publish(name, bytes(buffer_of("body", body))) for body in bodies])

    def subscribe(self, topic: str, *, replay: Replay | float | datetime = "latest") -> Subscription:
        """Subscribes, and returns once the subscription is active.

        Args:
            topic: The topic's name.
            replay: `"latest"`, `"earliest"`, an `int`, the id after which to start, or a time at which to start: a
                `datetime` with a time zone or a `float` of seconds since 1970; for a round-robin topic only `"latest"`.

        Raises:
            ValueError: *replay* has no time zone, or is not 1970 or later.
            BrokerError: The server has refused the command.
            Timeout: No answer arrived in time; the connection is then closed.
            ClosedError: The connection is closed, or the topic was deleted.
        """
        start = start_time("replay", replay) if isinstance(replay, float | datetime) else replay
        (topic_id,) = self._call([protocol.Subscribe(check_name(topic).encode(), start)])
        subscription = self._subscriptions.get(topic_id)
        if subscription is None:  # the topic was deleted meanwhile, or the connection was closed
            raise ClosedError("the subscription ended before it was returned")
        return subscription

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._closed = True
        self._end(ClosedError("the client is closed"))
        self._reader.join()
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -------------------------------------------------------------------------------------- the caller's thread

    def _needs_version_2(self) -> None:
        if self._protocol.version < 2:
            raise StateError(
                f"version {self._protocol.version} of the protocol cannot publish or create; use version 2"
            )

    def _call(self, commands: list[Command]) -> list[int]:
        """Sends commands of one kind about one topic; returns the ids of the answers.

        Raises:
            BrokerError: The server refused a command.
            Timeout: No answer arrived in time. The connection is closed, as a late answer could not be assigned.
            ClosedError: The connection is closed.
        """
        lines = [protocol.write_command(command) for command in commands]
        for line in lines:
            if len(line) - 1 > MAX_EXPRESSION_BYTES:
                raise TooLarge(f"a command has at most {MAX_EXPRESSION_BYTES} bytes, not {len(line) - 1}")
        numbers: list[int] = []
        with self._call_lock:
            for at in range(0, len(lines), _MAX_BATCH_COMMANDS):
                numbers += self._call_batch(commands[at], lines[at : at + _MAX_BATCH_COMMANDS])
        return numbers

    def _call_batch(self, command: Command, lines: list[bytes]) -> list[int]:
        request = _Request(command, len(lines))
        with self._changed:
            self._request = request
        try:
            with suppress(OSError):  # the reading thread reports why
                self._write(b"".join(lines))
            with self._changed:
                while pending := request.pending:
                    if self._error is not None:
                        raise type(self._error)(*self._error.args)
                    if not self._changed.wait_for(partial(self._has_progress, request, pending), self._timeout):
                        raise Timeout(f"no answer within {self._timeout} seconds")
        finally:
            self._request = None
            if request.pending:
                self._end(ClosedError("the connection is closed: a call did not wait for its answer"))
        if request.errors:
            raise request.errors[0]
        return request.numbers

    def _has_progress(self, request: _Request, pending: int) -> bool:
        return self._error is not None or request.pending < pending

    def _write(self, data: bytes) -> None:
        with self._write_lock:
            self._sock.sendall(data)

    def _end(self, error: OmqError) -> None:
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            for subscription in (*self._subscriptions.values(), *([self._ended] if self._ended else [])):
                subscription._end = subscription._end or error
            self._subscriptions.clear()
            self._changed.notify_all()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    # ---------------------------------------------------------------------------------------- the reading thread

    def _read(self) -> None:
        error: OmqError | None = None
        reason = "the server has closed it"
        try:
            while data := self._recv():
                self._feed(data)
                if self._acks:
                    self._write(self._acks)
                    self._acks = b""
                self._wait_for_room()
        except BrokerError as fault:
            error = fault
        except OSError as fault:
            reason = str(fault)
        self._end(error or ClosedError(f"the connection is closed: {self._last_text or reason}"))

    def _recv(self) -> bytes:
        while True:
            with suppress(TimeoutError):  # the socket's timeout is for writes
                return self._sock.recv(_READ_BYTES)

    def _feed(self, data: bytes) -> None:
        with self._changed:
            for frame in self._protocol.receive(data):
                self._handle_frame(frame)
            self._changed.notify_all()

    def _wait_for_room(self) -> None:
        with self._changed:
            if self._backlog_bytes() > MAX_BACKLOG_BYTES:
                self._changed.wait_for(lambda: self._error or self._backlog_bytes() < MAX_BACKLOG_BYTES // 2)

    def _backlog_bytes(self) -> int:
        """Returns the size of the messages that wait for the program."""
        return sum(each._bytes for each in self._subscriptions.values() if each._end is None)

    def _handle_frame(self, frame: Frame) -> None:
        request = self._request
        if isinstance(frame, protocol.Message):
            if subscription := self._subscriptions.get(frame.topic_id):
                subscription._append(frame.id, frame.body)
        elif isinstance(frame, protocol.Ping):
            self._acks += protocol.write_command(protocol.Ack(frame.time))
        elif isinstance(frame, protocol.Error):
            self._handle_error(frame.text)
        elif request is not None and request.matches(frame):
            if isinstance(frame, protocol.Subscribed):
                topic = frame.topic.decode("utf-8", "replace")
                self._subscriptions[frame.topic_id] = Subscription(self, topic, frame.topic_id)
            elif isinstance(frame, protocol.Unsubscribed):
                self._subscriptions.pop(frame.topic_id, None)
            request.numbers.append(frame.id if isinstance(frame, protocol.Published) else frame.topic_id)
        elif isinstance(frame, protocol.Unsubscribed):
            self._ended = self._subscriptions.pop(frame.topic_id, None)

    def _handle_error(self, text: str) -> None:
        """Assigns an error to a subscription or a request by its text, which names the topic or the command."""
        request = self._request
        if self._ended is not None:
            self._ended._end = BrokerError(text)
            self._ended = None
            return
        for subscription in self._subscriptions.values():
            name = shown(subscription.topic.encode())
            if text.startswith((f"{name}: ", f"Subscribe {name}: ")):
                subscription.note = text
                if request is None or not text.startswith(request.prefix):
                    return
        if request is not None and request.pending:
            request.errors.append(BrokerError(text))
        else:
            self._last_text = text
