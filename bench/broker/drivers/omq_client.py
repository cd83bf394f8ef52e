"""omq's broker through `omq.broker.Client`."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from bench.broker.drivers import ANSWER_TIMEOUT_S, TOPIC, ClientJob
from omq.broker import Client as Broker

FENCE = "bench-fence"  # a publish to it is answered after all acknowledgements before it


class Client:
    """Publishes, consumes and replays; options: `persistence`, `delivery`, `group`, `role`, and `by`, which replays."""

    def __init__(self, job: ClientJob) -> None:
        self._depth, self._body, self._options = job.depth, job.body(), job.options
        self._broker: Any = Broker(job.endpoint, timeout=ANSWER_TIMEOUT_S, role=job.options.get("role", "leader"))
        self._jobs: Any = None

    def create(self) -> None:
        persistence = self._options.get("persistence", "strong")
        self._broker.create(TOPIC, delivery=self._options.get("delivery", "broadcast"), persistence=persistence)
        self._broker.create(FENCE, persistence="transient")

    def publish(self, count: int) -> None:
        self._broker.publish_many(TOPIC, repeat(self._body, count), in_flight=self._depth)

    def trip(self) -> None:
        self._broker.publish(TOPIC, self._body)

    def arm(self) -> None:
        self._jobs = self._broker.consume(TOPIC, group=self._options.get("group"), credit=self._depth)

    def consume(self, count: int) -> None:
        for _ in range(count):
            self._jobs.recv(timeout=ANSWER_TIMEOUT_S).ack()
        self._broker.publish(FENCE, b"")  # then all acknowledgements before it are durable

    def replay(self, count: int) -> None:
        if self._options.get("by") == "read":
            messages = self._broker.read(TOPIC, 1, count + 1)
            assert sum(1 for _ in messages) == count
            return
        with self._broker.subscribe(TOPIC, replay="earliest") as messages:
            for _, message in zip(range(count), messages, strict=False):
                last = message
        assert last.id == count
