"""Work queues over a store in memory, and consumers that record their deliveries."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from omq._core import blocks
from omq.store.async_store import AsyncStore
from omq.store.interface import Append, MakeTopic, MoveToDeadLetter, Write
from omq.store.memory import MemoryStore
from omq.workqueue.consumer import QueueConsumer
from omq.workqueue.dispatcher import Dispatcher
from omq.workqueue.queue import DeadLetter, WorkQueue

log = logging.getLogger("omq.store")


class QueueOwner:
    """The topic of a work queue.

    Attributes:
        finished_ids: What was finished, in that order.
        dead: Ids that have become dead letters.
        letters: Their delivery counts and reasons, in the order of the moves.
    """

    deleted = False

    def __init__(self, store: AsyncStore, name: str, dead_letters: int) -> None:
        self.store, self.name, self.dead_letters = store, name, dead_letters
        self.label = f"topic {name!r}"
        self.log_fields = {"topic": name}
        self.finished_ids: list[int] = []
        self.dead: list[int] = []
        self.letters: list[DeadLetter] = []
        self.delay = 0.0
        self.queue: WorkQueue

    def touch(self) -> None: ...
    def changed(self) -> None: ...
    def wake(self) -> None: ...
    def delivering(self, count: int, size: int, tries: int) -> None: ...
    def damaged(self, first: int, last: int) -> None: ...
    def later(self, seconds: float, call: Callable[[], None]) -> None: ...

    def finished(self, first: int, last: int) -> None:
        self.finished_ids += range(first, last + 1)

    def retry_delay(self, tries: int) -> float:
        return self.delay

    async def dead_letter_topic(self) -> int:
        return self.dead_letters

    def move_to_dead_letters(self, id: int, letter: DeadLetter, target: int, moved: Callable[[Write], None]) -> None:
        self.letters.append(letter)
        self.store.submit(MoveToDeadLetter(self.queue.id, id, target), moved)

    def moved_to_dead_letters(self, target: int, write: Any) -> None:
        self.dead.append(write.id)

    async def publish(self, *bodies: bytes) -> None:
        write = await self.store.do(Append(self.queue.id, blocks.encode(bodies), len(bodies)))
        self.queue.grown(write.first + write.count - 1)

    async def save(self) -> None:
        if (write := self.queue.unsaved()) is not None:
            await self.store.do(write)


class RecordingConsumer(QueueConsumer):
    """A consumer.

    Attributes:
        got: Queue (its number), id and delivery of each message.
        limit: Messages of a block that it takes.
    """

    def __init__(
        self, dispatcher: Dispatcher[RecordingConsumer], credit: int = 100, *, timeout: float = 30.0, **options: Any
    ):
        super().__init__(dispatcher, timeout, credit, **options)
        self.got: list[tuple[int, int, int]] = []
        self.limit = 1 << 30
        self.errors: list[Exception] = []
        dispatcher.add(self)

    def has_room(self) -> bool:
        return True

    def fits(self, queue: WorkQueue, header: bytes, records: memoryview, count: int) -> int:
        return min(count, self.limit)

    def send(self, queue: WorkQueue, header: bytes, records: memoryview, count: int, tries: int) -> None:
        messages = blocks.decode(header, records, "t")[:count]
        if any(message.body == b"poison" for message in messages):
            raise RuntimeError("poison")
        self.got += [(queue.base >> 64, message.id, tries) for message in messages]

    def failed(self, error: Exception) -> None:
        self.errors.append(error)
        self.end()

    @property
    def ids(self) -> list[int]:
        return [id for _, id, _ in self.got]


class WorkQueues:
    """A store in memory with work queues and a dispatcher.

    Args:
        owners: The topics.
    """

    def __init__(self, store: AsyncStore, owners: Sequence[QueueOwner]) -> None:
        self.store, self.owners = store, owners
        queues = [owner.queue for owner in owners]
        self.dispatcher: Dispatcher[RecordingConsumer] = Dispatcher(
            store, queues, 4096, lambda: None, lambda queue, error: None
        )

    @property
    def queue(self) -> WorkQueue:
        return self.owners[0].queue

    def pump(self) -> bool:
        return self.dispatcher.pump(lambda: [queue for queue in self.dispatcher.queues if queue.ready])


@asynccontextmanager
async def work_queues(queues: int = 1, **options: Any) -> AsyncIterator[WorkQueues]:
    store = AsyncStore(lambda grown: None, log, "test")
    await store.open(lambda notify, appended: MemoryStore(notify=notify, appended=appended))
    dead_letters = await store.do(MakeTopic("dead", "round_robin", "transient"))
    owners = []
    for number in range(queues):
        owner = QueueOwner(store, f"t{number}", dead_letters.topic_id)
        made = await store.do(MakeTopic(owner.name, "round_robin", "transient"))
        owner.queue = WorkQueue(owner, store, store.store.topic(made.topic_id), **options)
        owners.append(owner)
    try:
        yield WorkQueues(store, owners)
    finally:
        for owner in owners:
            await owner.queue.close()
        await store.close()
