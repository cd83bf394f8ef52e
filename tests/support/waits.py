"""Waits for events that no call waits for: a condition instead of a pause in which it may have come true."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import omq

BOUND = 30.0  # seconds that one wait of a test may take


def until(condition: Callable[[], Any], what: str | Callable[[], object] = "it", bound: float = BOUND) -> None:
    """Waits until a condition holds.

    Args:
        condition: It is evaluated every millisecond.
        what: A name of the event, or a function that describes the state if it has not come.
        bound: Seconds after which the test fails.
    """
    end = time.monotonic() + bound
    while not condition():
        assert time.monotonic() < end, f"not within {bound} s: {what() if callable(what) else what}"
        time.sleep(0.001)


def stable(value: Callable[[], Any], quiet: float = 0.3, bound: float = BOUND) -> Any:
    """Waits until a value has not changed for *quiet* seconds, and returns it."""
    end = time.monotonic() + bound
    seen, since = value(), time.monotonic()
    while time.monotonic() - since < quiet:
        assert time.monotonic() < end, f"it changes after {bound} s: {seen}"
        time.sleep(0.002)
        if (found := value()) != seen:
            seen, since = found, time.monotonic()
    return seen


def least(measure: Callable[[], float], bound: float, runs: int = 5) -> float:
    """Measures until the result is below a bound, and returns the least: a busy machine only makes a run slower.

    Args:
        measure: Runs what is measured, and returns seconds, or the ratio of two times.
        bound: The result below which no further run is needed.
        runs: How many runs there are at most, with half a second between two.
    """
    found = measure()
    for _ in range(runs - 1):
        if found < bound:
            break
        time.sleep(0.5)
        found = min(found, measure())
    return found


def sleeps(thread: int) -> bool:
    """Returns whether a thread is asleep in the kernel, and stays so: a thread that waits for the GIL soon looks again.

    Args:
        thread: Its native id, of whatever process; a process's id is that of its main thread.
    """
    before = _state(thread)
    time.sleep(0.02)
    return before[0].startswith("S") and _state(thread) == before


def descriptors() -> set[tuple[str, str]]:
    """Returns the open descriptors, with what they lead to.

    What was open before may go at any time: earlier tests leave garbage. What the library's thread that helps another
    one in has open comes when that first needs help, and stays. So do a context's own, which come with its first
    connection.
    """
    found = set()
    own = {str(fd) for context in omq.Context._all for fd in context.background.descriptors}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own, for one
            target = os.readlink(f"/proc/self/fd/{number}")
            if not target.endswith("/syscall") and number not in own:
                found.add((number, target))
    return found


def _state(thread: int) -> tuple[str, str]:
    lines = Path(f"/proc/{thread}/status").read_text(encoding="ascii", errors="replace").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return status["State"], status["voluntary_ctxt_switches"]
