"""A stuck consumer among four: it must not slow down the other three."""

from __future__ import annotations

from functools import partial

from bench.measure import Load
from bench.plan import Case, Metric, Scenario, ScenarioOptions, Target, size_text
from bench.stuck_consumer import STALLS, stuck_consumer

TWINS = {"blocking": ("omq", "pyzmq"), "asyncio": ("omq-asyncio", "pyzmq-asyncio")}
ROUNDS = 1  # each has its own turns
METRICS = (
    Metric("share", "% of what three alone get", 1),
    Metric("together", "msg/s of the three"),
    Metric("alone", "msg/s alone"),
)


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        for size in options.sizes or (1024,):
            load = Load(transport, size, options.seconds)
            for twin, peers in TWINS.items():
                for stall, words in STALLS.items():
                    runs = {peer: partial(stuck_consumer, peer, load, stall) for peer in peers}
                    title = f"{twin} PUSH to three PULL and one that {words}, over {transport}, {size_text(size)}"
                    cases.append(Case(title, peers[0], runs, METRICS, (Target(90.0),), rounds=ROUNDS))
    return cases


SCENARIOS = (
    Scenario(
        "stuck-consumer",
        "PUSH to four PULL processes of which one is stuck: what the other three get, next to three alone",
        tuple(peer for peers in TWINS.values() for peer in peers),
        _cases,
    ),
)
