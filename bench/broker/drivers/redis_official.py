"""Redis Streams through redis-py."""

from __future__ import annotations

from typing import Any

import redis

from bench.broker.drivers import ANSWER_TIMEOUT_S, TOPIC, ClientJob


class Client:
    """Publishes, consumes and replays."""

    def __init__(self, job: ClientJob) -> None:
        self._depth, self._entry = job.depth, {b"d": job.body()}
        host, port = job.host
        self._redis: Any = redis.Redis(host=host, port=port, socket_timeout=ANSWER_TIMEOUT_S)

    def create(self) -> None:
        self._redis.xgroup_create(TOPIC, "shared", id="0", mkstream=True)

    def publish(self, count: int) -> None:
        while count > 0:
            pipeline = self._redis.pipeline(transaction=False)
            for _ in range(min(count, self._depth)):
                pipeline.xadd(TOPIC, self._entry)
            pipeline.execute()
            count -= self._depth

    def trip(self) -> None:
        self._redis.xadd(TOPIC, self._entry)

    def arm(self) -> None: ...

    def consume(self, count: int) -> None:
        while count > 0:
            found = self._redis.xreadgroup("shared", "me", {TOPIC: ">"}, count=min(count, self._depth), block=1000)
            for _, entries in _streams(found):
                count -= self._redis.xack(TOPIC, "shared", *(entry[0] for entry in entries))

    def replay(self, count: int) -> None:
        last: Any = "0-0"
        while count > 0:
            for _, entries in _streams(self._redis.xread({TOPIC: last}, count=self._depth)):
                count -= len(entries)
                last = entries[-1][0]


def _streams(found: Any) -> Any:
    """Returns the streams of an answer: a list of RESP 2, or a dictionary of lists of RESP 3."""
    return [(name, lists[0]) for name, lists in found.items()] if isinstance(found, dict) else found
