"""What a stuck consumer among four costs the other three: their messages a second with it and without, in turn."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.measure import Load, Sample, address
from bench.peers.workers import STUCK
from bench.processes import Worker

BUSY = 3  # consumers that work
TURNS = 5  # windows without the fourth, and with it: scheduling on few cores makes any single one differ
SETTLE = 0.3  # seconds before each window: the stuck one's buffers fill up

MANNERS = {"stopped": "is stopped by a signal", STUCK: "does not call recv"}


def stuck_consumer(peer: str, load: Load, manner: str) -> Sample:
    """A sender and three consumers all the time, a fourth that comes, gets stuck and goes."""
    alone = beside = 0.0
    with address(load.transport) as endpoint, ExitStack() as processes:
        spout = processes.enter_context(Worker(peer, "spout", endpoint=endpoint, size=load.size))
        job = {"endpoint": spout.hear("endpoint"), "seconds": load.seconds}
        busy = [processes.enter_context(Worker(peer, "worker", manner="busy", **job)) for _ in range(BUSY)]
        for worker in busy:
            worker.hear("up")
        for _ in range(TURNS):
            alone += _window(busy)
            with Worker(peer, "worker", manner=manner, **job) as fourth:
                fourth.hear("up")
                if manner != STUCK:
                    fourth.pause()
                beside += _window(busy)
    return {"share": 100 * beside / alone, "beside": beside / TURNS, "alone": alone / TURNS}


def _window(busy: list[Worker]) -> float:
    """Messages a second of the busy consumers together."""
    time.sleep(SETTLE)
    for worker in busy:
        worker.order(go=True)
    windows = [worker.hear("count") for worker in busy]
    return sum(float(window["count"]) / float(window["seconds"]) for window in windows)
