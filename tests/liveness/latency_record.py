"""An owner's received messages: in order, whole, and how old."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from tests.liveness.scenarios import SUBSCRIPTIONS, UPSTREAM
from tests.liveness.stamped_messages import BUSY, CYCLE, STAMP


class LatencyRecord:
    """Counts the messages of one run.

    Args:
        kind: The owner's socket.
        work: Seconds of work on each message.
        idle: Messages of the quiet peers that are taken before there is such work.

    Attributes:
        taken: Messages of busy peers.
        ages: Seconds between the sending and the taking of each quiet peer's message.
        wrong: What came out of order, twice, or not at all.
        trips: Seconds from each quiet peer's question to its answer.
        lost: Connections that quiet peers have lost.
        laps: Seconds that the owner's loop was late for another task of its own.
        stretch: How much longer all took because the machine had other things to do: 1 for nothing.
    """

    def __init__(self, kind: str, work: float, idle: int = 0) -> None:
        self._work = work
        self._idle = idle
        self._subscriptions = kind == SUBSCRIPTIONS
        # XSUB drops what its peer has no room for, and an XPUB does not report to its user what was undone meanwhile.
        self._lossy = kind in UPSTREAM
        self._next: dict[tuple[bytes, int], int] = {}
        self.taken = 0
        self.ages: list[float] = []
        self.wrong: list[str] = []
        self.trips: list[float] = []
        self.lost = 0
        self.laps: list[float] = []
        self.stretch = 1.0

    def note(self, message: Any, now: int) -> bool:
        """Notes one message and works on it; whether it came from a quiet peer.

        Args:
            message: Its body, or its parts, of which the last is the body.
            now: `time.monotonic_ns()` when it was taken.
        """
        body = message if type(message) is bytes else bytes(message[-1])
        if self._subscriptions:
            body = body[1:]
        if self._work and len(self.ages) >= self._idle:
            until = time.perf_counter() + self._work
            while time.perf_counter() < until:
                pass
        who, peer, number, sent = STAMP.unpack_from(body)
        if who == BUSY:
            self.taken += 1
            if self._lossy:
                return False
        else:
            self.ages.append((now - sent) / 1e9)
        due = self._next.get((who, peer), 0)
        if number != due:
            self.wrong.append(f"{who.decode()}{peer}: {number} in place of {due}")
        self._next[who, peer] = (number + 1) % CYCLE
        return bool(who != BUSY)

    def __str__(self) -> str:
        words = [f"{len(self.ages)} quiet and {self.taken} busy messages"]
        if self.ages:
            words.append(f"ages: median {_ms(median(self.ages))}, worst {_ms(max(self.ages))}")
        if self.trips:
            words.append(f"{len(self.trips)} answers, worst {_ms(max(self.trips))}")
        if self.laps:
            words.append(f"other tasks late by: median {_ms(median(self.laps))}, worst {_ms(max(self.laps))}")
        if self.stretch > 1.05:
            words.append(f"the machine was slower by {self.stretch:.2f}")
        if self.lost:
            words.append(f"{self.lost} connections lost")
        return ", ".join([*words, *self.wrong[:3]])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
