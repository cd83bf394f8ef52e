"""omq's broker through `omq.broker.Client`: cursors in many topics, which are left and resume."""

from __future__ import annotations

import time
from typing import Any

from bench.broker.drivers import ANSWER_TIMEOUT_S, ClientJob
from bench.broker.plan import TOPICS
from omq.broker import Client as Broker

CURSOR = "away"
TOPIC_NAMES = [f"bench{number}" for number in range(TOPICS)]


class Client:
    """Fills topics, leaves a cursor in the middle of each, and resumes."""

    def __init__(self, job: ClientJob) -> None:
        self._bodies = [job.body()] * job.depth
        self._broker: Any = Broker(job.endpoint, timeout=ANSWER_TIMEOUT_S)
        self._topics = iter(TOPIC_NAMES)

    def create(self) -> None:
        for topic in TOPIC_NAMES:
            self._broker.create(topic, persistence="weak")

    def publish(self, count: int) -> None:
        """Fills the next topic."""
        topic = next(self._topics)
        while count > 0:
            self._broker.publish_many(topic, self._bodies[:count])
            count -= len(self._bodies)

    def leave(self, count: int) -> list[float]:
        """Leaves the cursor at *count* in each topic."""
        for topic in TOPIC_NAMES:
            with self._broker.subscribe(topic, name=CURSOR, replay=count - 1) as messages:
                messages.ack(messages.recv(timeout=ANSWER_TIMEOUT_S))
        return []

    def one_by_one(self, count: int) -> list[float]:
        """Returns the seconds from `subscribe` to the first message, for each cursor alone."""
        found = []
        for topic in TOPIC_NAMES:
            started = time.perf_counter()
            with self._broker.subscribe(topic, name=CURSOR) as messages:
                first = messages.recv(timeout=ANSWER_TIMEOUT_S)
                found.append(time.perf_counter() - started)
            assert first.id == count + 1, first.id
        return found

    def at_once(self, count: int) -> list[float]:
        """Returns the seconds until all cursors have their first messages."""
        started = time.perf_counter()
        subscriptions = [self._broker.subscribe(topic, name=CURSOR) for topic in TOPIC_NAMES]
        firsts = [messages.recv(timeout=ANSWER_TIMEOUT_S).id for messages in subscriptions]
        took = time.perf_counter() - started
        assert set(firsts) == {count + 1}, firsts
        for messages in subscriptions:
            messages.close()
        return [took]
