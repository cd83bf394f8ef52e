"""How one row of a case is measured once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.broker.plan import Case, Load, Row
from bench.broker.player import PATIENCE, Player, sampled
from bench.broker.replays import Replays
from bench.broker.resume import Resumes
from bench.broker.services import Running, serving
from bench.measure import Sample, calibrated, percentiles

FILLING = 10.0  # seconds that filling a server for a consumer may take
TRIPS = 300  # single publishes that are timed
WARM = 50  # and those before them
QUALIFYING = 0.3  # seconds of the burst by which a driver shows that it is the better one

#: Measures a row once, by that driver.
Run = Callable[[Row, str], Sample]


@contextmanager
def _pair(row: Row, driver: str, load: Load, place: Path) -> Iterator[tuple[Running, Player, ExitStack]]:
    with ExitStack() as stack:
        os.sync()  # what earlier runs left behind is not this one's
        server = stack.enter_context(serving(row.service, row.settings, place))
        producer = stack.enter_context(Player(row, driver, server, load))
        producer.hear("ready", PATIENCE)
        producer.does("create")
        yield server, producer, stack


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
        return sampled(count, took, server, *busy)


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
        consumer = stack.enter_context(Player(row, driver, server, load))
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
        return sampled(count, took, server, *busy)


@dataclass(frozen=True)
class Runner:
    """How a case is measured.

    Attributes:
        run: Measures a row.
        qualify: Shows a driver's rate, in less time.
        turns: The rows that take turns, and those that do so once these are through.
        over: Comes behind each of these.
    """

    run: Run
    qualify: Run
    turns: tuple[tuple[Row, ...], ...]
    over: Callable[[], None] = lambda: None


@contextmanager
def runner(case: Case, load: Load, place: Path) -> Iterator[Runner]:
    """How a case's rows are measured, and how their drivers qualify."""
    with ExitStack() as held:
        if case.scenario == "replay":
            replays = Replays(load, place)
            held.callback(replays.close)
            yield Runner(replays.run, replays.qualify, replays.turns(case.rows), replays.close)
        elif case.scenario == "resume":
            resumes = Resumes(load, place)
            held.callback(resumes.close)
            yield Runner(resumes.run, resumes.run, (case.rows,))
        else:
            measured = {"publish": publish, "latency": latency, "consume": consume, "together": together}[case.scenario]
            short = replace(load, seconds=min(QUALIFYING, load.seconds))
            yield Runner(
                lambda row, driver: measured(row, driver, load, place),
                lambda row, driver: measured(row, driver, short, place),
                (case.rows,),
            )
