"""Quiescence: nothing goes on any more, in whatever library, so that what is seen now is what there will be.

Every thread but ours sleeps in the kernel and has not run between two looks, and the sockets report it twice. Over
loopback the kernel has delivered what was written before the write returns, and whom it concerns is awake by then: so
nothing can be under way while every thread sleeps. Timers are not covered: a caller that waits names its effect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_INTERVAL_S = 0.001  # seconds between two looks
TIRED = 1.0  # seconds after which who never sleeps is no longer waited for

_TASKS = Path("/proc/self/task")


def settle(ask: Callable[[], Any], attendants: frozenset[int] = frozenset()) -> Any:
    """Waits until nothing goes on.

    Args:
        ask: Calls every socket, since libzmq's are served only while they are called, and returns what they report.
        attendants: Native ids of threads that run whenever `ask` is called: these may, but not otherwise.

    Returns:
        The last report.
    """
    calling = frozenset(str(one) for one in attendants)
    end = time.monotonic() + TIRED
    before, ran = None, None
    while True:
        report = ask()
        begun, _ = _threads()
        time.sleep(POLL_INTERVAL_S)
        runs, asleep = _threads()
        others = {task: number for task, number in runs.items() if task not in calling}
        if asleep and runs == begun and others == ran and report == before:
            return report
        if time.monotonic() > end:
            return report
        before, ran = report, others


def _threads() -> tuple[dict[str, str], bool]:
    """Returns how often each other thread has gone to sleep or been interrupted, and whether all of them sleep."""
    ours = str(threading.get_native_id())
    runs, asleep = {}, True
    for task in _TASKS.iterdir():
        if task.name == ours:
            continue
        try:
            status = (task / "status").read_text(encoding="ascii", errors="replace")
        except OSError:  # it has just ended
            asleep = False
            continue
        runs[task.name] = status[status.index("voluntary_ctxt_switches") :]
        state = status.index("State:\t") + 7
        asleep = asleep and status[state] in "SI"
    return runs, asleep
