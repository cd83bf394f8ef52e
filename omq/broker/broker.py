"""The core of a broker: its topics, whatever door their messages come through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from omq.broker.errors import BrokerError
from omq.broker.permissions import Permission, Permissions
from omq.broker.stats import BrokerStats


class Sink(Protocol):
    """Where a door takes what a subscription or a share delivers. All of it is called in the broker's loop.

    Attributes:
        door: Whose it is, for the statistics.
        user: The user id of its connection.
        peer: Where its client is.
    """

    door: Literal["zmtp", "sexp"]
    user: str | None
    peer: str

    def room(self) -> int:
        """Bytes of records that it takes now; 0: none, and `more` of the subscription is called once there is room.

        Shares count messages by themselves and ask only whether this is 0.
        """

    def block(self, header: bytes, records: memoryview, counts: bytes) -> None:
        """Takes a block.

        Args:
            header: 32 bytes; see docs/reference/broker-protocol.md.
            records: The store's own memory: valid until the call returns, and to be copied if they are to stay.
            counts: A `u32` a record, which delivery this is; empty where all are 1, and for subscriptions.
        """

    def ended(self, error: BrokerError | None) -> None:
        """Nothing follows: the topic is deleted, or cannot be read; `None` where the holder ended it itself."""


class Subscription(Protocol):
    """A reader of a broadcast topic.

    Attributes:
        position: The id of the last message that was given to the sink.
    """

    position: int

    def more(self) -> None:
        """The sink has room."""

    def move(self, position: int) -> None:
        """Keeps a position under the subscription's name."""

    def end(self) -> None:
        """Nothing follows; `ended` is not called. Idempotent."""


class Share(Protocol):
    """A consumer of a round-robin topic."""

    def more(self, messages: int) -> None:
        """Gives credit for so many messages more."""

    def ack(self, ranges: Iterable[tuple[int, int]]) -> None:
        """These are done: ids, first and last of each range; what it does not hold is passed over."""

    def nack(self, ranges: Iterable[tuple[int, int]]) -> None:
        """These are to be delivered again, at once."""

    def end(self) -> None:
        """Gives back what was not acknowledged. Idempotent."""


class Broker:
    """Topics and who reads them; lives in one event loop, whose thread makes all calls.

    Args:
        directory: Where the topics are kept; `None` keeps everything in memory.
        permissions: Who may do what; the doors ask.
        flush_interval: Seconds between two flushes of weak topics.
    """

    topics: dict[str, Any]
    permissions: Permissions

    def __init__(
        self,
        directory: str | Path | None,
        *,
        permissions: Iterable[Permission] = (),
        flush_interval: float = 1.0,
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Opens the store.

        Raises:
            StoreLocked: Another process has the directory.
        """

    async def close(self) -> None:
        """Answers what was taken, ends what reads, and closes the store."""

    async def create(
        self,
        name: str,
        *,
        delivery: str = "broadcast",
        persistence: str = "strong",
        settings: Mapping[str, Any] | None = None,
    ) -> Any:
        """Makes a topic, or finds it as asked.

        Raises:
            TopicError: It is there with other settings; or a name or a setting does not fit.
        """

    async def delete(self, name: str) -> None:
        """Deletes a topic and ends what reads it.

        Raises:
            TopicError: There is none.
        """

    def topic(self, name: str) -> Any:
        """The topic of this name.

        Raises:
            TopicError: There is none.
        """

    def append(
        self,
        topic: Any,
        records: bytes | memoryview,
        count: int,
        *,
        producer: bytes = b"",
        sequence: int = 0,
        settled: int = 0,
        done: Callable[[int, BrokerError | None], None],
    ) -> None:
        """Stores records that were checked (`omq._core.blocks.check`).

        Args:
            topic: The topic.
            records: Borrowed: nobody changes them.
            count: How many they are.
            producer: With `sequence`, what makes a repetition harmless.
            sequence: See `producer`.
            settled: The producer has the answers of all sequences below.
            done: Called in the loop with the first record's id, or 0 and the error, once the topic's persistence holds.
        """

    def subscribe(self, topic: Any, replay: str | int, sink: Sink, *, name: str | None = None) -> Subscription:
        """Begins to read a broadcast topic.

        Args:
            topic: The topic.
            replay: `"current"`, `"beginning"`, or an id: those after it.
            sink: Where to.
            name: The broker keeps the position under it, and goes on there. One holder a name.

        Raises:
            TopicError: It is a round-robin topic; the name is held; the id is from the future.
            Overrun: Ids that are no longer kept are asked for.
        """

    def consume(self, topic: Any, sink: Sink, *, ack_timeout: float = 30.0, credit: int = 100) -> Share:
        """Takes a share of a round-robin topic.

        Raises:
            TopicError: It is a broadcast topic.
        """

    def stats(self) -> BrokerStats:
        """What the broker tells about itself."""

    loop: asyncio.AbstractEventLoop
