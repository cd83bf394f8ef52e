"""Measures one row of a case once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.broker.client_process import CLIENT_TIMEOUT_S, ClientProcess, sample_of, sample_of_trips
from bench.broker.plan import BrokerCase, BrokerLoad, Row
from bench.broker.replay import ReplayRunner
from bench.broker.resume import ResumeRunner
from bench.broker.servers import MeasuredServer, serving
from bench.measure import Sample, calibrated

MAX_FILL_S = 10.0  # to fill a server for a consumer
QUALIFYING_S = 0.3  # of the burst that finds the better driver

#: Measures a row once, by a driver.
Run = Callable[[Row, str], Sample]


@contextmanager
def _pair(
    row: Row, driver: str, load: BrokerLoad, place: Path
) -> Iterator[tuple[MeasuredServer, ClientProcess, ExitStack]]:
    with ExitStack() as stack:
        os.sync()  # the writes of earlier runs do not count here
        server = stack.enter_context(serving(row.service, row.settings, place))
        producer = stack.enter_context(ClientProcess(row, driver, server, load))
        producer.wait_for("ready", CLIENT_TIMEOUT_S)
        producer.call("create")
        yield server, producer, stack


def publish(row: Row, driver: str, load: BrokerLoad, place: Path) -> Sample:
    """Measures one producer."""
    with _pair(row, driver, load, place) as (server, producer, _):
        busy: list[float] = []

        def burst(count: int) -> float:
            before = server.busy()
            report = producer.call("publish", count)
            busy[:] = [server.busy() - before, report["busy"]]
            return float(report["ended"] - report["started"])

        count, took = calibrated(burst, load.seconds, 2 * load.depth)
        return sample_of(count, took, server, *busy)


def latency(row: Row, driver: str, load: BrokerLoad, place: Path) -> Sample:
    """Measures one producer that waits for each acknowledgement."""
    with _pair(row, driver, load, place) as (_, producer, _):
        return sample_of_trips(producer)


def consume(row: Row, driver: str, load: BrokerLoad, place: Path) -> Sample:
    """Measures one consumer of messages that were published before."""
    return _consume(row, driver, load, place, at_once=False)


def together(row: Row, driver: str, load: BrokerLoad, place: Path) -> Sample:
    """Measures one producer and one consumer at once, until the last acknowledgement of both."""
    return _consume(row, driver, load, place, at_once=True)


def _consume(row: Row, driver: str, load: BrokerLoad, place: Path, at_once: bool) -> Sample:
    with _pair(row, driver, load, place) as (server, producer, stack):
        consumer = stack.enter_context(ClientProcess(row, driver, server, load))
        consumer.wait_for("ready", CLIENT_TIMEOUT_S)
        consumer.call("arm")

        filling = 0.0
        busy: list[float] = []

        def burst(count: int) -> float:
            nonlocal filling
            if not at_once:
                published = producer.call("publish", count)
                filling = (published["ended"] - published["started"]) / count
            before = server.busy()
            consumer.order(do="consume", count=count)
            consumer.wait_for("begun")
            if at_once:
                published = producer.call("publish", count)
            report = consumer.wait_for("ended", CLIENT_TIMEOUT_S)
            busy[:] = [server.busy() - before, report["busy"], published["busy"] if at_once else 0.0]
            if not at_once:
                return float(report["ended"] - report["started"])
            return float(max(report["ended"], published["ended"]) - published["started"])

        count = 2 * load.depth
        for seconds in (min(0.2, load.seconds), load.seconds):
            took = burst(count)
            # A slow server is not filled for longer than MAX_FILL_S.
            fill = MAX_FILL_S / filling if filling else float("inf")
            count = max(count, int(min(count * seconds / took, fill)))
        took = burst(count)
        return sample_of(count, took, server, *busy)


@dataclass(frozen=True)
class CaseRunner:
    """The calls that measure the rows of a case.

    Attributes:
        run: Measures a row.
        qualify: Measures a row in less time, to find the better driver.
        turns: Groups of rows: the rows of a group take turns, one group after the other.
        after_turn: Is called after each group.
    """

    run: Run
    qualify: Run
    turns: tuple[tuple[Row, ...], ...]
    after_turn: Callable[[], None] = lambda: None


@contextmanager
def runner(case: BrokerCase, load: BrokerLoad, place: Path) -> Iterator[CaseRunner]:
    """Yields the calls that measure the rows of a case."""
    with ExitStack() as held:
        if case.scenario in ("replay", "start"):
            replays = ReplayRunner(load, place)
            held.callback(replays.close)
            run, qualify = (
                (replays.run, replays.qualify) if case.scenario == "replay" else (replays.start, replays.start)
            )
            yield CaseRunner(run, qualify, replays.turns(case.rows), replays.close)
        elif case.scenario == "resume":
            resumes = ResumeRunner(load, place)
            held.callback(resumes.close)
            yield CaseRunner(resumes.run, resumes.run, (case.rows,))
        else:
            measured = {"publish": publish, "latency": latency, "consume": consume, "together": together}[case.scenario]
            short = replace(load, seconds=min(QUALIFYING_S, load.seconds))
            yield CaseRunner(
                lambda row, driver: measured(row, driver, load, place),
                lambda row, driver: measured(row, driver, short, place),
                (case.rows,),
            )
