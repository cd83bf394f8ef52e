"""omq's broker through `omq.broker.Client`: the first message of a read from a random place in the topic."""

from __future__ import annotations

import random
from typing import Any

from bench.broker.drivers import TOPIC, ClientJob, omq_client


class Client(omq_client.Client):
    """The client of `omq_client` whose `trip` is a read of one message; option: `start`, "id" or "time"."""

    def __init__(self, job: ClientJob) -> None:
        super().__init__(job)
        self._chance = random.Random(job.size)
        self._range: tuple[Any, Any] | None = None  # the ids, or times, of the first message and the last one

    def trip(self) -> None:
        if self._range is None:
            self._range = self._whole_range()
        first, last = self._range
        start = (
            self._chance.randint(first, last) if self._options["start"] == "id" else self._chance.uniform(first, last)
        )
        (message,) = self._broker.read(TOPIC, start, limit=1)
        found = message.id if self._options["start"] == "id" else message.timestamp
        assert found >= start

    def _whole_range(self) -> tuple[Any, Any]:
        (info,) = self._broker.topics(TOPIC)
        if self._options["start"] == "id":
            return info.first, info.last
        (first,) = self._broker.read(TOPIC, limit=1)
        (last,) = self._broker.read(TOPIC, info.last)
        return first.timestamp, last.timestamp
