"""What a stuck consumer among four costs the other three: their messages a second, beside those of three alone."""

from __future__ import annotations

from contextlib import ExitStack

from bench.measure import Load, Sample, address
from bench.peers.workers import STUCK
from bench.processes import Worker

BUSY = 3  # consumers that work

MANNERS = {"stopped": "is stopped by a signal", STUCK: "does not call recv"}


def stuck_consumer(peer: str, load: Load, manner: str) -> Sample:
    """The same twice, without and with a fourth consumer that is stuck."""
    alone = _rate(peer, load, None)
    beside = _rate(peer, load, manner)
    return {"share": 100 * beside / alone, "beside": beside, "alone": alone}


def _rate(peer: str, load: Load, manner: str | None) -> float:
    """Messages a second of the busy consumers together."""
    with address(load.transport) as endpoint, ExitStack() as processes:
        resolved = processes.enter_context(Worker(peer, "spout", endpoint=endpoint, size=load.size)).hear("endpoint")

        def start(manner: str) -> Worker:
            job = {"endpoint": resolved, "seconds": load.seconds, "manner": manner}
            return processes.enter_context(Worker(peer, "worker", **job))

        if manner is not None:
            fourth = start(manner)
            fourth.hear("up")
            if manner != STUCK:
                fourth.pause()
        busy = [start("busy") for _ in range(BUSY)]
        for worker in busy:
            worker.hear("up")
        for worker in busy:
            worker.order(go=True)
        windows = [worker.hear("count") for worker in busy]
    return sum(float(window["count"]) / float(window["seconds"]) for window in windows)
