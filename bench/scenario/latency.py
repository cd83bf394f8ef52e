"""REQ to REP between two processes: the median round trip and its tail, next to bare tcp.

`bare` blocks in the kernel's receive; the floors wait as omq does, so that the difference is omq's own.
"""

from __future__ import annotations

from functools import partial

from bench.measure import Load, round_trips
from bench.plan import P50, P99, Case, Scenario, ScenarioOptions, Target, size_text

ASYNCIO = ("omq-asyncio", "bare", "floor-protocol", "pyzmq-asyncio", "pyomq-asyncio")
BLOCKING = ("omq", "bare", "floor-epoll", "pyzmq", "pyomq")
SPINNING = ("omq-1ms", "bare", "floor-spin")

#: Bounds of omq's median over the peer's.
BOUNDS = {
    # Where bare sockets find a core awake, the work of the loop has a larger share.
    "omq-asyncio": (
        *(Target(1.5, "bare", idle=1.25), Target(1.2, "floor-protocol")),
        *(Target(0.5, "pyzmq-asyncio"), Target(1.0, "pyomq-asyncio")),
    ),
    "omq": (
        *(Target(1.15, "bare"), Target(1.12, "floor-epoll")),
        *(Target(1.0, "pyzmq"), Target(1.1, "pyzmq", P99), Target(1.05, "pyomq")),
    ),
    "omq-1ms": (Target(0.6, "bare", idle=0.3), Target(1.25, "floor-spin")),
}


def _cases(peers: tuple[str, ...], title: str, options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp",):
        for size in options.sizes or (16,):
            load = Load(transport, size, options.seconds)
            runs = {peer: partial(round_trips, peer, load) for peer in peers}
            name = f"{title} over {transport}, {size_text(size)}"
            cases.append(Case(name, peers[0], runs, (P50, P99), BOUNDS[peers[0]]))
    return cases


def _blocking(options: ScenarioOptions) -> list[Case]:
    return [
        *_cases(BLOCKING, "blocking REQ to REP", options),
        *_cases(SPINNING, "blocking REQ to REP that spins for 1 ms", options),
    ]


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
        (*BLOCKING, "omq-1ms", "floor-spin"),
        _blocking,
    ),
)
