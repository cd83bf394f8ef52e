"""How one run of one peer is measured: fresh processes, a calibrated burst, one sample of figures."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.processes import Worker

#: What a run found, by the metric's name.
Sample = dict[str, float]

SHORTEST = 0.1  # seconds that a burst must last before its rate is believed
READY_BYTES = 256 << 20  # what lies ready for all subscribers together


@dataclass(frozen=True)
class Load:
    """What every peer of a case is given.

    Attributes:
        transport: `tcp`, `ipc` or `ws`.
        size: Bytes of a message.
        seconds: How long the measured burst should last.
    """

    transport: str
    size: int
    seconds: float


@contextmanager
def address(transport: str) -> Iterator[str]:
    """An endpoint that nobody uses: a port picked by the system, or a path in a fresh folder."""
    if transport != "ipc":
        yield f"{transport}://127.0.0.1:*"
        return
    folder = tempfile.mkdtemp(prefix="omq-bench-")
    try:
        yield f"ipc://{folder}/socket"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def calibrated(burst: Callable[[int], float], seconds: float, first: int) -> tuple[int, float]:
    """Runs growing bursts until one tells the rate, then one of about `seconds`.

    Args:
        burst: Moves that many messages and gives the seconds it took.
        seconds: How long the last burst should take.
        first: The size of the first burst.

    Returns:
        The size of the last burst and the seconds that it took.
    """
    count, took = first, burst(first)
    while took < SHORTEST:
        count = int(count * min(20.0, max(2.0, 1.5 * SHORTEST / max(took, 1e-6))))
        took = burst(count)
    count = max(first, int(count * seconds / took))
    return count, burst(count)


def throughput(peer: str, load: Load, roles: tuple[str, str] = ("push", "pull"), *, outward: bool = False) -> Sample:
    """One process sends, the other receives and takes the time from the first message to the last.

    Args:
        peer: What both run.
        load: What is sent.
        roles: The sender's and the receiver's.
        outward: Whether the sender binds, where the roles are those of a PUSH and a PULL, and not the receiver.
    """
    with address(load.transport) as endpoint, ExitStack() as processes:
        binder, dialler = roles if outward else (roles[1], roles[0])
        bound = processes.enter_context(Worker(peer, binder, endpoint=endpoint, size=load.size, binds=True))
        resolved = bound.hear("endpoint")
        dialled = processes.enter_context(Worker(peer, dialler, endpoint=resolved, size=load.size, binds=False))
        push, pull = (bound, dialled) if outward else (dialled, bound)

        def burst(count: int) -> float:
            pull.order(burst=count)
            pull.hear("armed")
            push.order(burst=count)
            return float(pull.hear("seconds"))

        count, took = calibrated(burst, load.seconds, 10 if load.size >= 65536 else 200)
    return _rates(count, took, load.size)


def inproc(peer: str, load: Load) -> Sample:
    """One process, one loop, two sockets."""
    with Worker(peer, "inproc", size=load.size) as both:

        def burst(count: int) -> float:
            both.order(burst=count)
            return float(both.hear("seconds"))

        count, took = calibrated(burst, load.seconds, 200)
    return _rates(count, took, load.size)


def round_trips(peer: str, load: Load, roles: tuple[str, str] = ("rep", "req")) -> Sample:
    """One process asks, the other answers; every trip is timed, in microseconds."""
    with address(load.transport) as endpoint, ExitStack() as processes:
        rep = processes.enter_context(Worker(peer, roles[0], endpoint=endpoint, size=load.size))
        req = processes.enter_context(Worker(peer, roles[1], endpoint=rep.hear("endpoint"), size=load.size))
        trips: list[int] = []

        def burst(count: int) -> float:
            req.order(burst=count)
            trips[:] = req.hear("trips")
            return sum(trips) / 1e9

        calibrated(burst, load.seconds, 200)
    return percentiles(trips)


def fan_out(peer: str, load: Load, subscribers: int) -> Sample:
    """One process publishes to several; each counts what it got in the same window of time."""
    with address(load.transport) as endpoint, ExitStack() as processes:
        pub = processes.enter_context(Worker(peer, "pub", endpoint=endpoint, size=load.size))
        resolved = pub.hear("endpoint")
        subs = [
            processes.enter_context(
                Worker(peer, "sub", endpoint=resolved, size=load.size, seconds=load.seconds),
            )
            for _ in range(subscribers)
        ]
        for sub in subs:
            sub.hear("subscribed")
        pub.order(go=True)
        windows = [sub.hear("count") for sub in subs]
        pub.order(stop=True)
        published = pub.hear("published")
    rate = sum(window["count"] / window["seconds"] for window in windows)
    return {"rate": rate, "megabytes": rate * load.size / 1e6, "published": published}


def fan_out_whole(peer: str, load: Load, subscribers: int) -> Sample:
    """As `fan_out`, without marks: nothing is dropped, and the time ends when every subscriber has everything."""
    with address(load.transport) as endpoint, ExitStack() as processes:
        pub = processes.enter_context(Worker(peer, "pub-whole", endpoint=endpoint, size=load.size))
        resolved = pub.hear("endpoint")
        subs = [
            processes.enter_context(Worker(peer, "sub-whole", endpoint=resolved, size=load.size))
            for _ in range(subscribers)
        ]
        for sub in subs:
            sub.hear("subscribed")

        def burst(count: int) -> float:
            for sub in subs:
                sub.order(burst=count)
            pub.order(burst=count)
            started = pub.hear("started")
            return max(float(sub.hear("ended")) for sub in subs) - started

        count, took = calibrated(burst, load.seconds, 200)
    return _rates(count * subscribers, took, load.size)


def fan_in(peer: str, load: Load, senders: int) -> Sample:
    """Several processes send to one, which takes the time from the first message to the last."""
    with address(load.transport) as endpoint, ExitStack() as processes:
        pull = processes.enter_context(Worker(peer, "pull", endpoint=endpoint, size=load.size))
        resolved = pull.hear("endpoint")
        pushes = [
            processes.enter_context(Worker(peer, "push", endpoint=resolved, size=load.size)) for _ in range(senders)
        ]

        def burst(count: int) -> float:
            each = -(-count // senders)
            pull.order(burst=each * senders)
            pull.hear("armed")
            for push in pushes:
                push.order(burst=each)
            return float(pull.hear("seconds"))

        burst(10 * senders)  # all of them have started, then, and are connected
        count, took = calibrated(burst, load.seconds, 1000 * senders)
    return _rates(count, took, load.size)


def fan_in_limit(peer: str, load: Load, subscribers: int) -> Sample:
    """What as many processes reach that only call `recv`, all at once, on messages that have arrived before."""
    with ExitStack() as processes:
        count = READY_BYTES // subscribers // load.size
        subs = [processes.enter_context(Worker(peer, "ready", size=load.size, count=count)) for _ in range(subscribers)]
        for sub in subs:
            sub.hear("ready")
        for sub in subs:
            sub.order(go=True)
        windows = [sub.hear("count") for sub in subs]
    took = max(window["ended"] for window in windows) - min(window["started"] for window in windows)
    rate = sum(window["count"] for window in windows) / took
    return {"rate": rate, "megabytes": rate * load.size / 1e6}


def machine() -> float:
    """The machine's state: the median round trip of bare sockets, in microseconds."""
    return round_trips("bare", Load("tcp", 16, 0.3))["p50"]


def _rates(count: int, took: float, size: int) -> Sample:
    rate = (count - 1) / took
    return {"rate": rate, "megabytes": rate * size / 1e6}


def percentiles(nanoseconds: list[int]) -> Sample:
    values = sorted(nanoseconds)
    return {"p50": values[len(values) // 2] / 1e3, "p99": values[len(values) * 99 // 100] / 1e3}
