"""What a quiet peer gets beside one that streams, and what its being there costs the stream."""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median

from bench.measure import Load, Sample, address
from bench.peers.fair import REST
from bench.processes import Worker

TURNS = 3  # windows without the quiet peer, and with it: scheduling on few cores makes any single one differ
SETTLE = 0.3  # seconds before each window


def fairness(peer: str, load: Load, work: float) -> Sample:
    """A PULL, a PUSH that streams, and one that sends now and then in every second window.

    Args:
        work: Seconds that the receiver computes on each message.
    """
    alone = beside = 0.0
    ages: list[float] = []
    job = {"size": load.size, "seconds": load.seconds}
    with address(load.transport) as endpoint, ExitStack() as processes:
        basin = processes.enter_context(Worker(peer, "basin", endpoint=endpoint, work=work, **job))
        endpoint = basin.hear("endpoint")
        murmur = processes.enter_context(Worker(peer, "murmur", endpoint=endpoint, **job))
        murmur.order(speak=True)
        murmur.hear("speaks")
        # It is there before the stream is: who is shut out from the start is not the question.
        basin.order(heard=True)
        basin.hear("heard")
        processes.enter_context(Worker(peer, "stream", endpoint=endpoint, **job))
        for _ in range(TURNS):
            for speak in (False, True):
                murmur.order(speak=speak)
                murmur.hear("speaks")
                time.sleep(SETTLE)
                basin.order(go=True)
                window = basin.hear("count")
                rate = window["count"] / window["seconds"]
                if speak:
                    beside += rate / TURNS
                    ages += window["ages"]
                else:
                    alone += rate / TURNS
    due = TURNS * load.seconds / REST
    sample = {"share": 100 * beside / alone, "alone": alone, "beside": beside, "heard": 100 * min(1.0, len(ages) / due)}
    # A message that has not come is as old as all the time that it had.
    full = ages or [1e3 * TURNS * (load.seconds + SETTLE)]
    return {**sample, "median_age": median(full), "worst_age": max(full)}
