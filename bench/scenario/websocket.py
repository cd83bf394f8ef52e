"""PUSH to PULL over WebSockets, next to the same over tcp, and to the library `websockets`; in both directions."""

from __future__ import annotations

from functools import partial

from bench.measure import Load, throughput
from bench.plan import MEGABYTES, RATE, Case, Scenario, ScenarioOptions, Target, size_text

SIZES = (128, 1 << 20)
#: Over ws, and over tcp.
TWINS = {"blocking": ("omq-websocket", "omq"), "asyncio": ("omq-websocket-asyncio", "omq-asyncio")}
LIBRARY = "websockets"
SHARE = 0.5  # of the rate over tcp
LEAD = 5.0  # times the library's rate


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for twin, (ours, over_tcp) in TWINS.items():
        for size in options.sizes or SIZES:
            ws, tcp = (Load(transport, size, options.seconds) for transport in ("ws", "tcp"))
            # RFC 6455, 5.3: what a client sends is masked, and what a server sends is not.
            for sender, outward in (("client", False), ("server", True)):
                runs = {
                    ours: partial(throughput, ours, ws, outward=outward),
                    over_tcp: partial(throughput, over_tcp, tcp, outward=outward),
                    LIBRARY: partial(throughput, LIBRARY, ws, outward=outward),
                }
                title = f"PUSH to PULL over ws, {twin}, the {sender} sends, {size_text(size)}"
                targets = (Target(SHARE, over_tcp), Target(LEAD, LIBRARY))
                cases.append(Case(title, ours, runs, (RATE, MEGABYTES), targets))
    return cases


SCENARIOS = (
    Scenario(
        "websocket",
        "PUSH to PULL over ws, next to tcp and to websockets, client to server and back, 128 B and 1 MiB",
        (*(peer for pair in TWINS.values() for peer in pair), LIBRARY),
        _cases,
    ),
)
