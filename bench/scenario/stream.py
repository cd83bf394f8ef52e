"""STREAM to STREAM between two processes, one message a call, and bare sockets that read as many bytes at once."""

from __future__ import annotations

from functools import partial

from bench.measure import Load, throughput
from bench.plan import MEGABYTES, RATE, Case, Scenario, ScenarioOptions, Target, size_text

SIZES = (1024, 16 << 10)
PEERS = ("stream-omq", "stream-omq-asyncio", "stream-pyzmq", "stream-bare", "stream-gathered")
ROLES = ("stream-push", "stream-pull")


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for size in options.sizes or SIZES:
        load = Load("tcp", size, options.seconds)
        runs = {peer: partial(throughput, peer, load, ROLES) for peer in PEERS}
        targets = (
            Target(0.8, "stream-bare"),
            Target(0.8, "stream-bare", subject="stream-omq-asyncio"),
            Target(1.0, "stream-pyzmq"),
        )
        cases.append(Case(f"STREAM over tcp, {size_text(size)}", PEERS[0], runs, (RATE, MEGABYTES), targets))
    return cases


SCENARIOS = (Scenario("stream", "STREAM to STREAM, and bare sockets that read the same way, tcp", PEERS, _cases),)
