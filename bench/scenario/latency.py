"""REQ to REP between two processes: the median round trip and its tail, beside bare tcp."""

from __future__ import annotations

from functools import partial

from bench.measure import Load, round_trips
from bench.plan import P50, P99, Case, Scenario, Settings, Target, size_text

ASYNCIO = ("omq-asyncio", "bare", "pyzmq-asyncio", "pyomq-asyncio")
BLOCKING = ("omq", "bare", "pyzmq", "pyomq")

#: Bounds of omq's median over the peer's.
BOUNDS = {
    "omq-asyncio": (Target(1.25, "bare"), Target(0.5, "pyzmq-asyncio"), Target(1.0, "pyomq-asyncio")),
    "omq": (Target(1.25, "bare"), Target(1.0, "pyzmq"), Target(1.0, "pyomq")),
}


def _cases(peers: tuple[str, ...], title: str, settings: Settings) -> list[Case]:
    cases = []
    for transport in settings.transports or ("tcp",):
        for size in settings.sizes or (16,):
            load = Load(transport, size, settings.seconds)
            runs = {peer: partial(round_trips, peer, load) for peer in peers}
            name = f"{title} over {transport}, {size_text(size)}"
            cases.append(Case(name, peers[0], runs, (P50, P99), BOUNDS[peers[0]]))
    return cases


SCENARIOS = (
    Scenario(
        "asyncio-latency",
        "REQ to REP, 16 B over tcp: p50 and p99 of the round trip",
        ASYNCIO,
        partial(_cases, ASYNCIO, "asyncio REQ to REP"),
    ),
    Scenario(
        "blocking-latency",
        "REQ to REP, 16 B over tcp: p50 and p99 of the round trip",
        BLOCKING,
        partial(_cases, BLOCKING, "blocking REQ to REP"),
    ),
)
