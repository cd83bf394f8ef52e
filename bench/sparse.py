"""How sparse traffic is measured: the lag of tails, the cost of silence, and what spinning costs others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.measure import Load, Sample, address, percentiles, round_trips
from bench.processes import Worker

BURSTS = 500  # bursts of a tail's measurement
PIECE = 100  # bursts that one answer tells about
IDLE_SECONDS = 10.0
IDLE_SOCKETS = 10
COST_SECONDS = 2.0  # each part of what spinning costs
TICKS = 1000  # messages a second


def tails(peer: str, load: Load) -> Sample:
    """The time from `send` to `recv` of the last of three messages, whose sender then computes for 50 ms."""
    lags: list[int] = []
    with address(load.transport) as endpoint, ExitStack() as processes:
        pull = processes.enter_context(Worker(peer, "drops", endpoint=endpoint, size=8))
        push = processes.enter_context(Worker(peer, "drip", endpoint=pull.hear("endpoint"), size=8))
        for count in (3, *[PIECE] * (BURSTS // PIECE)):
            pull.order(burst=count)
            pull.hear("armed")
            push.order(burst=count)
            found = pull.hear("lags")
            lags += found if count == PIECE else []  # the first few wait for the connection
    return percentiles(lags)


def silence(peer: str, *, waiting: bool) -> Sample:
    """The CPU that a process with idle sockets uses, in milliseconds."""
    with Worker(peer, "idle", sockets=IDLE_SOCKETS, waiting=waiting, seconds=IDLE_SECONDS) as process:
        return {"cpu": process.hear("cpu") * 1e3}


def cost(peer: str, load: Load) -> Sample:
    """What a way to wait gives and takes: round trips, CPU, and what is left for a process that computes."""
    with Worker("bare", "compute") as computer:
        alone = _computed(computer)
        with _stream(peer, load) as (receiver, sender):
            silent = _ticking(receiver, sender, 0)
            ticking = _ticking(receiver, sender, TICKS)
            receiver.order(listen=True)
            receiver.hear("armed")
            sender.order(seconds=COST_SECONDS + 0.2, hertz=TICKS)
            beside_stream = _computed(computer)
            receiver.hear("cpu")
        trips = round_trips(peer, load)
        computer.order(seconds=COST_SECONDS)
        beside = round_trips(peer, Load(load.transport, load.size, COST_SECONDS))
        beside_trips = computer.hear("computed")
    return {
        "p50": trips["p50"],
        "beside": beside["p50"],
        "silent": silent * 1e3,
        "ticking": ticking * 1e3,
        "beside_trips": 100 * beside_trips / alone,
        "beside_stream": 100 * beside_stream / alone,
    }


def _computed(computer: Worker) -> float:
    computer.order(seconds=COST_SECONDS)
    return float(computer.hear("computed"))


@contextmanager
def _stream(peer: str, load: Load) -> Iterator[tuple[Worker, Worker]]:
    with address(load.transport) as endpoint, ExitStack() as processes:
        receiver = processes.enter_context(Worker(peer, "listen", endpoint=endpoint, size=load.size))
        sender = processes.enter_context(Worker(peer, "beat", endpoint=receiver.hear("endpoint"), size=load.size))
        _ticking(receiver, sender, TICKS, 0.3)  # proves the connection
        yield receiver, sender


def _ticking(receiver: Worker, sender: Worker, hertz: int, seconds: float = COST_SECONDS) -> float:
    """Seconds of CPU that the receiver takes in a second."""
    receiver.order(listen=True)
    receiver.hear("armed")
    sender.order(seconds=seconds, hertz=hertz)
    return float(receiver.hear("cpu"))
