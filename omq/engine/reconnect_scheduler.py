"""Dialling again after a refusal: one timer for all dialers of a loop.

An absent peer is dialled ten times a second by default, with the same result each time. So a dialer whose attempt was
refused leaves the next ones to its loop's `ReconnectScheduler`, and continues by itself once the result is different.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import itertools
import math
import os
import time
import weakref
from typing import Final, Protocol

from omq._core.link.handshake_io import dial
from omq.process_hooks import run_in_child
from omq.transport import Address
from omq.unpatched import threading

#: The errors of an endpoint without a listener: where endpoints are files, one may be missing.
REFUSED: Final = frozenset({errno.ECONNREFUSED, errno.ENOENT})

#: Held while a descriptor is made and recorded, so that no other thread forks: a child would keep a descriptor that it
#: does not know. A signal handler in this thread may still fork.
FORK_LOCK: Final = threading.RLock()
os.register_at_fork(before=FORK_LOCK.acquire, after_in_parent=FORK_LOCK.release)
run_in_child(FORK_LOCK.release)

_EARLY_FRACTION: Final = 0.05  # part of its delay by which an attempt may be early, to share a timer
_MAX_ATTEMPTS_PER_TURN: Final = 200  # per turn: the loop has other work
_MAX_REACHED_PER_TURN: Final = 16  # per turn: the backlog of a listener is limited
_TURN_PAUSE_S: Final = 0.001  # until the next turn


class WaitingDialer(Protocol):
    """A dialer that waits for its next attempt."""

    @property
    def is_quiet(self) -> bool:
        """Returns whether nothing has changed since the last attempt, and the next is neither monitored nor logged."""
        ...

    def next_delay(self) -> float:
        """Returns the seconds until the attempt after the next one."""
        ...

    def resume(self, fd: int, code: int) -> None:
        """Continues the dialer after an attempt that was not refused, or one that it must make itself (*fd* is -1).

        Args:
            fd: A descriptor that is connected or connecting; owned by the dialer from here on.
            code: 0 if it is connected, `EINPROGRESS` if not yet.
        """


class PendingReconnect:
    """The pending attempts of one dialer.

    Args:
        owner: The dialer.
        address: The address to dial.
        until: The time at which the address must be resolved again, in seconds of `time.monotonic()`.

    Attributes:
        owner: The dialer; `None` after `drop`.
        waits: Whether it is in the heap of the `ReconnectScheduler`.
    """

    __slots__ = ("address", "owner", "slack", "until", "waits")

    def __init__(self, owner: WaitingDialer, address: Address, until: float) -> None:
        self.owner: WaitingDialer | None = owner
        self.address = address
        self.until = until
        self.slack = 0.0
        self.waits = False


class ReconnectScheduler:
    """The dialers of one loop that wait for their next attempt. All calls are on the loop's thread.

    The timer keeps it, and so the dialers and their sockets alive: a loop that has work for a socket must not let it
    become garbage. A finalizer closes sockets, but the collector clears all weak references to garbage before it runs.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PendingReconnect]] = []
        self._serial = itertools.count()
        self._over = 0  # entries of the heap that were dropped
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # the time at which it fires

    def add(self, pending: PendingReconnect, pause: float) -> None:
        """Dials in *pause* seconds, and repeats, until `drop` or until the dialer continues by itself."""
        now = time.monotonic()
        self._put(pending, now, pause)
        self._arm(now)

    def drop(self, pending: PendingReconnect) -> None:
        """Stops dialling. If the loop is closed, on any thread."""
        pending.owner = None
        if not pending.waits:
            return
        self._over += 1
        if 2 * self._over >= len(self._heap):
            self._heap = [one for one in self._heap if one[2].owner is not None]
            heapq.heapify(self._heap)
            self._over = 0
        if not self._heap:
            self._disarm()

    def _put(self, pending: PendingReconnect, now: float, pause: float) -> None:
        pending.waits = True
        pending.slack = pause * _EARLY_FRACTION
        heapq.heappush(self._heap, (now + pause, next(self._serial), pending))

    def _arm(self, now: float) -> None:
        if self._heap and self._heap[0][0] < self._due:
            self._disarm()
            self._due = self._heap[0][0]
            pause = max(self._due - now, _TURN_PAUSE_S)
            self._timer = asyncio.get_running_loop().call_later(pause, self._dial_due)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._due = math.inf

    def _dial_due(self) -> None:
        self._timer = None
        self._due = math.inf
        now = time.monotonic()
        reached = 0
        with FORK_LOCK:
            for _ in range(_MAX_ATTEMPTS_PER_TURN):
                heap = self._heap  # the end of a dialer may replace it
                if not heap or heap[0][0] - heap[0][2].slack > now or reached >= _MAX_REACHED_PER_TURN:
                    break
                pending = heapq.heappop(heap)[2]
                pending.waits = False
                owner = pending.owner
                if owner is None:
                    self._over -= 1
                    continue
                if now >= pending.until or not owner.is_quiet:
                    owner.resume(-1, 0)
                    continue
                family, name, settings = pending.address
                fd, code = dial(family, name, settings)
                if code in REFUSED:
                    self._put(pending, now, owner.next_delay())
                else:
                    reached += 1
                    owner.resume(fd, code)
        self._arm(now)


#: Weak references to the values, which refer to their key.
_scheduler_of: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[ReconnectScheduler]]] = (
    weakref.WeakKeyDictionary()
)


def reconnect_scheduler_of(loop: asyncio.AbstractEventLoop) -> ReconnectScheduler:
    """Returns the `ReconnectScheduler` of a loop, which runs in this thread."""
    found = _scheduler_of.get(loop)
    scheduler = found() if found is not None else None
    if scheduler is None:
        scheduler = ReconnectScheduler()
        _scheduler_of[loop] = weakref.ref(scheduler)
    return scheduler
