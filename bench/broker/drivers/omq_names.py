"""omq's broker through `omq.broker.Client`: named subscriptions in many topics, which go away and resume."""

from __future__ import annotations

import time
from typing import Any

from bench.broker.drivers import PATIENCE, Job
from bench.broker.plan import TOPICS
from omq.broker import Client as Broker

NAME = "away"
NAMES = [f"bench{number}" for number in range(TOPICS)]


class Client:
    """Fills topics, leaves a name in the middle of each, and resumes."""

    def __init__(self, job: Job) -> None:
        self._bodies = [job.body()] * job.depth
        self._broker: Any = Broker(job.endpoint, timeout=PATIENCE)
        self._topics = iter(NAMES)

    def create(self) -> None:
        for topic in NAMES:
            self._broker.create(topic, persistence="weak")

    def publish(self, count: int) -> None:
        """Fills the next topic."""
        topic = next(self._topics)
        while count > 0:
            self._broker.publish_many(topic, self._bodies[:count])
            count -= len(self._bodies)

    def away(self, count: int) -> list[float]:
        """Leaves the name at `count` in each topic."""
        for topic in NAMES:
            with self._broker.subscribe(topic, name=NAME, replay=count - 1) as messages:
                messages.ack(messages.recv(timeout=PATIENCE))
        return []

    def one_by_one(self, count: int) -> list[float]:
        """Seconds from `subscribe` to the first message, for each name alone."""
        found = []
        for topic in NAMES:
            started = time.perf_counter()
            with self._broker.subscribe(topic, name=NAME) as messages:
                first = messages.recv(timeout=PATIENCE)
                found.append(time.perf_counter() - started)
            assert first.id == count + 1, first.id
        return found

    def at_once(self, count: int) -> list[float]:
        """Seconds until each of all names has its first message."""
        started = time.perf_counter()
        subscriptions = [self._broker.subscribe(topic, name=NAME) for topic in NAMES]
        firsts = [messages.recv(timeout=PATIENCE).id for messages in subscriptions]
        took = time.perf_counter() - started
        assert set(firsts) == {count + 1}, firsts
        for messages in subscriptions:
            messages.close()
        return [took]
