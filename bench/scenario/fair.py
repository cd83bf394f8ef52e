"""A quiet peer next to one that streams: it must be heard at once, and cost the stream nothing."""

from __future__ import annotations

from functools import partial

from bench.fair import fairness
from bench.measure import Load
from bench.plan import Case, Metric, Scenario, Settings, Target, size_text

PEERS = ("omq", "pyzmq")
WORKS = (0.0, 50e-6)
METRICS = (
    Metric("alone", "msg/s alone"),
    Metric("beside", "msg/s next to a quiet one"),
    Metric("share", "% of alone", 1),
    Metric("heard", "% heard of the quiet one", 1),
    Metric("median_age", "median ms old", 2, less_is_better=True),
    Metric("worst_age", "worst ms old", 2, less_is_better=True),
)
SHARE, HEARD, WORST = METRICS[2], METRICS[3], METRICS[5]
#: Of the quiet one not all is heard that its pace makes: on a busy machine it rests for longer than it wants.
TARGETS = (Target(90.0, metric=SHARE), Target(80.0, metric=HEARD), Target(50.0, metric=WORST))


def _cases(settings: Settings) -> list[Case]:
    cases = []
    for transport in settings.transports or ("tcp",):
        for size in settings.sizes or (50, 128):
            for work in WORKS:
                load = Load(transport, size, settings.seconds)
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
