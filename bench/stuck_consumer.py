"""Measures the cost of a stuck consumer for three others: their messages a second with it and without, in turn."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.measure import Load, Sample, address
from bench.peers.stuck_consumer import STUCK
from bench.processes import Worker

BUSY_CONSUMERS = 3  # consumers that work
WINDOW_PAIRS = 5  # windows without the fourth, and with it: scheduling on few cores makes any single one differ
SETTLE_S = 0.3  # before each window: the buffers of the stuck one fill up

STALLS = {"stopped": "is stopped by a signal", STUCK: "does not call recv"}


def stuck_consumer(peer: str, load: Load, stall: str) -> Sample:
    """Runs a sender and three consumers all the time, and a fourth that connects, gets stuck and ends."""
    alone = together = 0.0
    with address(load.transport) as endpoint, ExitStack() as processes:
        sender = processes.enter_context(Worker(peer, "sender", endpoint=endpoint, size=load.size))
        job = {"endpoint": sender.wait_for("endpoint"), "seconds": load.seconds}
        busy = [processes.enter_context(Worker(peer, "consumer", stall="busy", **job)) for _ in range(BUSY_CONSUMERS)]
        for consumer in busy:
            consumer.wait_for("up")
        for _ in range(WINDOW_PAIRS):
            alone += _window(busy)
            with Worker(peer, "consumer", stall=stall, **job) as fourth:
                fourth.wait_for("up")
                if stall != STUCK:
                    fourth.pause()
                together += _window(busy)
    return {"share": 100 * together / alone, "together": together / WINDOW_PAIRS, "alone": alone / WINDOW_PAIRS}


def _window(busy: list[Worker]) -> float:
    """Returns the messages a second of the busy consumers together."""
    time.sleep(SETTLE_S)
    for consumer in busy:
        consumer.order(go=True)
    windows = [consumer.wait_for("count") for consumer in busy]
    return sum(float(window["count"]) / float(window["seconds"]) for window in windows)
