"""A floor of a cluster: appends to a journal of its own, one after the other, each with a window of messages."""

from __future__ import annotations

import asyncio

from bench.broker.drivers import ClientJob
from omq.store.replication.nats_connection import NatsOptions
from omq.store.replication.nats_journal import NatsJournal

CLUSTER = "floor"


class Client:
    """Appends entries."""

    def __init__(self, job: ClientJob) -> None:
        self._depth, self._body = job.depth, job.body()
        self._window = self._body * job.depth
        self._loop = asyncio.new_event_loop()
        self._run = self._loop.run_until_complete
        self._journal = self._run(NatsJournal.connect(NatsOptions(servers=[f"nats://{job.endpoint}"]), CLUSTER))
        self._last = 0

    def create(self) -> None:
        self._last = self._run(self._journal.last())

    def publish(self, count: int) -> None:
        self._run(self._publish(count))

    async def _publish(self, count: int) -> None:
        while count > 0:
            payload = self._window[: min(count, self._depth) * len(self._body)]
            self._last = await self._journal.append(payload, self._last)
            count -= self._depth

    def trip(self) -> None:
        self._last = self._run(self._journal.append(self._body, self._last))
