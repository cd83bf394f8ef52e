"""How many connections of one socket are measured: how fast they come, whether all are served, what each one costs."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.measure import Sample
from bench.processes import Worker

PROCESSES = 4  # that the connections come from
FIRST = 0.1  # of the connections come before memory is looked at for the first time
PATIENCE = 120.0  # seconds until all have come
SETTLE = 1.0  # seconds before memory is looked at

KINDS = {"PULL": "PUSH", "PUB": "SUB"}


def connections(peer: str, kind: str, count: int) -> Sample:
    """One process has a socket of that kind, others connect to it; each connection is used once and then left alone."""
    with ExitStack() as processes:
        hub = processes.enter_context(
            Worker(peer, f"{kind.lower()}-crowd", endpoint="tcp://127.0.0.1:*", most=count),
        )
        endpoint = hub.hear("endpoint")
        crowds = [
            processes.enter_context(Worker("bare", "crowd", endpoint=endpoint, kind=KINDS[kind], most=count))
            for _ in range(PROCESSES)
        ]
        first = int(count * FIRST) // PROCESSES * PROCESSES
        rest = (count - first) // PROCESSES * PROCESSES
        _, before = _round(hub, crowds, kind, first)
        took, after = _round(hub, crowds, kind, rest)
    return {
        "rate": rest / took,
        "cpu": (after["cpu"] - before["cpu"]) / rest * 1e6,
        "each": (after["resident"] - before["resident"]) / rest,
        "served": first + rest,
    }


def _round(hub: Worker, crowds: list[Worker], kind: str, more: int) -> tuple[float, dict[str, float]]:
    """So many more connections: the seconds until all have shaken hands, and what the hub has taken."""
    if kind == "PULL":
        hub.order(expect=more)
    started = time.perf_counter()
    for crowd in crowds:
        crowd.order(count=more // len(crowds))
    for crowd in crowds:
        crowd.hear("joined", PATIENCE)
    took = time.perf_counter() - started
    if kind == "PULL":
        hub.hear("heard", PATIENCE)
    else:
        hub.order(publish=True)
        for crowd in crowds:
            crowd.order(served=True)
        for crowd in crowds:
            crowd.hear("served", PATIENCE)
    time.sleep(SETTLE)
    hub.order(memory=True)
    found: dict[str, float] = hub.hear("resident")
    return took, found
