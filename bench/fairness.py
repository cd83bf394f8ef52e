"""Measures the share of a quiet peer next to one that streams, and its cost for the stream."""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median

from bench.measure import Load, Sample
from bench.peers.fairness import QUIET_INTERVAL_S
from bench.processes import Worker
from omq.cli.bench.measure import address

WINDOW_PAIRS = 3  # windows without the quiet peer, and with it: scheduling on few cores makes any single one differ
SETTLE_S = 0.3  # before each window


def fairness(peer: str, load: Load, work: float) -> Sample:
    """Measures a PULL, a PUSH that streams, and one that sends now and then in every second window.

    Args:
        work: Seconds that the receiver computes on each message.
    """
    alone = together = 0.0
    ages: list[float] = []
    job = {"size": load.size, "seconds": load.seconds}
    with address(load.transport) as endpoint, ExitStack() as processes:
        receiver = processes.enter_context(Worker(peer, "receiver", endpoint=endpoint, work=work, **job))
        endpoint = receiver.wait_for("endpoint")
        quiet = processes.enter_context(Worker(peer, "quiet", endpoint=endpoint, **job))
        quiet.order(sends=True)
        quiet.wait_for("sends")
        # It is connected before the stream: a peer that never gets in is not measured here.
        receiver.order(received=True)
        receiver.wait_for("received")
        processes.enter_context(Worker(peer, "stream", endpoint=endpoint, **job))
        for _ in range(WINDOW_PAIRS):
            for sends in (False, True):
                quiet.order(sends=sends)
                quiet.wait_for("sends")
                time.sleep(SETTLE_S)
                receiver.order(go=True)
                window = receiver.wait_for("count")
                rate = window["count"] / window["seconds"]
                if sends:
                    together += rate / WINDOW_PAIRS
                    ages += window["ages"]
                else:
                    alone += rate / WINDOW_PAIRS
    due = WINDOW_PAIRS * load.seconds / QUIET_INTERVAL_S
    sample = {
        "share": 100 * together / alone,
        "alone": alone,
        "together": together,
        "received": 100 * min(1.0, len(ages) / due),
    }
    # A message that has not come is as old as all the time that it had.
    full = ages or [1e3 * WINDOW_PAIRS * (load.seconds + SETTLE_S)]
    return {**sample, "median_age": median(full), "worst_age": max(full)}
