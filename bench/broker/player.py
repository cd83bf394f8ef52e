"""The bench's end of a client that runs in a process of its own, and what a burst of it gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.broker.drivers import Job
from bench.broker.plan import Load, Row
from bench.broker.services import Running
from bench.measure import Sample
from bench.processes import Talker

PATIENCE = 900.0  # seconds for any one answer of a client


class Player(Talker):
    """A client in a process of its own.

    Args:
        row: The row that it is measured for.
        driver: Which of the row's drivers it is.
        server: Whom it talks to.
        load: The load.
    """

    def __init__(self, row: Row, driver: str, server: Running, load: Load) -> None:
        job = Job(server.endpoint, load.size, load.depth, str(server.directory), dict(row.options))
        text = json.dumps({**asdict(job), "limit": int(4 * PATIENCE)})
        super().__init__(f"{row.label} ({driver})", "bench.broker.worker", driver, text)

    def does(self, order: str, count: int = 0) -> Any:
        """Gives an order and waits for what came of it."""
        self.order(do=order, count=count)
        return self.hear(FACTS.get(order, "did"), PATIENCE)


FACTS: Mapping[str, str] = {
    **dict.fromkeys(("publish", "replay"), "ended"),
    "trips": "trips",
    **dict.fromkeys(("away", "one_by_one", "at_once"), "seconds"),
}


def sampled(count: int, took: float, server: Running, *busy: float) -> Sample:
    """What a burst gave; `busy` are the processors' seconds of the server and the clients."""
    serving_, *clients = (1e6 * seconds / count for seconds in busy)
    memory = server.memory() / (1 << 20)
    return {"rate": count / took, "memory": memory, "server": serving_, "client": sum(clients)}
