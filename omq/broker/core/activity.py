"""The last activity of durable subscriptions and consumer groups."""

from __future__ import annotations

import time
from typing import NamedTuple

from omq.store.clock import uptime


class Activity(NamedTuple):
    """A moment when a durable subscription or a consumer group was in use.

    Attributes:
        time: Seconds since 1970 by the system's clock, which may jump.
        uptime: Microseconds by `omq.store.clock.uptime`, which does not jump.
    """

    time: float
    uptime: int

    @classmethod
    def now(cls) -> Activity:
        """Returns the present moment."""
        return cls(time.time(), uptime())

    def idle(self) -> float:
        """Returns the seconds since this moment, sleep of the system included."""
        return (uptime() - self.uptime) / 1e6
