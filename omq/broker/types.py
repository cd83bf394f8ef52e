"""The types that clients of a broker use: messages, deliveries and topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from omq._core.blocks import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from typing_extensions import Buffer

MAX_DELAY_S = 4_000_000  #: Seconds that a delivery may be put off.

__all__ = [
    "Columns",
    "Committed",
    "Delivery",
    "Maps",
    "Message",
    "DurableInfo",
    "Record",
    "Records",
    "Texts",
    "TopicInfo",
]


class Record(NamedTuple):
    """A body with its key and headers, for calls that publish many.

    Attributes:
        body: Its content.
        key: A key, for the readers.
        headers: More about it, by name.
    """

    body: Buffer
    key: bytes | None = None
    headers: Mapping[str, Buffer] | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """Messages that are encoded already, one after the other; `encode_columns` makes them.

    Attributes:
        data: The records.
        count: How many they are: 65,536 at most.
    """

    data: bytes
    count: int


class Maps(NamedTuple):
    """The headers of messages, as Apache Arrow lays out a column of maps.

    Attributes:
        ends: Where the headers of each row begin and end among all: a number more than there are rows, 32 bits each.
        names: Their names.
        values: Their values.
        valid: A bit a row: whether it has headers; `None` where all have.
        nulls: How many have none.
    """

    ends: bytes
    names: Texts
    values: Texts
    valid: bytes | None
    nulls: int


class Texts(NamedTuple):
    """Keys, or names or values of headers, as Apache Arrow lays out a column of bytes.

    Attributes:
        ends: Where each begins and ends in the data: a number more than there are, 32 bits each.
        data: All of them.
        valid: A bit each: whether it is there; `None` where all are.
        nulls: How many are not.
    """

    ends: bytes
    data: bytes
    valid: bytes | None
    nulls: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Messages of a topic as columns, laid out as Apache Arrow does.

    Attributes:
        count: How many.
        ids: Their ids, 64 bits each.
        timestamps: When the broker took them, microseconds since 1970, 64 bits each.
        ends: Where each body begins and ends: a number more than there are messages, 32 bits each; empty if bodies
            were not wanted.
        bodies: The memory in which the bodies stand, from its beginning; `None` if they were not wanted.
        size: Bytes of the bodies.
        keys: The keys; `None` if they were not wanted.
        headers: The headers; `None` if they were not wanted.
    """

    count: int
    ids: bytes
    timestamps: bytes
    ends: bytes
    bodies: Buffer | None
    size: int
    keys: Texts | None
    headers: Maps | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The messages of a stage that a commit has published.

    Attributes:
        stage: The stage's name.
        topic: The topic's; empty where it was deleted since.
        first: The id of the first message; 0 for none.
        count: How many there are; their ids follow one another.
    """

    stage: str
    topic: str
    first: int
    count: int


class DeliveryConsumer(Protocol):
    """A consumer of either twin. In asyncio each call gives an awaitable: it waits until the broker has recorded it."""

    def acknowledge(self, delivery: Delivery) -> Awaitable[None] | None:
        """Has the broker note that a delivery is finished."""

    def retry(self, delivery: Delivery, delay: float | None) -> Awaitable[None] | None:
        """Asks the broker for a delivery again, after `delay` seconds."""

    def progress(self, delivery: Delivery) -> Awaitable[None] | None:
        """Has the broker restart the `ack_timeout` of a delivery."""


class Delivery(Message):
    """A message of a round-robin topic, which waits for its `ack`.

    Attributes:
        deliveries: Which delivery of the message this is; 1 the first time.
    """

    __slots__ = ("consumer", "deliveries", "session")

    deliveries: int
    #: The consumer that it came through.
    consumer: DeliveryConsumer
    #: Counts the connections of the client: in the next one the broker delivers again what was not acknowledged.
    session: int

    def ack(self) -> Any:
        """Acknowledges the message: it is finished. Repeating it does no harm.

        Returns:
            `None`: the call does not wait; `Client.flush` does. In asyncio an awaitable: calling is enough, awaiting it
            waits until the broker has recorded the acknowledgement.

        Raises:
            ClosedError: The consumer is closed: the broker has given the message to another one.
        """
        return self.consumer.acknowledge(self)

    def nack(self, *, delay: float | None = None) -> Any:
        """Asks for the message again, for whichever consumer is free then.

        Args:
            delay: Seconds until then; 0: at once; `None`: the topic's `retry_delay`.

        Returns:
            As `ack`.

        Raises:
            ValueError: *delay* is below 0, or no number of seconds.
            ClosedError: The consumer is closed: the broker has given the message to another one.
        """
        return self.consumer.retry(self, check_delay(delay))

    def in_progress(self) -> Any:
        """Restarts the message's `ack_timeout`, and that of the messages delivered after it.

        Returns:
            As `ack`.

        Raises:
            ClosedError: The consumer is closed: the broker has given the message to another one.
        """
        return self.consumer.progress(self)


def check_delay(delay: float | None) -> float | None:
    """Returns the seconds of `nack`.

    Raises:
        ValueError: They are below 0, more than 49 days, or no number.
        TypeError: They are not a number.
    """
    if delay is None:
        return None
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise TypeError(f"delay={delay!r}: must be a number of seconds, or None")
    if not 0 <= delay <= MAX_DELAY_S:
        raise ValueError(f"delay={delay!r}: must be 0 to {MAX_DELAY_S} seconds")
    return float(delay)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic, as the broker describes it.

    Attributes:
        name: Its name.
        id: Its number; no later topic gets it again.
        delivery: `"broadcast"` or `"round-robin"`.
        persistence: `"transient"`, `"strong"`, `"weak"` or `"async"`.
        first: The oldest id that is kept.
        last: The newest id that was given; 0 for none.
        bytes: What the kept messages take.
        subscribers: How many read it, or share it.
        settings: `max_messages`, `max_bytes`, `max_age`, `overflow`, `retain_for`, `max_deliveries`, `dead_letter`,
            `retry_delay`, as far as they are set.
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
        """Makes one of the broker's JSON; what this version does not know is passed over."""
        return cls(**{name: value for name, value in fields.items() if name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableInfo:
    """A name that the broker keeps a position under; it is the topic's, not a user's.

    Attributes:
        name: The name.
        position: The id up to which its subscriber is done.
        lag: How many messages follow.
        held: Whether a subscription has it now.
    """

    name: str
    position: int
    lag: int = 0
    held: bool = False

    @classmethod
    def read(cls, fields: dict[str, Any]) -> DurableInfo:
        """Makes one of the broker's JSON; what this version does not know is passed over."""
        return cls(**{name: value for name, value in fields.items() if name in cls.__dataclass_fields__})
