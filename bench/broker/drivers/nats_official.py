"""NATS JetStream through nats-py."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
import uvloop
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from bench.broker.drivers import ANSWER_TIMEOUT_S, TOPIC, ClientJob


class Client:
    """Publishes, consumes and replays, in a loop of its own."""

    def __init__(self, job: ClientJob) -> None:
        self._depth, self._body = job.depth, job.body()
        self._loop = uvloop.new_event_loop()
        self._run = self._loop.run_until_complete
        self._shared: Any = None
        self._run(self._connect(job.endpoint))

    async def _connect(self, endpoint: str) -> None:
        self._connection = await nats.connect(f"nats://{endpoint}", pending_size=16 << 20)
        self._stream = self._connection.jetstream(publish_async_max_pending=self._depth, timeout=ANSWER_TIMEOUT_S)

    def create(self) -> None:
        self._run(self._stream.add_stream(name=TOPIC, subjects=[TOPIC]))
        settings = ConsumerConfig(
            durable_name="shared",
            ack_policy=AckPolicy.EXPLICIT,
            deliver_policy=DeliverPolicy.ALL,
            max_ack_pending=self._depth,
        )
        self._run(self._stream.add_consumer(TOPIC, settings))

    def publish(self, count: int) -> None:
        self._run(self._publish(count))

    async def _publish(self, count: int) -> None:
        futures = []
        for _ in range(count):
            futures.append(await self._stream.publish_async(TOPIC, self._body))
            if len(futures) == self._depth:
                await asyncio.gather(*futures[: self._depth // 2])
                del futures[: self._depth // 2]
        await asyncio.gather(*futures)

    def trip(self) -> None:
        self._run(self._stream.publish(TOPIC, self._body))

    def arm(self) -> None:
        self._shared = self._run(self._stream.pull_subscribe_bind("shared", TOPIC))

    def consume(self, count: int) -> None:
        self._run(self._consume(count))

    async def _consume(self, count: int) -> None:
        taken = 0
        while taken < count:
            messages = await self._shared.fetch(min(self._depth, count - taken), timeout=ANSWER_TIMEOUT_S)
            taken += len(messages)
            for message in messages[:-1] if taken == count else messages:
                await message.ack()
        await messages[-1].ack_sync()

    def replay(self, count: int) -> None:
        self._run(self._replay(count))

    async def _replay(self, count: int) -> None:
        subscription = await self._stream.subscribe(TOPIC, ordered_consumer=True)
        for _ in range(count):
            await subscription.next_msg(timeout=ANSWER_TIMEOUT_S)
        await subscription.unsubscribe()
