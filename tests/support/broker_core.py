"""Fixtures for tests of the broker's core: a broker, a sink and a store that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from omq._core import blocks
from omq.broker.core.broker import Broker
from omq.broker.core.stats import TopicStats
from omq.broker.core.topic import Topic
from omq.broker.errors import BrokerError
from omq.store.interface import Store, Write
from tests.support.async_waits import until as until


@asynccontextmanager
async def core(directory: Path | None = None, **options: Any) -> AsyncIterator[Broker]:
    """Runs a broker, in memory without a directory, and checks its cached statistics in each turn of the loop."""
    broker = Broker(directory, **options)
    await broker.start()
    stale: list[tuple[TopicStats, TopicStats]] = []
    watch = asyncio.create_task(_watch_stats(broker, stale))
    try:
        yield broker
    finally:
        watch.cancel()
        await broker.close()
    assert not stale, "statistics have changed without a call of `Topic.touch`"


async def _watch_stats(broker: Broker, stale: list[tuple[TopicStats, TopicStats]]) -> None:
    """Compares the cached statistics of topics with new ones."""
    while not stale:
        for topic in tuple(broker.topics.values()):
            cached, expected = topic.stats(), topic._collect_stats(topic.state())
            if cached != expected and topic.stats() is cached:  # otherwise messages have expired meanwhile
                stale.append((cached, expected))
        await asyncio.sleep(0)


async def append(broker: Broker, topic: Topic, bodies: list[bytes], **producer: Any) -> int:
    """Publishes messages, and returns the first id."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(first: int, error: BrokerError | None) -> None:
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(first)

    topic.append(blocks.encode(bodies), len(bodies), done=done, **producer)
    return await answer


class RecordingSink:
    """A sink that decodes what it gets.

    Attributes:
        got: The id and the body of each message.
        counts: The delivery count of each message.
        errors: The errors of `closed`.
        room_left: The bytes that it still has room for.
    """

    listener: Literal["zmtp", "sexp"] = "zmtp"
    user = None
    peer = "tcp://sink"

    def __init__(self, room_left: int = 1 << 30) -> None:
        self.got: list[tuple[int, bytes]] = []
        self.counts: list[int] = []
        self.errors: list[BrokerError | None] = []
        self.blocks = 0
        self.room_left = room_left
        self.fault: Exception | None = None

    def room(self) -> int:
        return self.room_left

    def send_block(self, header: bytes, records: memoryview, counts: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        messages = blocks.decode(header, records, "t")
        self.got += [(message.id, message.body) for message in messages]
        flat = [int.from_bytes(counts[at : at + 4], "big") for at in range(0, len(counts), 4)]
        self.counts += flat or [1] * len(messages)
        self.blocks += 1
        self.room_left = max(self.room_left - len(records), 0)

    def closed(self, error: BrokerError | None) -> None:
        self.errors.append(error)

    @property
    def ids(self) -> list[int]:
        return [id for id, _ in self.got]


class FailingStore:
    """A store that fails for a while."""

    def __init__(self, store: Store, error: Exception | None) -> None:
        self.store, self.error = store, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def submit_many(self, writes: Sequence[Write]) -> None:
        if self.error is not None:
            raise self.error
        self.store.submit_many(writes)


async def run_pending(broker: Broker) -> None:
    """Runs what is pending in the loop."""
    for _ in range(20):
        await asyncio.sleep(0)
