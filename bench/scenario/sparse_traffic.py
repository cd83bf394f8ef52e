"""Sparse traffic: tails of bursts, idle sockets, and the cost of spinning before a sleep."""

from __future__ import annotations

from functools import partial

from bench.measure import Load
from bench.plan import P50, P99, Case, Metric, Scenario, ScenarioOptions, Target
from bench.sparse_traffic import IDLE_S, IDLE_SOCKETS, idle_cpu, spinning_cost, tail_lags

PEERS = ("omq", "pyzmq")
WAYS = ("omq-adaptive", "omq-sleeps", "omq-50us")

CPU = Metric("cpu", "ms of CPU", 2, less_is_better=True)
COSTS = (
    P50,
    Metric("together", "the same next to a computing process", 1, less_is_better=True),
    Metric("silent", "idle receiver, ms of CPU a second", 2, less_is_better=True),
    Metric("ticking", "receiver at 1 kHz, ms of CPU a second", 1, less_is_better=True),
    Metric("with_trips", "% left to compute next to round trips", 1),
    Metric("with_stream", "% left to compute next to 1 kHz", 1),
)


def _tails(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        load = Load(transport, 8, options.seconds)
        runs = {peer: partial(tail_lags, peer, load) for peer in (*PEERS, "bare")}
        title = f"lag of the last of 3 messages, before 50 ms of computing, over {transport}"
        cases.append(Case(title, "omq", runs, (P50, P99), (Target(300.0), Target(1000.0, metric=P99)), rounds=2))
    return cases


def _idle(_: ScenarioOptions) -> list[Case]:
    cases = []
    for waiting, calls in ((False, "no calls"), (True, "a thread waits in each receiver")):
        title = f"{IDLE_SOCKETS} idle blocking sockets for {IDLE_S:g} s, {calls}"
        runs = {peer: partial(idle_cpu, peer, waiting=waiting) for peer in PEERS}
        cases.append(Case(title, "omq", runs, (CPU,), (Target(10.0),), rounds=2))
    return cases


def _costs(options: ScenarioOptions) -> list[Case]:
    runs = {way: partial(spinning_cost, way, Load("tcp", 16, options.seconds)) for way in WAYS}
    return [Case("cost of spinning before a sleep, 16 B over tcp", WAYS[0], runs, COSTS)]


SCENARIOS = (
    Scenario(
        "blocking-tail",
        "three messages and then 50 ms of pure Python, 500 times: when the last of the three arrives",
        (*PEERS, "bare"),
        _tails,
    ),
    Scenario("blocking-idle", "CPU used in 10 s by a process with ten idle blocking sockets", PEERS, _idle),
    Scenario(
        "adaptive-cost",
        "busy_poll 0, adaptive and 50 us: round trips, CPU, and what is left for a third process",
        WAYS,
        _costs,
    ),
)
