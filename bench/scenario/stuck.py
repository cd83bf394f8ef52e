"""A stuck consumer among four: it must cost the other three nothing."""

from __future__ import annotations

from functools import partial

from bench.measure import Load
from bench.plan import Case, Metric, Scenario, Settings, Target, size_text
from bench.stuck import MANNERS, stuck_consumer

TWINS = {"blocking": ("omq", "pyzmq"), "asyncio": ("omq-asyncio", "pyzmq-asyncio")}
ROUNDS = 1  # each takes its turns itself
METRICS = (
    Metric("share", "% of what three alone get", 1),
    Metric("beside", "msg/s of the three"),
    Metric("alone", "msg/s alone"),
)


def _cases(settings: Settings) -> list[Case]:
    cases = []
    for transport in settings.transports or ("tcp",):
        for size in settings.sizes or (1024,):
            load = Load(transport, size, settings.seconds)
            for twin, peers in TWINS.items():
                for manner, words in MANNERS.items():
                    runs = {peer: partial(stuck_consumer, peer, load, manner) for peer in peers}
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
