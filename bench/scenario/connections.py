"""Many connections of one socket: how fast they are accepted, and the memory of an idle one."""

from __future__ import annotations

from functools import partial

from bench.connections import KINDS, connections
from bench.plan import Case, Metric, Scenario, ScenarioOptions, Target

TWINS = {"blocking": ("omq", "pyzmq"), "asyncio": ("omq-asyncio", "pyzmq-asyncio")}

ACCEPTS = Metric("rate", "accepted/s")
CPU = Metric("cpu", "us of CPU each", less_is_better=True)
EACH = Metric("each", "KiB each", 1, less_is_better=True)
SERVED = Metric("served", "served")
ROUNDS = 3


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for kind in KINDS:
        for twin, peers in TWINS.items():
            runs = {peer: partial(connections, peer, kind, options.connections) for peer in peers}
            targets = (Target(32.0, metric=EACH),)
            title = f"{options.connections} connections of a {twin} {kind} over tcp"
            cases.append(Case(title, peers[0], runs, (ACCEPTS, CPU, EACH, SERVED), targets, rounds=ROUNDS))
    return cases


SCENARIOS = (
    Scenario(
        "connections",
        "10,000 connections of one PULL, and of one PUB: accepts a second, and the memory of an idle connection",
        tuple(peer for peers in TWINS.values() for peer in peers),
        _cases,
    ),
)
