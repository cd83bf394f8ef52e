"""The types that clients of a broker use: messages, deliveries and topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from omq._core.blocks import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from typing_extensions import Buffer

#: The longest delay of a nack; the protocol has its milliseconds in 32 bits.
MAX_DELAY_S = 4_000_000

__all__ = [
    "Columns",
    "Committed",
    "Delivery",
    "Maps",
    "Message",
    "DurableInfo",
    "GroupInfo",
    "Record",
    "Records",
    "Texts",
    "TopicInfo",
]


class Record(NamedTuple):
    """A body with a key and headers, for `Client.publish_many` and `Client.stage`.

    Attributes:
        body: The content: any object with a contiguous buffer, up to 64 MiB.
        key: The key of the message; `None` for no key.
        headers: The headers of the message, values by name; `None` for no headers.
    """

    body: Buffer
    key: bytes | None = None
    headers: Mapping[str, Buffer] | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """Many encoded messages in one buffer, for `Client.publish_many` and `Client.stage`; see `encode_columns`.

    Attributes:
        data: The messages, in the encoding of the broker's protocol.
        count: The number of messages, at most 65,536.
    """

    data: bytes
    count: int

    def __repr__(self) -> str:
        return f"<Records: {self.count} messages, {len(self.data)} bytes>"


class Maps(NamedTuple):
    """The headers of messages, in the layout of an Apache Arrow column of maps.

    Attributes:
        ends: The offsets buffer: 32-bit numbers, 0 first and then the end of each row's headers in `names` and
            `values`.
        names: The names of all headers.
        values: The values of all headers.
        valid: The validity bitmap, a bit for each row, 0 for a row without headers; `None` if all rows have headers.
        nulls: The number of rows without headers.
    """

    ends: bytes
    names: Texts
    values: Texts
    valid: bytes | None
    nulls: int

    def __repr__(self) -> str:
        return f"<Maps: {len(self.ends) // 4 - 1} rows, {self.nulls} nulls>"


class Texts(NamedTuple):
    """Keys, or the names or values of headers, in the layout of an Apache Arrow column of bytes.

    Attributes:
        ends: The offsets buffer: 32-bit numbers, 0 first and then the end of each value in `data`.
        data: All values, concatenated.
        valid: The validity bitmap, a bit for each value, 0 for a missing one; `None` if none is missing.
        nulls: The number of missing values.
    """

    ends: bytes
    data: bytes
    valid: bytes | None
    nulls: int

    def __repr__(self) -> str:
        return f"<Texts: {len(self.ends) // 4 - 1} rows, {self.nulls} nulls>"


@dataclass(frozen=True, slots=True)
class Columns:
    """Messages of a topic as columns, in the layout of Apache Arrow and the byte order of the machine.

    Attributes:
        count: The number of messages.
        ids: The ids of the messages, 64 bits each.
        timestamps: The times at which the broker stored them, in microseconds since 1970, 64 bits each.
        ends: The offsets buffer: 32-bit numbers, 0 first and then the end of each body in `bodies`; empty if bodies
            were not requested.
        bodies: A buffer whose first `size` bytes are the bodies, concatenated; `None` if bodies were not requested.
        size: The bytes of all bodies.
        keys: The keys; `None` if they were not requested.
        headers: The headers; `None` if they were not requested.
    """

    count: int
    ids: bytes
    timestamps: bytes
    ends: bytes
    bodies: Buffer | None
    size: int
    keys: Texts | None
    headers: Maps | None

    def __repr__(self) -> str:
        return f"<Columns: {self.count} messages, {self.size} bytes of bodies>"


@dataclass(frozen=True, slots=True)
class Committed:
    """The messages of a stage that a commit has published.

    Attributes:
        stage: The stage's name.
        topic: The topic's name; empty if the topic has been deleted since the commit.
        first: The id of the first message; 0 for none.
        count: The number of messages; their ids are consecutive.
    """

    stage: str
    topic: str
    first: int
    count: int


class DeliveryConsumer(Protocol):
    """A consumer of either client.

    In asyncio, each call returns an awaitable that waits until the acks and nacks so far are durable.
    """

    def acknowledge(self, delivery: Delivery) -> Awaitable[None] | None:
        """Acknowledges a delivery."""

    def retry(self, delivery: Delivery, delay: float | None) -> Awaitable[None] | None:
        """Requests redelivery after *delay* seconds; `None` for the topic's `retry_delay`."""

    def progress(self, delivery: Delivery) -> Awaitable[None] | None:
        """Restarts the `ack_timeout` of a delivery."""


class Delivery(Message):
    """A message of a round-robin topic or a consumer group, in flight until its ack or nack.

    Attributes:
        deliveries: The delivery count of the message; 1 at the first delivery.
    """

    __slots__ = ("consumer", "deliveries", "session")

    deliveries: int
    #: The consumer that has received it.
    consumer: DeliveryConsumer
    #: The number of the client's connection: after a reconnect the broker redelivers messages without an ack.
    session: int

    def ack(self) -> Any:
        """Acknowledges the message: it is not redelivered. Idempotent.

        The call does not wait.

        Returns:
            `None`; `Client.flush` waits until acks are durable. In asyncio an awaitable that waits until this ack is
            durable; it need not be awaited.

        Raises:
            BrokerError: The broker has ended the consumer, and requeued the message.
            ClosedError: The consumer or the client is closed: the broker has requeued the message.
        """
        return self.consumer.acknowledge(self)

    def nack(self, *, delay: float | None = None) -> Any:
        """Requests redelivery of the message, to any consumer.

        Args:
            delay: Seconds before the redelivery, 4,000,000 at most; 0 for at once; `None` for the topic's
                `retry_delay`.

        Returns:
            `None`; in asyncio an awaitable that waits until the nack is durable.

        Raises:
            ValueError: *delay* is not 0 to 4,000,000 seconds.
            TypeError: *delay* is not a number.
            BrokerError: The broker has ended the consumer, and requeued the message.
            ClosedError: The consumer or the client is closed: the broker has requeued the message.
        """
        return self.consumer.retry(self, check_delay(delay))

    def in_progress(self) -> Any:
        """Restarts the `ack_timeout` of the message, and of the messages delivered after it.

        Returns:
            `None`; in asyncio an awaitable that waits until earlier acks are durable.

        Raises:
            BrokerError: The broker has ended the consumer, and requeued the message.
            ClosedError: The consumer or the client is closed: the broker has requeued the message.
        """
        return self.consumer.progress(self)


def buffer_of(argument: str, value: Buffer) -> memoryview:
    """Returns the buffer of an argument.

    Raises:
        TypeError: The value has no buffer.
    """
    try:
        return memoryview(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{argument}={value!r:.80}: must be bytes or another contiguous buffer, not {kind}") from None


def check_bodies(bodies: object) -> None:
    """Raises `TypeError` for a single body, which iteration would split into numbers."""
    if isinstance(bodies, str | bytes | bytearray | memoryview | Record | Records):
        raise TypeError(f"bodies: must be an iterable of several bodies, not {type(bodies).__name__}")


def check_delay(delay: float | None) -> float | None:
    """Returns the delay of a nack, in seconds; `None` for the topic's `retry_delay`.

    Raises:
        ValueError: *delay* is negative, or more than `MAX_DELAY_S`.
        TypeError: *delay* is not a number.
    """
    if delay is None:
        return None
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise TypeError(f"delay={delay!r:.80}: must be a number of seconds, or None, not {type(delay).__name__}")
    if not 0 <= delay <= MAX_DELAY_S:
        raise ValueError(f"delay={delay!r:.80}: must be 0 to {MAX_DELAY_S} seconds")
    return float(delay)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic, as the broker describes it.

    Attributes:
        name: The topic's name.
        id: The topic's id; a deleted topic's id is never used again.
        delivery: `"broadcast"` or `"round-robin"`.
        persistence: `"transient"`, `"strong"`, `"weak"` or `"async"`.
        first: The oldest id that is kept.
        last: The newest id that was assigned; 0 for none.
        bytes: The approximate bytes of the kept messages.
        subscribers: The number of subscriptions or consumers.
        settings: `max_messages`, `max_bytes`, `max_age` (seconds), `overflow`, `retention`, `retain_for`,
            `inactive_threshold` (seconds), `max_deliveries`, `dead_letter` and `retry_delay` (seconds), as far as they
            are set; see `Client.create`.
    """

    name: str
    id: int
    delivery: str
    persistence: str
    first: int = 0
    last: int = 0
    bytes: int = 0
    subscribers: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TopicInfo:
        """Makes a `TopicInfo` from the broker's JSON; unknown fields are ignored."""
        return cls(**{name: value for name, value in fields.items() if name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableInfo:
    """A durable subscription, which belongs to the topic, not to a user.

    Attributes:
        name: The subscription's name.
        position: The cursor: the id of the last acknowledged message; 0 for none.
        lag: The number of kept messages after the cursor.
        held: True if a client has the subscription open.
        active: When it was last opened, acknowledged or closed, in seconds since 1970. A restart of the broker counts
            as activity.
    """

    name: str
    position: int
    lag: int = 0
    held: bool = False
    active: float = 0.0

    @classmethod
    def read(cls, fields: dict[str, Any]) -> DurableInfo:
        """Makes a `DurableInfo` from the broker's JSON; unknown fields are ignored."""
        return cls(**{name: value for name, value in fields.items() if name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A consumer group of a broadcast topic, which belongs to the topic, not to a user.

    Attributes:
        name: The group's name.
        lag: The number of kept messages that the group has not acknowledged.
        in_flight: The number of those that its consumers have.
        consumers: The number of its consumers.
        active: When a consumer last joined, got or acknowledged a message, or left, in seconds since 1970. A restart of
            the broker counts as activity.
    """

    name: str
    lag: int = 0
    in_flight: int = 0
    consumers: int = 0
    active: float = 0.0

    @classmethod
    def read(cls, fields: dict[str, Any]) -> GroupInfo:
        """Makes a `GroupInfo` from the broker's JSON; unknown fields are ignored."""
        return cls(**{name: value for name, value in fields.items() if name in cls.__dataclass_fields__})
