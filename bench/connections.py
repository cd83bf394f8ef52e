"""Measures many connections of one socket: accepts a second, the connections served, CPU and memory of each."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.measure import Sample
from bench.processes import Worker

PROCESSES = 4  # that the connections come from
FIRST_SHARE = 0.1  # of the connections, which are made before memory is measured for the first time
CONNECT_TIMEOUT_S = 120.0  # until all are connected
SETTLE_S = 1.0  # before memory is measured

KINDS = {"PULL": "PUSH", "PUB": "SUB"}


def connections(peer: str, kind: str, count: int) -> Sample:
    """Connects processes to one socket of a kind; each connection is used once and is idle then."""
    with ExitStack() as processes:
        server = processes.enter_context(
            Worker(peer, f"{kind.lower()}-connections", endpoint="tcp://127.0.0.1:*", max_connections=count),
        )
        endpoint = server.wait_for("endpoint")
        clients = [
            processes.enter_context(
                Worker("bare", "connections", endpoint=endpoint, kind=KINDS[kind], max_connections=count)
            )
            for _ in range(PROCESSES)
        ]
        first = int(count * FIRST_SHARE) // PROCESSES * PROCESSES
        rest = (count - first) // PROCESSES * PROCESSES
        _, before = _add_connections(server, clients, kind, first)
        took, after = _add_connections(server, clients, kind, rest)
    return {
        "rate": rest / took,
        "cpu": (after["cpu"] - before["cpu"]) / rest * 1e6,
        "each": (after["resident"] - before["resident"]) / rest,
        "served": first + rest,
    }


def _add_connections(server: Worker, clients: list[Worker], kind: str, more: int) -> tuple[float, dict[str, float]]:
    """Adds *more* connections; returns the seconds until all have shaken hands, and the server's memory and CPU."""
    if kind == "PULL":
        server.order(expect=more)
    started = time.perf_counter()
    for client in clients:
        client.order(count=more // len(clients))
    for client in clients:
        client.wait_for("joined", CONNECT_TIMEOUT_S)
    took = time.perf_counter() - started
    if kind == "PULL":
        server.wait_for("received", CONNECT_TIMEOUT_S)
    else:
        server.order(publish=True)
        for client in clients:
            client.order(served=True)
        for client in clients:
            client.wait_for("served", CONNECT_TIMEOUT_S)
    time.sleep(SETTLE_S)
    server.order(memory=True)
    found: dict[str, float] = server.wait_for("resident")
    return took, found
