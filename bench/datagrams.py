"""The rate at which datagrams begin to be lost: steps of growing rates, until one in a hundred does not arrive."""

from __future__ import annotations

from bench.measure import Load, Sample
from bench.processes import Worker

FIRST = 20_000  # messages a second of the first step
GROWTH = 1.2  # from one step to the next
TOLERATED = 0.01  # share of a step that may be lost
BEHIND = 0.9  # share of the asked rate below which a sender is at its end
STEPS = 40  # at most
TRIES = 3  # of a step before it counts as lost: a receiver that the system lets wait loses what its kernel cannot hold


def loss_rate(peer: str, load: Load) -> Sample:
    """Sends steps to one receiver; gives the rate of the last one that arrived, and what the next one lost."""
    best, lost = 0.0, 0.0
    with Worker(peer, "receive") as receiver:
        endpoint = receiver.hear("endpoint")
        with Worker(peer, "send", endpoint=endpoint, size=load.size) as sender:
            rate = float(FIRST)
            for _ in range(STEPS):
                for _ in range(TRIES):
                    receiver.order(step=True)
                    receiver.hear("armed")
                    sender.order(rate=rate, seconds=load.seconds)
                    step = sender.hear("sent")
                    lost = 1 - float(receiver.hear("count")) / float(step["sent"])
                    if lost <= TOLERATED:
                        break
                else:
                    break
                best = float(step["sent"]) / float(step["seconds"])
                if best < BEHIND * rate:
                    break
                rate *= GROWTH
    return {"rate": best, "lost": 100 * lost}
