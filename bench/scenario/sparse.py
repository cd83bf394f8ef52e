"""Sparse traffic: tails of bursts, idle sockets, and what it costs to spin before sleeping."""

from __future__ import annotations

from functools import partial

from bench.measure import Load
from bench.plan import P50, P99, Case, Metric, Scenario, Settings, Target
from bench.sparse import IDLE_SECONDS, IDLE_SOCKETS, cost, silence, tails

PEERS = ("omq", "pyzmq")
WAYS = ("omq-adaptive", "omq-sleeps", "omq-50us")

CPU = Metric("cpu", "ms of CPU", 2, less_is_better=True)
COSTS = (
    P50,
    Metric("beside", "the same next to a computing process", 1, less_is_better=True),
    Metric("silent", "idle receiver, ms of CPU a second", 2, less_is_better=True),
    Metric("ticking", "receiver at 1 kHz, ms of CPU a second", 1, less_is_better=True),
    Metric("beside_trips", "% left to compute next to round trips", 1),
    Metric("beside_stream", "% left to compute next to 1 kHz", 1),
)


def _tails(settings: Settings) -> list[Case]:
    cases = []
    for transport in settings.transports or ("tcp",):
        load = Load(transport, 8, settings.seconds)
        runs = {peer: partial(tails, peer, load) for peer in (*PEERS, "bare")}
        title = f"lag of the last of 3 messages, before 50 ms of computing, over {transport}"
        cases.append(Case(title, "omq", runs, (P50, P99), (Target(300.0), Target(1000.0, metric=P99)), rounds=2))
    return cases


def _silence(_: Settings) -> list[Case]:
    cases = []
    for waiting, who in ((False, "no calls"), (True, "a thread waits in each receiver")):
        title = f"{IDLE_SOCKETS} idle blocking sockets for {IDLE_SECONDS:g} s, {who}"
        runs = {peer: partial(silence, peer, waiting=waiting) for peer in PEERS}
        cases.append(Case(title, "omq", runs, (CPU,), (Target(10.0),), rounds=2))
    return cases


def _costs(settings: Settings) -> list[Case]:
    runs = {way: partial(cost, way, Load("tcp", 16, settings.seconds)) for way in WAYS}
    return [Case("what spinning before sleeping gives and takes, 16 B over tcp", WAYS[0], runs, COSTS)]


SCENARIOS = (
    Scenario(
        "blocking-tail",
        "three messages and then 50 ms of pure Python, 500 times: when the last of the three arrives",
        (*PEERS, "bare"),
        _tails,
    ),
    Scenario("blocking-idle", "CPU used in 10 s by a process with ten idle blocking sockets", PEERS, _silence),
    Scenario(
        "adaptive-cost",
        "busy_poll 0, adaptive and 50 us: round trips, CPU, and what is left for a third process",
        WAYS,
        _costs,
    ),
)
