"""Measures one run of one peer: fresh processes, a calibrated burst, one sample of figures."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from bench.processes import Worker
from omq.cli.bench.measure import address, calibrated

#: The figures of a run, by the names of their metrics.
Sample = dict[str, float]

READY_BYTES = 256 << 20  # that wait for all subscribers together


@dataclass(frozen=True)
class Load:
    """The load of a case, the same for every peer.

    Attributes:
        transport: `tcp`, `ipc` or `ws`.
        size: Bytes of a message.
        seconds: How long the measured burst should last.
    """

    transport: str
    size: int
    seconds: float


def throughput(peer: str, load: Load, roles: tuple[str, str] = ("push", "pull"), *, outward: bool = False) -> Sample:
    """Measures a process that sends to one that times from the first message to the last.

    Args:
        peer: The peer of both processes.
        load: The load.
        roles: Of the sender and of the receiver.
        outward: The sender binds, and not the receiver (roles of a PUSH and a PULL only).
    """
    with address(load.transport) as endpoint, ExitStack() as processes:
        binder, dialler = roles if outward else (roles[1], roles[0])
        bound = processes.enter_context(Worker(peer, binder, endpoint=endpoint, size=load.size, binds=True))
        resolved = bound.wait_for("endpoint")
        dialled = processes.enter_context(Worker(peer, dialler, endpoint=resolved, size=load.size, binds=False))
        push, pull = (bound, dialled) if outward else (dialled, bound)

        def burst(count: int) -> float:
            pull.order(burst=count)
            pull.wait_for("armed")
            push.order(burst=count)
            return float(pull.wait_for("seconds"))

        count, took = calibrated(burst, load.seconds, 10 if load.size >= 65536 else 200)
    return _rates(count, took, load.size)


def inproc(peer: str, load: Load) -> Sample:
    """Measures two sockets in one loop of one process."""
    with Worker(peer, "inproc", size=load.size) as both:

        def burst(count: int) -> float:
            both.order(burst=count)
            return float(both.wait_for("seconds"))

        count, took = calibrated(burst, load.seconds, 200)
    return _rates(count, took, load.size)


def round_trips(peer: str, load: Load, roles: tuple[str, str] = ("rep", "req")) -> Sample:
    """Measures every round trip between a process that asks and one that answers, in microseconds."""
    with address(load.transport) as endpoint, ExitStack() as processes:
        rep = processes.enter_context(Worker(peer, roles[0], endpoint=endpoint, size=load.size))
        req = processes.enter_context(Worker(peer, roles[1], endpoint=rep.wait_for("endpoint"), size=load.size))
        trips: list[int] = []

        def burst(count: int) -> float:
            req.order(burst=count)
            trips[:] = req.wait_for("trips")
            return sum(trips) / 1e9

        calibrated(burst, load.seconds, 200)
    return percentiles(trips)


def fan_out(peer: str, load: Load, subscribers: int) -> Sample:
    """Measures a process that publishes to several; each counts its messages in the same window of time."""
    with address(load.transport) as endpoint, ExitStack() as processes:
        pub = processes.enter_context(Worker(peer, "pub", endpoint=endpoint, size=load.size))
        resolved = pub.wait_for("endpoint")
        subs = [
            processes.enter_context(
                Worker(peer, "sub", endpoint=resolved, size=load.size, seconds=load.seconds),
            )
            for _ in range(subscribers)
        ]
        for sub in subs:
            sub.wait_for("subscribed")
        pub.order(go=True)
        windows = [sub.wait_for("count") for sub in subs]
        pub.order(stop=True)
        published = pub.wait_for("published")
    rate = sum(window["count"] / window["seconds"] for window in windows)
    return {"rate": rate, "megabytes": rate * load.size / 1e6, "published": published}


def fan_out_lossless(peer: str, load: Load, subscribers: int) -> Sample:
    """Measures a PUB without high-water marks: the time ends when every subscriber has every message."""
    with address(load.transport) as endpoint, ExitStack() as processes:
        pub = processes.enter_context(Worker(peer, "pub-lossless", endpoint=endpoint, size=load.size))
        resolved = pub.wait_for("endpoint")
        subs = [
            processes.enter_context(Worker(peer, "sub-lossless", endpoint=resolved, size=load.size))
            for _ in range(subscribers)
        ]
        for sub in subs:
            sub.wait_for("subscribed")

        def burst(count: int) -> float:
            for sub in subs:
                sub.order(burst=count)
            pub.order(burst=count)
            started = pub.wait_for("started")
            return max(float(sub.wait_for("ended")) for sub in subs) - started

        count, took = calibrated(burst, load.seconds, 200)
    return _rates(count * subscribers, took, load.size)


def fan_in(peer: str, load: Load, senders: int) -> Sample:
    """Measures several processes that send to one, which times from the first message to the last."""
    with address(load.transport) as endpoint, ExitStack() as processes:
        pull = processes.enter_context(Worker(peer, "pull", endpoint=endpoint, size=load.size))
        resolved = pull.wait_for("endpoint")
        pushes = [
            processes.enter_context(Worker(peer, "push", endpoint=resolved, size=load.size)) for _ in range(senders)
        ]

        def burst(count: int) -> float:
            each = -(-count // senders)
            pull.order(burst=each * senders)
            pull.wait_for("armed")
            for push in pushes:
                push.order(burst=each)
            return float(pull.wait_for("seconds"))

        burst(10 * senders)  # so that all have started and are connected
        count, took = calibrated(burst, load.seconds, 1000 * senders)
    return _rates(count, took, load.size)


def fan_in_limit(peer: str, load: Load, subscribers: int) -> Sample:
    """Measures as many processes that only call `recv`, all at once, on messages that have arrived before."""
    with ExitStack() as processes:
        count = READY_BYTES // subscribers // load.size
        subs = [processes.enter_context(Worker(peer, "ready", size=load.size, count=count)) for _ in range(subscribers)]
        for sub in subs:
            sub.wait_for("ready")
        for sub in subs:
            sub.order(go=True)
        windows = [sub.wait_for("count") for sub in subs]
    took = max(window["ended"] for window in windows) - min(window["started"] for window in windows)
    rate = sum(window["count"] for window in windows) / took
    return {"rate": rate, "megabytes": rate * load.size / 1e6}


def machine_round_trip() -> float:
    """Measures the state of the machine: the median round trip of bare sockets, in microseconds."""
    return round_trips("bare", Load("tcp", 16, 0.3))["p50"]


def _rates(count: int, took: float, size: int) -> Sample:
    rate = (count - 1) / took
    return {"rate": rate, "megabytes": rate * size / 1e6}


def percentiles(nanoseconds: list[int]) -> Sample:
    values = sorted(nanoseconds)
    return {"p50": values[len(values) // 2] / 1e3, "p99": values[len(values) * 99 // 100] / 1e3}
