"""PUSH to PULL in one process and one loop."""

from __future__ import annotations

from functools import partial

from bench.measure import Load, inproc
from bench.plan import MEGABYTES, RATE, Case, Scenario, ScenarioOptions, Target, size_text

PEERS = ("omq-asyncio", "pyzmq-asyncio")
TARGETS = (Target(3_000_000.0), Target(1.0, "pyzmq-asyncio"))


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for size in options.sizes or (16,):
        load = Load("inproc", size, options.seconds)
        runs = {peer: partial(inproc, peer, load) for peer in PEERS}
        title = f"asyncio PUSH to PULL over inproc, one loop, {size_text(size)}"
        cases.append(Case(title, PEERS[0], runs, (RATE, MEGABYTES), TARGETS))
    return cases


SCENARIOS = (
    Scenario(
        "asyncio-inproc",
        "PUSH to PULL over inproc, both in one loop, 16 B",
        PEERS,
        _cases,
    ),
)
