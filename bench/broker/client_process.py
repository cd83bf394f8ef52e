"""Clients that run in processes of their own, and the sample of a burst."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.broker.drivers import ClientJob
from bench.broker.plan import BrokerLoad, Row
from bench.broker.servers import MeasuredServer
from bench.measure import Sample, percentiles
from bench.processes import ControlledProcess

CLIENT_TIMEOUT_S = 900.0  # for any one report of a client
TRIPS = 300  # single calls that are timed
WARMUP_TRIPS = 50  # before them


class ClientProcess(ControlledProcess):
    """A client in a process of its own.

    Args:
        row: The row that it is measured for.
        driver: One of the drivers of the row.
        server: The server.
        load: The load.
    """

    def __init__(self, row: Row, driver: str, server: MeasuredServer, load: BrokerLoad) -> None:
        job = ClientJob(server.endpoint, load.size, load.depth, str(server.directory), dict(row.options))
        text = json.dumps({**asdict(job), "limit": int(4 * CLIENT_TIMEOUT_S)})
        super().__init__(f"{row.label} ({driver})", "bench.broker.worker", driver, text)

    def call(self, order: str, count: int = 0) -> Any:
        """Sends an order and returns its report."""
        self.order(do=order, count=count)
        return self.wait_for(REPORT_KEYS.get(order, "did"), CLIENT_TIMEOUT_S)


REPORT_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("publish", "replay"), "ended"),
    "trips": "trips",
    **dict.fromkeys(("leave", "one_by_one", "at_once"), "seconds"),
}


def sample_of(count: int, took: float, server: MeasuredServer, *busy: float) -> Sample:
    """Returns the sample of a burst; *busy*: processor seconds of the server and of the clients."""
    server_time, *client_times = (1e6 * seconds / count for seconds in busy)
    memory = server.memory() / (1 << 20)
    return {"rate": count / took, "memory": memory, "server": server_time, "client": sum(client_times)}


def sample_of_trips(client: ClientProcess) -> Sample:
    """Has a client make single calls, and returns the percentiles of their times."""
    client.call("trips", WARMUP_TRIPS)
    return percentiles(client.call("trips", TRIPS))
