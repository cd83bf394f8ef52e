"""Dialling again where nobody listens yet: one timer and one system call after the other for all dialers of a loop.

An absent peer is dialled ten times a second by default, and each time the same comes of it. So a dialer whose attempt
was refused leaves the next ones to its loop's `Redialler`, and goes on by itself as soon as anything is different.
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
from omq.transport import Address
from omq.unpatched import threading

#: The errors that say that nobody listens: where endpoints are files, one may be missing.
REFUSED: Final = frozenset({errno.ECONNREFUSED, errno.ENOENT})

#: No other thread forks while a descriptor is made and noted: a child would keep what it does not know of. A signal
#: handler may fork amid it in this thread.
UNFORKED: Final = threading.RLock()
os.register_at_fork(before=UNFORKED.acquire, after_in_parent=UNFORKED.release, after_in_child=UNFORKED.release)

_EARLY: Final = 0.05  # of its pause: so much earlier an attempt may be made, together with others
_MAX_ATTEMPTS_PER_TURN: Final = 200  # attempts in one go: the loop has other things to do
_MAX_REACHED_PER_TURN: Final = 16  # attempts in one go that reach a listener, whose queue of connections is bounded
_TURN_PAUSE_S: Final = 0.001  # seconds after which it goes on


class Redialled(Protocol):
    """A dialer that waits for its next attempt."""

    @property
    def is_quiet(self) -> bool:
        """Returns whether nothing has changed since the last attempt, and no monitor reports the next one."""
        ...

    def next_pause(self) -> float:
        """Seconds until the attempt after the next one."""
        ...

    def go_on_with(self, fd: int, code: int) -> None:
        """An attempt was not refused, or has to be made by the dialer itself: *fd* is -1 then.

        Args:
            fd: A descriptor that is being connected; owned by the dialer from here on.
            code: 0 if it is connected, else `EINPROGRESS`.
        """


class Redial:
    """The next attempts of one dialer.

    Args:
        owner: The dialer.
        address: Where it dials.
        until: When the address has to be looked up again, in seconds of `time.monotonic()`.

    Attributes:
        owner: The dialer; `None` if there are to be no more attempts.
        waits: Whether it is among those that the `Redialler` has.
    """

    __slots__ = ("address", "owner", "slack", "until", "waits")

    def __init__(self, owner: Redialled, address: Address, until: float) -> None:
        self.owner: Redialled | None = owner
        self.address = address
        self.until = until
        self.slack = 0.0
        self.waits = False


class Redialler:
    """The dialers of one loop that wait for their next attempt; all is called on the loop's thread.

    The timer keeps it, and with it the dialers and their sockets: what a loop has work for is no garbage. A finalizer
    closes sockets, and the collector clears every weak reference to garbage before it calls one.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Redial]] = []
        self._serial = itertools.count()
        self._over = 0  # of the heap, what waits no more
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # when that is

    def add(self, redial: Redial, pause: float) -> None:
        """Dials in *pause* seconds, and then again and again, until `drop` or the dialer goes on by itself."""
        now = time.monotonic()
        self._put(redial, now, pause)
        self._arm(now)

    def drop(self, redial: Redial) -> None:
        """The dialer does not wait any more. Where the loop is closed, on any thread."""
        redial.owner = None
        if not redial.waits:
            return
        self._over += 1
        if 2 * self._over >= len(self._heap):
            self._heap = [one for one in self._heap if one[2].owner is not None]
            heapq.heapify(self._heap)
            self._over = 0
        if not self._heap:
            self._disarm()

    def _put(self, redial: Redial, now: float, pause: float) -> None:
        redial.waits = True
        redial.slack = pause * _EARLY
        heapq.heappush(self._heap, (now + pause, next(self._serial), redial))

    def _arm(self, now: float) -> None:
        if self._heap and self._heap[0][0] < self._due:
            self._disarm()
            self._due = self._heap[0][0]
            pause = max(self._due - now, _TURN_PAUSE_S)
            self._timer = asyncio.get_running_loop().call_later(pause, self._sweep)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._due = math.inf

    def _sweep(self) -> None:
        self._timer = None
        self._due = math.inf
        now = time.monotonic()
        reached = 0
        with UNFORKED:
            for _ in range(_MAX_ATTEMPTS_PER_TURN):
                heap = self._heap  # a dialer's end may replace it
                if not heap or heap[0][0] - heap[0][2].slack > now or reached >= _MAX_REACHED_PER_TURN:
                    break
                redial = heapq.heappop(heap)[2]
                redial.waits = False
                owner = redial.owner
                if owner is None:
                    self._over -= 1
                    continue
                if now >= redial.until or not owner.is_quiet:
                    owner.go_on_with(-1, 0)
                    continue
                family, name, settings = redial.address
                fd, code = dial(family, name, settings)
                if code in REFUSED:
                    self._put(redial, now, owner.next_pause())
                else:
                    reached += 1
                    owner.go_on_with(fd, code)
        self._arm(now)


#: Weakly: the value must not keep its key.
_redialler_of: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Redialler]]] = (
    weakref.WeakKeyDictionary()
)


def redialler_of(loop: asyncio.AbstractEventLoop) -> Redialler:
    """Returns the one of a loop, which runs in this thread."""
    found = _redialler_of.get(loop)
    redialler = found() if found is not None else None
    if redialler is None:
        redialler = Redialler()
        _redialler_of[loop] = weakref.ref(redialler)
    return redialler
