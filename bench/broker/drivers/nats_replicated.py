"""NATS JetStream through nats-py, with a stream of three replicas; option `by`: `window`, `gather`."""

from __future__ import annotations

import asyncio

from bench.broker.drivers import TOPIC, ClientJob, nats_official


class Client(nats_official.Client):
    """Publishes with a window that slides, or with one call of `gather` for each window."""

    def __init__(self, job: ClientJob) -> None:
        super().__init__(job)
        self._gathers = job.options.get("by") == "gather"

    def create(self) -> None:
        self._run(self._stream.add_stream(name=TOPIC, subjects=[TOPIC], num_replicas=3))

    async def _publish(self, count: int) -> None:
        if not self._gathers:
            await super()._publish(count)
            return
        for first in range(0, count, self._depth):
            await asyncio.gather(
                *(self._stream.publish(TOPIC, self._body) for _ in range(min(self._depth, count - first)))
            )
