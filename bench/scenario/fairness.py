"""A quiet peer next to one that streams: its messages must be received at once, and cost the stream nothing."""

from __future__ import annotations

from functools import partial

from bench.fairness import fairness
from bench.measure import Load
from bench.plan import Case, Metric, Scenario, ScenarioOptions, Target, size_text

PEERS = ("omq", "pyzmq")
WORKS_S = (0.0, 50e-6)
METRICS = (
    Metric("alone", "msg/s alone"),
    Metric("together", "msg/s next to a quiet one"),
    Metric("share", "% of alone", 1),
    Metric("received", "% received of the quiet one", 1),
    Metric("median_age", "median ms old", 2, less_is_better=True),
    Metric("worst_age", "worst ms old", 2, less_is_better=True),
)
SHARE, RECEIVED, WORST = METRICS[2], METRICS[3], METRICS[5]
#: The bound is below 100 %, as the quiet peer sends less often than its interval on a busy machine.
TARGETS = (Target(90.0, metric=SHARE), Target(80.0, metric=RECEIVED), Target(50.0, metric=WORST))


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        for size in options.sizes or (50, 128):
            for work in WORKS_S:
                load = Load(transport, size, options.seconds)
                runs = {peer: partial(fairness, peer, load, work) for peer in PEERS}
                title = (
                    f"stream of {size_text(size)} to a blocking PULL over {transport}, {work * 1e6:g} us of work each"
                )
                cases.append(Case(title, "omq", runs, METRICS, TARGETS))
    return cases


SCENARIOS = (
    Scenario(
        "fairness",
        "a PUSH that streams and a quiet one at one PULL: the rate of the stream, the age of what the quiet one sends",
        PEERS,
        _cases,
    ),
)
