"""Measures a library with two processes: messages a second, or round trips."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from types import TracebackType
from typing import Any, Final, Self

import click

from omq.cli.percentiles import percentile

#: The roles of each pattern: the first one binds, the second one has the burst's messages.
PATTERNS: Final = {"push-pull": ("pull", "push"), "pub-sub": ("pub", "sub"), "req-rep": ("rep", "req")}
ANSWER_TIMEOUT_S: Final = 30.0
MIN_BURST_S: Final = 0.1  # of a burst whose rate counts
FIRST_MESSAGES: Final = 200
FIRST_LARGE_MESSAGES: Final = 10
LARGE_BYTES: Final = 64 << 10

#: The figures of a run.
Figures = dict[str, float]


class WorkerProcess:
    """A process of `omq.cli.bench.worker`.

    Args:
        library: `omq` or `pyzmq`.
        role: Its role.
        endpoint: Its endpoint.
        size: Bytes of a message.
    """

    def __init__(self, library: str, role: str, endpoint: str, size: int) -> None:
        self._name = f"{library} {role}"
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "omq.cli.bench.worker", library, role, endpoint, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C is for the command, which ends its processes. A session of its own would be a group of its own for
            # the scheduler (sched(7), autogroup), and take a tenth longer for each round trip.
            process_group=0,
        )

    def order(self, count: int) -> None:
        """Orders a burst.

        Raises:
            ClickException: The process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"%d\n" % count)
        except OSError:
            raise click.ClickException(f"{self._name}: the process has ended") from None

    def result(self) -> Any:
        """Waits for the next result.

        Raises:
            ClickException: The process has ended, or does not answer.
        """
        assert self._process.stdout is not None
        end = time.monotonic() + ANSWER_TIMEOUT_S
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise click.ClickException(f"{self._name}: no result within {ANSWER_TIMEOUT_S:g} s")
            chunk = self._process.stdout.read(1 << 20)
            if not chunk:
                raise click.ClickException(f"{self._name}: the process has ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def address(transport: str) -> Iterator[str]:
    """Yields a free endpoint: a port picked by the system, or a path in a new folder."""
    if transport != "ipc":
        yield f"{transport}://127.0.0.1:*"
        return
    folder = tempfile.mkdtemp(prefix="omq-bench-")
    try:
        yield f"ipc://{folder}/socket"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def calibrated(burst: Callable[[int], float], seconds: float, first: int) -> tuple[int, float]:
    """Runs growing bursts until one is long enough to give the rate, then one of about `seconds`.

    Args:
        burst: Moves that many messages and returns the seconds.
        seconds: How long the last burst should take.
        first: The size of the first burst.

    Returns:
        The size of the last burst and the seconds that it took.
    """
    count, took = first, burst(first)
    while took < MIN_BURST_S:
        count = int(count * min(20.0, max(2.0, 1.5 * MIN_BURST_S / max(took, 1e-6))))
        took = burst(count)
    count = max(first, int(count * seconds / took))
    return count, burst(count)


def measure(library: str, pattern: str, transport: str, size: int, seconds: float) -> Figures:
    """Measures a library once with two fresh processes."""
    binder, dialler = PATTERNS[pattern]
    with address(transport) as endpoint, ExitStack() as stack:
        bound = stack.enter_context(WorkerProcess(library, binder, endpoint, size))
        dialled = stack.enter_context(WorkerProcess(library, dialler, bound.result(), size))
        first = FIRST_LARGE_MESSAGES if size >= LARGE_BYTES else FIRST_MESSAGES
        if pattern == "req-rep":
            return round_trips(dialled, seconds, first)
        sender, receiver = (bound, dialled) if pattern == "pub-sub" else (dialled, bound)
        return throughput(sender, receiver, size, seconds, first)


def throughput(sender: WorkerProcess, receiver: WorkerProcess, size: int, seconds: float, first: int) -> Figures:
    """Times a burst on the receiver, from its first message to its last."""

    def burst(count: int) -> float:
        receiver.order(count)
        receiver.result()
        sender.order(count)
        return float(receiver.result())

    count, took = calibrated(burst, seconds, first)
    rate = (count - 1) / took
    return {"rate": rate, "megabytes": rate * size / 1e6}


def round_trips(requester: WorkerProcess, seconds: float, first: int) -> Figures:
    """Times each round trip of a burst, in microseconds."""
    trips: list[int] = []

    def burst(count: int) -> float:
        requester.order(count)
        trips[:] = requester.result()
        return sum(trips) / 1e9

    calibrated(burst, seconds, first)
    ordered = sorted(trips)
    return {"p50": percentile(ordered, 50) / 1e3, "p99": percentile(ordered, 99) / 1e3}


def medians(samples: list[Figures]) -> Figures:
    """Returns the median of each figure."""
    return {name: median(sample[name] for sample in samples) for name in samples[0]}
