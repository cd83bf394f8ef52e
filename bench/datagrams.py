"""The rate at which datagrams begin to be lost: steps of growing rates, until one in a hundred does not arrive."""

from __future__ import annotations

from bench.measure import Load, Sample
from bench.processes import Worker

FIRST_RATE = 20_000  # messages a second, of the first step
RATE_GROWTH = 1.2  # from one step to the next
TOLERATED_SHARE = 0.01  # of a step, which may be lost
SENDER_SHARE = 0.9  # of the ordered rate: below it the sender is at its limit
MAX_STEPS = 40
#: Tries of a step before it counts as lost: a receiver that is not scheduled loses what its kernel buffer cannot hold.
STEP_TRIES = 3


def loss_rate(peer: str, load: Load) -> Sample:
    """Sends steps to one receiver; returns the rate of the last one that arrived, and the loss of the next one."""
    best, lost = 0.0, 0.0
    with Worker(peer, "receive") as receiver:
        endpoint = receiver.wait_for("endpoint")
        with Worker(peer, "send", endpoint=endpoint, size=load.size) as sender:
            rate = float(FIRST_RATE)
            for _ in range(MAX_STEPS):
                for _ in range(STEP_TRIES):
                    receiver.order(step=True)
                    receiver.wait_for("armed")
                    sender.order(rate=rate, seconds=load.seconds)
                    step = sender.wait_for("sent")
                    lost = 1 - float(receiver.wait_for("count")) / float(step["sent"])
                    if lost <= TOLERATED_SHARE:
                        break
                else:
                    break
                best = float(step["sent"]) / float(step["seconds"])
                if best < SENDER_SHARE * rate:
                    break
                rate *= RATE_GROWTH
    return {"rate": best, "lost": 100 * lost}
