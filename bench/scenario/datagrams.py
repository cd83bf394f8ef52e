"""RADIO to DISH over UDP next to bare datagram sockets: the rate at which loss begins."""

from __future__ import annotations

from functools import partial

from bench.datagrams import loss_rate
from bench.measure import Load
from bench.plan import RATE, Case, Metric, Scenario, ScenarioOptions, Target, size_text

PEERS = ("omq-datagrams", "bare-datagrams")
METRICS = (RATE, Metric("lost", "% lost above", 1))
STEP_SHARE = 0.2  # of the seconds of a burst elsewhere


def _cases(options: ScenarioOptions) -> list[Case]:
    cases = []
    for size in options.sizes or (64,):
        runs = {peer: partial(loss_rate, peer, Load("udp", size, STEP_SHARE * options.seconds)) for peer in PEERS}
        title = f"RADIO to DISH over udp, {size_text(size)}, the rate at which loss begins"
        cases.append(Case(title, PEERS[0], runs, METRICS, (Target(0.5, PEERS[1]),)))
    return cases


SCENARIOS = (
    Scenario("udp-loss", "RADIO to DISH over udp, blocking: the rate at which loss begins, 64 B", PEERS, _cases),
)
