"""The S-expression protocol, versions 1 and 2, for servers and clients; without I/O and without a clock.

docs/reference/sexp-protocol.md specifies it. A client sends its version and then commands, which are expressions. A
server answers with the version and then sends frames: `u32 length, u8 type, payload`. All numbers are big-endian.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Literal, TypeAlias

from omq._core.blocks import read_header
from omq.broker.errors import SyntaxFault, VersionFault
from omq.broker.protocol import MAX_BODY_BYTES
from omq.broker.sexp.syntax import Expression, SexpParser, Writable, encode, parse, shown
from omq.broker.start_time import StartTime
from omq.errors import EndpointError

VERSIONS: Final = (1, 2)
LATEST_VERSION: Final = VERSIONS[-1]
VERSION_REFUSED: Final = -1

_VERSION: Final = struct.Struct(">q")
HANDSHAKE_BYTES: Final = _VERSION.size

ERROR, PING, MESSAGE, SUBSCRIBED, UNSUBSCRIBED, PUBLISHED, CREATED = range(7)
#: The payload of the longest frame: the ids and a body.
MAX_PAYLOAD_BYTES: Final = 12 + MAX_BODY_BYTES

_FRAME: Final = struct.Struct(">IB")
_PING: Final = struct.Struct(">IBI")
#: The header of a message: length, type, its id, the topic's id.
MESSAGE_HEAD: Final = struct.Struct(">IBQI")
_IDS: Final = struct.Struct(">QI")
_U32: Final = struct.Struct(">I")
_U16: Final = struct.Struct(">H")
#: The header of a record (docs/reference/broker-protocol.md): size, checksum, flags.
_RECORD: Final = struct.Struct(">I4xB")
_RECORD_HEAD: Final = _RECORD.size
HAS_KEY: Final = 1
HAS_HEADERS: Final = 2

# --------------------------------------------------------------------------------------------------------- commands

Replay: TypeAlias = "Literal['latest', 'earliest'] | int | StartTime"
Delivery: TypeAlias = Literal["broadcast", "round-robin"]
Persistence: TypeAlias = Literal["transient", "strong", "weak", "async"]


@dataclass(frozen=True, slots=True)
class Connect:
    """Introduces a client by its id, and repeats the version of the handshake."""

    version: int
    client: bytes


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribes to a topic; an id as `replay` starts after that id, a time at that time."""

    topic: bytes
    replay: Replay


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Ends the subscription to a topic."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """Answers a ping with its time, in seconds since 1970."""

    time: float


@dataclass(frozen=True, slots=True)
class Publish:
    """Publishes a message to a topic (version 2)."""

    topic: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Create:
    """Creates a topic, or finds it with the same settings (version 2)."""

    topic: bytes
    delivery: Delivery
    persistence: Persistence


Command: TypeAlias = Connect | Subscribe | Unsubscribe | Ack | Publish | Create

_INTEGER: Final = re.compile(rb"[0-9]+")
_FLOAT: Final = re.compile(rb"[0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?")
_TIME: Final = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,18}))?"
    rb"(?:Z|([+-])([0-9]{2}):([0-9]{2}))?"
)
_DELIVERIES: Final[dict[Delivery, bytes]] = {"broadcast": b"Broadcast", "round-robin": b"Round_robin"}
_SYNCS: Final[dict[Persistence, bytes]] = {"strong": b"Strong", "weak": b"Weak", "async": b"Async"}
_DELIVERY_OF: Final = {word: name for name, word in _DELIVERIES.items()}
_SYNC_OF: Final = {word: name for name, word in _SYNCS.items()}


def read_command(expression: Expression, version: int) -> Command:
    """Parses a command.

    Raises:
        SyntaxFault: The expression is not a command of this version.
    """
    tag, arguments = _variant(expression, "a command")
    since, kind, readers = _COMMANDS.get(tag, _NO_COMMAND)
    if version < since:
        raise SyntaxFault(f"{shown(tag)} is not a command of version {version}")
    if len(arguments) != len(readers):
        raise SyntaxFault(f"{shown(tag)} has {len(readers)} arguments, not {len(arguments)}")
    return kind(*(read(argument) for read, argument in zip(readers, arguments, strict=True)))


def _variant(expression: Expression, what: str) -> tuple[bytes, list[Expression]]:
    """Returns the tag of a list, with its first letter in upper case, and the arguments."""
    if isinstance(expression, bytes):
        raise SyntaxFault(f"{what} must be a list, not {shown(expression)}")
    if not expression or not isinstance(expression[0], bytes):
        raise SyntaxFault(f"{what} must be a list that begins with its name")
    return _constant(expression[0]), expression[1:]


def _constant(atom: bytes) -> bytes:
    """Returns an atom with its first letter in upper case."""
    return atom[:1].upper() + atom[1:]


def _atom(expression: Expression, what: str) -> bytes:
    if isinstance(expression, bytes):
        return expression
    raise SyntaxFault(f"{what} must be an atom, not a list")


def _integer(expression: Expression, what: str) -> int:
    text = _atom(expression, what)
    if _INTEGER.fullmatch(text) is None:
        raise SyntaxFault(f"{what} must be a decimal number, not {shown(text)}")
    digits = text.lstrip(b"0")
    # No number of the protocol has more than 20 digits; one value stands for all that are larger.
    return int(digits or b"0") if len(digits) <= 20 else 1 << 64


def _replay(expression: Expression) -> Replay:
    if isinstance(expression, bytes):
        match _constant(expression):
            case b"From_beginning":
                return "earliest"
            case b"From_current":
                return "latest"
    else:
        match _variant(expression, "a replay"):
            case b"From_message", [number]:
                return _integer(number, "a message's id")
            case b"From_time", [time]:
                return StartTime(round(_time(time) * 1e6))
    raise SyntaxFault("a replay must be From_beginning, From_current, (From_message <id>) or (From_time <time>)")


def _delivery(expression: Expression) -> Delivery:
    found = _DELIVERY_OF.get(_constant(expression)) if isinstance(expression, bytes) else None
    if found is None:
        raise SyntaxFault("a delivery must be Broadcast or Round_robin")
    return found


def _persistence(expression: Expression) -> Persistence:
    if isinstance(expression, bytes):
        if _constant(expression) == b"Transient":
            return "transient"
    else:
        match _variant(expression, "a persistence"):
            case b"Persistent", [bytes(sync)] if _constant(sync) in _SYNC_OF:
                return _SYNC_OF[_constant(sync)]
    raise SyntaxFault("a persistence must be Transient, or (Persistent <sync>) with Strong, Weak or Async")


def _time(expression: Expression) -> float:
    """Parses a time to seconds since 1970. It is a number, or OCaml's `Time.t`: two atoms, or one that has a space."""
    if isinstance(expression, bytes):
        text = expression
        if _FLOAT.fullmatch(text) is not None:
            return float(text)
    else:
        match expression:
            case [bytes(date), bytes(clock)]:
                text = date + b" " + clock
            case _:
                raise SyntaxFault("a time must be a number of seconds, or a date and a time of day")
    match_ = _TIME.fullmatch(text)
    if match_ is None:
        raise SyntaxFault(f"a time must be a number of seconds, or a date and a time of day, not {shown(text)}")
    *numbers, fraction, sign, hours, minutes = match_.groups()
    try:
        moment = datetime(*map(int, numbers), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError as error:
        raise SyntaxFault(f"{shown(text)} is not a valid time: {error}") from None
    seconds = (moment - _EPOCH) / timedelta(seconds=1)
    if sign is not None:
        offset = int(hours) * 3600 + int(minutes) * 60
        seconds += -offset if sign == b"+" else offset
    return seconds + (float(b"0." + fraction) if fraction else 0.0)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_topic: Final = partial(_atom, what="a topic")
#: The first version with a command, its class, and the parsers of its arguments.
_COMMANDS: Final[dict[bytes, tuple[int, Callable[..., Command], tuple[Callable[[Expression], object], ...]]]] = {
    b"Connect": (1, Connect, (partial(_integer, what="a version"), partial(_atom, what="a client's id"))),
    b"Subscribe": (1, Subscribe, (_topic, _replay)),
    b"Unsubscribe": (1, Unsubscribe, (_topic,)),
    b"Ack": (1, Ack, (_time,)),
    b"Publish": (2, Publish, (_topic, partial(_atom, what="a body"))),
    b"Create": (2, Create, (_topic, _delivery, _persistence)),
}
_NO_COMMAND: Final = (LATEST_VERSION + 1, Connect, ())


def write_command(command: Command) -> bytes:
    """Encodes a command as one line."""
    return encode(_expression(command)) + b"\n"


def _expression(command: Command) -> Writable:
    match command:
        case Connect(version, client):
            return [b"Connect", b"%d" % version, client]
        case Subscribe(topic, "earliest"):
            return [b"Subscribe", topic, b"From_beginning"]
        case Subscribe(topic, "latest"):
            return [b"Subscribe", topic, b"From_current"]
        case Subscribe(topic, int(number)):
            return [b"Subscribe", topic, [b"From_message", b"%d" % number]]
        case Subscribe(topic, StartTime(microseconds)):
            return [b"Subscribe", topic, [b"From_time", b"%d.%06d" % divmod(microseconds, 1_000_000)]]
        case Subscribe(_, replay):
            raise ValueError(f'replay={replay!r}: must be "latest", "earliest", an id, 0 or more, or a time')
        case Unsubscribe(topic):
            return [b"Unsubscribe", topic]
        case Ack(time):
            return [b"Ack", repr(time).encode() if time % 1 else b"%d" % time]
        case Publish(topic, body):
            return [b"Publish", topic, body]
        case Create(topic, delivery, "transient"):
            return [b"Create", topic, _DELIVERIES[delivery], b"Transient"]
        case Create(topic, delivery, persistence):
            return [b"Create", topic, _DELIVERIES[delivery], [b"Persistent", _SYNCS[persistence]]]


# ----------------------------------------------------------------------------------------------------------- frames


@dataclass(frozen=True, slots=True)
class Error:
    """An error, or a remark about a subscription."""

    text: str


@dataclass(frozen=True, slots=True)
class Ping:
    """A request for an `Ack` with this time, in seconds since 1970."""

    time: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a topic, whose id is that of `Subscribed`."""

    id: int
    topic_id: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Confirms `Subscribe`; the topic's messages follow."""

    topic_id: int
    topic: bytes


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """Reports that a subscription has ended; no more of the topic's messages follow."""

    topic_id: int
    topic: bytes


@dataclass(frozen=True, slots=True)
class Published:
    """Confirms `Publish`: the topic's persistence holds for the message."""

    id: int
    topic_id: int


@dataclass(frozen=True, slots=True)
class Created:
    """Confirms `Create`; the topic exists with these settings."""

    topic_id: int
    topic: bytes


Frame: TypeAlias = Error | Ping | Message | Subscribed | Unsubscribed | Published | Created

_RECORDS: Final[dict[int, type[Subscribed] | type[Unsubscribed] | type[Created]]] = {
    SUBSCRIBED: Subscribed,
    UNSUBSCRIBED: Unsubscribed,
    CREATED: Created,
}
_TYPE_OF: Final = {kind: number for number, kind in _RECORDS.items()}


def write_frame(frame: Frame) -> bytes:
    """Encodes a frame."""
    match frame:
        case Error(text):
            return _framed(ERROR, text.encode("utf-8", "backslashreplace"))
        case Ping(time):
            return _PING.pack(5, PING, time & 0xFFFFFFFF)
        case Message(number, topic_id, body):
            return MESSAGE_HEAD.pack(13 + len(body), MESSAGE, number, topic_id) + body
        case Published(number, topic_id):
            return _framed(PUBLISHED, _IDS.pack(number, topic_id))
        case _:
            record = [[b"id", b"%d" % frame.topic_id], [b"topic", frame.topic]]
            return _framed(_TYPE_OF[type(frame)], encode(record))


def write_block(header: bytes, records: memoryview, topic_id: int) -> tuple[int, bytes, list[int]]:
    """Encodes the messages of a block as frames; returns the first id, the frames, and the end offset of each.

    It parses the records itself: `blocks.decode` copies each body, and verifies checksums that the store has verified.
    """
    first, count, _, _ = read_header(header)
    pieces: list[bytes | memoryview] = []
    ends = []
    at = end = 0
    for number in range(first, first + count):
        size, flags = _RECORD.unpack_from(records, at)
        body = at + _RECORD_HEAD
        at += 4 + size
        if flags:
            body = _skip_extras(records, body, flags)
        pieces.append(MESSAGE_HEAD.pack(13 + at - body, MESSAGE, number, topic_id))
        pieces.append(records[body:at])
        end += MESSAGE_HEAD.size + at - body
        ends.append(end)
    return first, b"".join(pieces), ends


def _skip_extras(records: memoryview, at: int, flags: int) -> int:
    """Returns the offset of the body after a record's key and headers, which a frame cannot carry."""
    if flags & HAS_KEY:
        at += 4 + _U32.unpack_from(records, at)[0]
    if flags & HAS_HEADERS:
        (count,) = _U16.unpack_from(records, at)
        at += 2
        for _ in range(count):
            at += 2 + _U16.unpack_from(records, at)[0]
            at += 4 + _U32.unpack_from(records, at)[0]
    return at


def _framed(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(1 + len(payload), kind) + payload


def read_frame(kind: int, payload: bytes) -> Frame:
    """Parses the payload of a frame.

    Raises:
        SyntaxFault: The payload does not fit the type, or the type is unknown.
    """
    match kind:
        case 0:
            return Error(payload.decode("utf-8", "replace"))
        case 1 if len(payload) == 4:
            return Ping(_U32.unpack(payload)[0])
        case 2 if len(payload) >= 12:
            number, topic_id = _IDS.unpack_from(payload)
            return Message(number, topic_id, payload[12:])
        case 3 | 4 | 6:
            return _RECORDS[kind](*_record(payload))
        case 5 if len(payload) == 12:
            return Published(*_IDS.unpack(payload))
    raise SyntaxFault(f"a payload of {len(payload)} bytes is not valid for a frame of type {kind}")


def _record(payload: bytes) -> tuple[int, bytes]:
    """Parses the id and the name of a topic. The fields may be in any order; others are not allowed."""
    pairs = parse(payload, max_length=2 * len(payload) + 16)
    fields: dict[bytes, bytes] = {}
    for pair in pairs if isinstance(pairs, list) else ():
        match pair:
            case [bytes(name), bytes(value)] if name not in fields:
                fields[name] = value
            case _:
                raise SyntaxFault("a topic's record is ((id <number>)(topic <name>))")
    if fields.keys() != {b"id", b"topic"}:
        raise SyntaxFault("a topic's record is ((id <number>)(topic <name>))")
    return _integer(fields[b"id"], "a topic's id"), fields[b"topic"]


# ------------------------------------------------------------------------------------------------------------ sides


class SexpServerProtocol:
    """The server's protocol state of one connection.

    Attributes:
        version: The version of the connection; 0 before the handshake.
        client: The client's id; `None` before `Connect`.
    """

    __slots__ = ("_handshake_bytes", "_parser", "client", "version")

    def __init__(self) -> None:
        self._handshake_bytes = b""
        self._parser = SexpParser()
        self.version = 0
        self.client: bytes | None = None

    def handshake(self, data: bytes) -> tuple[bytes, bytes]:
        """Handles the first bytes of a connection.

        Returns:
            The answer, which is empty until the version is complete, and the bytes after the version.

        Raises:
            VersionFault: The version is not supported. The server sends `REFUSAL` and closes the connection.
        """
        self._handshake_bytes += data
        if len(self._handshake_bytes) < HANDSHAKE_BYTES:
            return b"", b""
        version_bytes, rest = self._handshake_bytes[:HANDSHAKE_BYTES], self._handshake_bytes[HANDSHAKE_BYTES:]
        self._handshake_bytes = b""
        (version,) = _VERSION.unpack(version_bytes)
        if version not in VERSIONS:
            raise VersionFault(f"version {version} is not supported; the versions are {VERSIONS}")
        self.version = version
        return version_bytes, rest

    def commands(self, data: bytes) -> Iterator[Command]:
        """Parses bytes after the handshake, and yields the commands. The caller takes all before the next call.

        Raises:
            SyntaxFault: The bytes are not commands, or the first command is not `Connect`. The commands before the
                error were yielded. The server closes the connection.
        """
        for expression in self._parser.feed(data):
            command = read_command(expression, self.version)
            if isinstance(command, Connect):
                if self.client is not None:
                    raise SyntaxFault("Connect may be sent only once")
                if command.version != self.version:
                    raise SyntaxFault(f"Connect has version {command.version}, the handshake had {self.version}")
                if not command.client:
                    raise SyntaxFault("a client's id must not be empty")
                self.client = command.client
            elif self.client is None:
                raise SyntaxFault("the first command must be Connect")
            yield command


#: The answer to a client of another version.
REFUSAL: Final = _VERSION.pack(VERSION_REFUSED)

MAX_MISSED_PINGS: Final = 2  # unanswered pings that end a connection


class Pings:
    """The unanswered pings of one connection.

    Queued messages delay a ping to a slow reader. A ping counts as missed only if the kernel took it a whole interval
    ago. A client that reads nothing for two intervals is dead, too.
    """

    __slots__ = ("_last_written", "_stalls", "_unanswered")

    def __init__(self) -> None:
        self._unanswered: deque[tuple[int, int]] = deque()  # times, and end offsets in the stream
        self._last_written = 0  # bytes that the kernel had taken after the last ping
        self._stalls = 0

    def next(self, time: int, queued: int, written: int) -> bytes | None:
        """Returns the next ping, or `None` if the client is dead. It is called once an interval.

        Args:
            time: The time in seconds since 1970.
            queued: The bytes that were queued on the connection so far.
            written: The number of them that the kernel has taken.
        """
        missed = sum(end <= self._last_written for _, end in self._unanswered)
        self._stalls = self._stalls + 1 if written == self._last_written < queued else 0
        if missed >= MAX_MISSED_PINGS or self._stalls >= MAX_MISSED_PINGS:
            return None
        ping = write_frame(Ping(time))
        self._unanswered.append((time, queued + len(ping)))
        return ping

    def sent(self, written: int) -> None:
        """Records how many bytes the kernel has taken after the ping was queued and flushed."""
        self._last_written = written

    def ack(self, time: float) -> None:
        """Handles an answer, which answers all pings up to its time."""
        while self._unanswered and self._unanswered[0][0] <= time:
            self._unanswered.popleft()

    def clear(self) -> None:
        """Forgets the unanswered pings."""
        self._unanswered.clear()
        self._stalls = 0


class SexpClientProtocol:
    """The client's protocol state of its connection.

    Args:
        client: The client's id.
        version: The version to use.

    Attributes:
        agreed: The server has answered with the same version.
    """

    __slots__ = ("_client", "_in", "_needed", "agreed", "version")

    def __init__(self, client: bytes, version: int = LATEST_VERSION) -> None:
        self._client = client
        self.version = version
        self.agreed = False
        self._in = bytearray()
        self._needed = HANDSHAKE_BYTES  # bytes until the next frame is complete

    def hello(self) -> bytes:
        """Returns the handshake, which the server answers with the same bytes."""
        return _VERSION.pack(self.version)

    def connect(self) -> bytes:
        """Returns the `Connect` command, to be sent after the handshake."""
        return write_command(Connect(self.version, self._client))

    def receive(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Parses bytes of the server, and yields the frames. The caller takes all before the next call.

        Raises:
            VersionFault: The server does not support this version.
            SyntaxFault: The bytes are not frames.
        """
        self._in += data
        if len(self._in) < self._needed:
            return
        text = bytes(self._in)
        at = 0
        if not self.agreed:
            (version,) = _VERSION.unpack_from(text)
            if version != self.version:
                raise VersionFault(f"the server does not support version {self.version}")
            self.agreed = True
            at = HANDSHAKE_BYTES
        end = len(text)
        try:
            while True:
                if end - at < 4:
                    self._needed = 4
                    return
                (length,) = _U32.unpack_from(text, at)
                if not 1 <= length <= 1 + MAX_PAYLOAD_BYTES:
                    raise SyntaxFault(f"{length} bytes is not a valid length of a frame")
                if end - at < 4 + length:
                    self._needed = 4 + length
                    return
                frame = read_frame(text[at + 4], text[at + 5 : at + 4 + length])
                at += 4 + length
                yield frame
        finally:
            self._in = bytearray(text[at:])


def parse_endpoint(endpoint: str) -> tuple[str | None, int]:
    """Returns host and port of `tcp://host:port`. The host `*` is `None`, all addresses; the port `*` is 0, any port.

    Raises:
        EndpointError: It is not a `tcp://host:port`.
    """
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = 0 if port == "*" else int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else -1
    if scheme != "tcp" or not host or not 0 <= number < 65536:
        raise EndpointError(f"endpoint {endpoint!r} is not valid for S-expressions; expected tcp://host:port")
    return (None if host == "*" else host), number
