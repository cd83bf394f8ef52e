"""Measures sparse traffic: the lag of the tails of bursts, the CPU of idle sockets, and the cost of spinning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.measure import Load, Sample, address, percentiles, round_trips
from bench.processes import Worker

BURSTS = 500  # of a measurement of tails
REPORTED_BURSTS = 100  # of one report
IDLE_S = 10.0
IDLE_SOCKETS = 10
COST_S = 2.0  # of each part of the cost of spinning
TICK_HZ = 1000


def tail_lags(peer: str, load: Load) -> Sample:
    """Measures the time from `send` to `recv` of the last of three messages; the sender then computes for 50 ms."""
    lags: list[int] = []
    with address(load.transport) as endpoint, ExitStack() as processes:
        pull = processes.enter_context(Worker(peer, "burst-receiver", endpoint=endpoint, size=8))
        push = processes.enter_context(Worker(peer, "burst-sender", endpoint=pull.wait_for("endpoint"), size=8))
        for count in (3, *[REPORTED_BURSTS] * (BURSTS // REPORTED_BURSTS)):
            pull.order(burst=count)
            pull.wait_for("armed")
            push.order(burst=count)
            found = pull.wait_for("lags")
            lags += found if count == REPORTED_BURSTS else []  # the first few wait for the connection
    return percentiles(lags)


def idle_cpu(peer: str, *, waiting: bool) -> Sample:
    """Measures the CPU that a process with idle sockets uses, in milliseconds."""
    with Worker(peer, "idle", sockets=IDLE_SOCKETS, waiting=waiting, seconds=IDLE_S) as process:
        return {"cpu": process.wait_for("cpu") * 1e3}


def spinning_cost(peer: str, load: Load) -> Sample:
    """Measures a way to wait: its round trips, its CPU, and the share that is left for a process that computes."""
    with Worker("bare", "compute") as computer:
        alone = _computed(computer)
        with _stream(peer, load) as (receiver, sender):
            silent = _ticking(receiver, sender, 0)
            ticking = _ticking(receiver, sender, TICK_HZ)
            receiver.order(start=True)
            receiver.wait_for("armed")
            sender.order(seconds=COST_S + 0.2, hertz=TICK_HZ)
            with_stream = _computed(computer)
            receiver.wait_for("cpu")
        trips = round_trips(peer, load)
        computer.order(seconds=COST_S)
        together = round_trips(peer, Load(load.transport, load.size, COST_S))
        with_trips = computer.wait_for("computed")
    return {
        "p50": trips["p50"],
        "together": together["p50"],
        "silent": silent * 1e3,
        "ticking": ticking * 1e3,
        "with_trips": 100 * with_trips / alone,
        "with_stream": 100 * with_stream / alone,
    }


def _computed(computer: Worker) -> float:
    computer.order(seconds=COST_S)
    return float(computer.wait_for("computed"))


@contextmanager
def _stream(peer: str, load: Load) -> Iterator[tuple[Worker, Worker]]:
    with address(load.transport) as endpoint, ExitStack() as processes:
        receiver = processes.enter_context(Worker(peer, "paced-receiver", endpoint=endpoint, size=load.size))
        endpoint = receiver.wait_for("endpoint")
        sender = processes.enter_context(Worker(peer, "paced-sender", endpoint=endpoint, size=load.size))
        _ticking(receiver, sender, TICK_HZ, 0.3)  # proves the connection
        yield receiver, sender


def _ticking(receiver: Worker, sender: Worker, hertz: int, seconds: float = COST_S) -> float:
    """Returns the seconds of CPU that the receiver takes in a second."""
    receiver.order(start=True)
    receiver.wait_for("armed")
    sender.order(seconds=seconds, hertz=hertz)
    return float(receiver.wait_for("cpu"))
