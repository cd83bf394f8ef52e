"""How one row of a case is measured once."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.broker.drivers import Job
from bench.broker.plan import Case, Load, Row
from bench.broker.services import Running, serving
from bench.measure import Sample, calibrated, percentiles
from bench.processes import RunError, Talker

PATIENCE = 900.0  # seconds for any one answer of a client
FILLING = 10.0  # seconds that filling a server for a consumer may take
TRIPS = 300  # single publishes that are timed
WARM = 50  # and those before them
QUALIFYING = 100_000  # messages that a driver replays to show which one is better

#: Measures a row once, by that driver.
Run = Callable[[Row, str], Sample]


class Worker(Talker):
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


FACTS: Mapping[str, str] = {"publish": "ended", "replay": "ended", "trips": "trips"}


@contextmanager
def _pair(row: Row, driver: str, load: Load, place: Path) -> Iterator[tuple[Running, Worker, ExitStack]]:
    with ExitStack() as stack:
        os.sync()  # what earlier runs left behind is not this one's
        server = stack.enter_context(serving(row.service, row.settings, place))
        producer = stack.enter_context(Worker(row, driver, server, load))
        producer.hear("ready", PATIENCE)
        producer.does("create")
        yield server, producer, stack


def _sample(count: int, took: float, server: Running, *busy: float) -> Sample:
    """What a burst gave; `busy` are the processors' seconds of the server and the clients."""
    serving_, *clients = (1e6 * seconds / count for seconds in busy)
    memory = server.memory() / (1 << 20)
    return {"rate": count / took, "memory": memory, "server": serving_, "client": sum(clients)}


def publish(row: Row, driver: str, load: Load, place: Path) -> Sample:
    """One producer."""
    with _pair(row, driver, load, place) as (server, producer, _):
        busy: list[float] = []

        def burst(count: int) -> float:
            before = server.busy()
            facts = producer.does("publish", count)
            busy[:] = [server.busy() - before, facts["busy"]]
            return float(facts["ended"] - facts["started"])

        count, took = calibrated(burst, load.seconds, 2 * load.depth)
        return _sample(count, took, server, *busy)


def latency(row: Row, driver: str, load: Load, place: Path) -> Sample:
    """One producer that waits for each acknowledgement."""
    with _pair(row, driver, load, place) as (_, producer, _):
        producer.does("trips", WARM)
        return percentiles(producer.does("trips", TRIPS))


def consume(row: Row, driver: str, load: Load, place: Path) -> Sample:
    """One consumer, of messages that wait."""
    return _consumed(row, driver, load, place, at_once=False)


def together(row: Row, driver: str, load: Load, place: Path) -> Sample:
    """One producer and one consumer; the time ends with the last acknowledgement of both."""
    return _consumed(row, driver, load, place, at_once=True)


def _consumed(row: Row, driver: str, load: Load, place: Path, at_once: bool) -> Sample:
    with _pair(row, driver, load, place) as (server, producer, stack):
        consumer = stack.enter_context(Worker(row, driver, server, load))
        consumer.hear("ready", PATIENCE)
        consumer.does("arm")

        filling = 0.0
        busy: list[float] = []

        def burst(count: int) -> float:
            nonlocal filling
            if not at_once:
                published = producer.does("publish", count)
                filling = (published["ended"] - published["started"]) / count
            before = server.busy()
            consumer.order(do="consume", count=count)
            consumer.hear("begun")
            if at_once:
                published = producer.does("publish", count)
            facts = consumer.hear("ended", PATIENCE)
            busy[:] = [server.busy() - before, facts["busy"], published["busy"] if at_once else 0.0]
            if not at_once:
                return float(facts["ended"] - facts["started"])
            return float(max(facts["ended"], published["ended"]) - published["started"])

        count = 2 * load.depth
        for seconds in (min(0.2, load.seconds), load.seconds):
            took = burst(count)
            # A server that is filled slowly is not filled for longer than this.
            fill = FILLING / filling if filling else float("inf")
            count = max(count, int(min(count * seconds / took, fill)))
        took = burst(count)
        return _sample(count, took, server, *busy)


class Replays:
    """Servers that were filled once, and are read again and again.

    Args:
        load: The load.
        place: Where their directories are made.
    """

    def __init__(self, load: Load, place: Path) -> None:
        self._load, self._place = load, place
        self._servers: dict[str, Running] = {}
        self._held = ExitStack()

    def close(self) -> None:
        """Ends the servers."""
        self._held.close()

    def run(self, row: Row, driver: str, count: int | None = None) -> Sample:
        """Reads all of it, or the first `count`."""
        server = self._filled(row)
        count = count or self._load.messages
        with Worker(row, driver, server, self._load) as worker:
            worker.hear("ready", PATIENCE)
            before = server.busy()
            facts = worker.does("replay", count)
            busy = server.busy() - before
        return _sample(count, facts["ended"] - facts["started"], server, busy, facts["busy"])

    def _filled(self, row: Row) -> Running:
        key = f"{row.drivers[0]} {sorted(row.settings.items())}"
        if key not in self._servers:
            self._check_room(row)
            server = self._held.enter_context(serving(row.service, row.settings, self._place))
            with Worker(row, row.drivers[0], server, self._load) as worker:
                worker.hear("ready", PATIENCE)
                worker.does("create")
                worker.does("publish", self._load.messages)
            self._servers[key] = server
            time.sleep(1.5)  # what is flushed each second has been
        return self._servers[key]

    def _check_room(self, row: Row) -> None:
        needed = int(1.3 * self._load.messages * self._load.size)
        if shutil.disk_usage(self._place).free < needed + (2 << 30):
            raise RunError(f"{row.label}: no room for {needed >> 30} GiB in {self._place}")
        # Redis keeps all of it in memory.
        if row.peer == "redis" and needed > 0.6 * available():
            raise RunError(f"{row.label}: it would need {needed >> 30} GiB of memory")


def available() -> int:
    """Bytes of memory that programs can have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@contextmanager
def runner(case: Case, load: Load, place: Path) -> Iterator[tuple[Run, Run]]:
    """How a case's rows are measured, and how their drivers qualify."""
    if case.scenario == "replay":
        replays = Replays(load, place)
        try:
            yield replays.run, lambda row, driver: replays.run(row, driver, min(QUALIFYING, load.messages))
        finally:
            replays.close()
        return
    measured = {"publish": publish, "latency": latency, "consume": consume, "together": together}[case.scenario]

    def run(row: Row, driver: str) -> Sample:
        return measured(row, driver, load, place)

    yield run, run
