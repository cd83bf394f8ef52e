"""The lease of the leader: how long it may answer, and when another node may claim it.

The leader counts its lease from the moment before it sent an entry, or a chunk of one. The others wait longer, from the
moment after they know that the journal has it. So the lease is over when another node has it, as long as the clocks of
two nodes advance at rates that differ by less than `TAKEOVER_FACTOR`. What the clocks show does not matter.
"""

from __future__ import annotations

import math
from typing import Final

#: The duration of the lease, if a cluster has no other one. A leader renews it after a third, so two renewals in a row
#: may be late.
DEFAULT_LEASE_S: Final = 1.0
#: The duration without an entry after which a node may claim the lease, as a multiple of the lease's duration.
TAKEOVER_FACTOR: Final = 1.25
#: The age of its newest entry at which the leader renews its lease, as a part of the lease's duration.
RENEWAL_RATIO: Final = 1 / 3
#: The delay of the claim that follows a failed one, as a part of the lease's duration. It doubles with each failure.
RETRY_RATIO: Final = 0.25
MAX_RETRY_FACTOR: Final = 32


class HeldLease:
    """The lease as its holder counts it.

    Args:
        duration: Its seconds.

    Attributes:
        end: The time at which it is over; in the past while this node has none.
    """

    def __init__(self, duration: float) -> None:
        self.duration = duration
        self.end = -math.inf

    @property
    def renew_at(self) -> float:
        """The time at which it is to be renewed."""
        return self.end - self.duration * (1 - RENEWAL_RATIO)

    def renew(self, sent: float) -> None:
        """Renews it by an entry that was sent at this time, and is in the journal."""
        self.end = max(self.end, sent + self.duration)

    def drop(self) -> None:
        """Ends it now."""
        self.end = -math.inf


class ElectionTimer:
    """The time at which a node may claim the lease.

    The node knows since `since` that `base` has been appended. A claim expects that no entry follows `base`. So if it
    is stored, no entry was appended between, and the lease of the last leader is over.

    Args:
        base: The last sequence that the node has applied when it starts.
        now: The time.

    Attributes:
        base: The last sequence of the journal that is known.
        since: The time at which it was learned.
    """

    def __init__(self, base: int, now: float) -> None:
        self.base = base
        self.since = now
        self._next_claim = now
        self._failures = 0

    def learn(self, last: int, now: float) -> None:
        """Takes the last sequence of the journal, or one that it had."""
        if last > self.base:
            self.base, self.since = last, now

    def received(self, sequence: int, now: float) -> None:
        """Takes the sequence of an entry, or a chunk of one, that was read."""
        self.learn(sequence, now)
        self._failures = 0
        self._next_claim = now

    def claimed(self, now: float, duration: float) -> None:
        """Delays the next claim, more and more until an entry is read."""
        self._next_claim = now + duration * RETRY_RATIO * min(2**self._failures, MAX_RETRY_FACTOR)
        self._failures += 1

    def due(self, duration: float) -> float:
        """Returns the time of the next claim, if no entry arrives before.

        Args:
            duration: The seconds of the lease that may be in force; 0 if none is.
        """
        return max(self.since + TAKEOVER_FACTOR * duration, self._next_claim)
