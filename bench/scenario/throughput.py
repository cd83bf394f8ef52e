"""PUSH to PULL between two processes, one message a call; and many a call in the blocking twin."""

from __future__ import annotations

from functools import partial

from bench.measure import Load, throughput
from bench.plan import MEGABYTES, RATE, Case, Scenario, ScenarioOptions, Target, size_text

SIZES = (16, 128, 1024, 16 << 10, 1 << 20)
BARE_FROM_BYTES = 1 << 20  # below it a bare socket, one system call a message, is not a useful bound

ASYNCIO = ("omq-asyncio", "pyzmq-asyncio", "pyomq-asyncio")
BLOCKING = ("omq", "pyzmq", "pyomq")
METRICS = (RATE, MEGABYTES)


#: Bounds of the blocking twin's rate over pyzmq's and pyomq's, by size.
BLOCKING_BOUNDS = {16: (5.0, 2.5), 128: (5.0, 2.5), 1024: (2.5, 1.0), 16 << 10: (2.0, 1.0), 1 << 20: (1.2, 1.0)}


def _targets(peers: tuple[str, ...], transport: str, size: int) -> tuple[Target, ...]:
    """Returns the bounds: the lead over each peer, and the share of a bare socket at 1 MiB."""
    _, pyzmq, pyomq = peers
    bounds, share = (1.0, 1.0), 0.8
    if peers is BLOCKING:
        bounds, share = BLOCKING_BOUNDS.get(size, bounds), 0.85
    elif size == 128:
        bounds = (25.0, 2.5)
    bare = (Target(share, "bare"),) if size >= BARE_FROM_BYTES and (transport == "tcp" or peers is ASYNCIO) else ()
    return Target(bounds[0], pyzmq), Target(bounds[1], pyomq), *bare


def _cases(peers: tuple[str, ...], title: str, options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp", "ipc"):
        for size in options.sizes or SIZES:
            load = Load(transport, size, options.seconds)
            several = (*peers, "bare") if size >= BARE_FROM_BYTES else peers
            runs = {peer: partial(throughput, peer, load) for peer in several}
            name = f"{title} over {transport}, {size_text(size)}"
            cases.append(Case(name, peers[0], runs, METRICS, _targets(peers, transport, size)))
    return cases


def _batches(options: ScenarioOptions) -> list[Case]:
    cases = []
    for transport in options.transports or ("tcp", "ipc"):
        for size in options.sizes or (16,):
            load = Load(transport, size, options.seconds)
            runs = {
                "omq": partial(throughput, "omq", load, ("push-many", "pull-many")),
                "pyzmq": partial(throughput, "pyzmq", load),
            }
            name = f"send_many to recv_many next to pyzmq one by one, over {transport}, {size_text(size)}"
            bound = 10.0 if transport == "tcp" and size == 16 else 1.0
            cases.append(Case(name, "omq", runs, METRICS, (Target(bound, "pyzmq"),)))
    return cases


SCENARIOS = (
    Scenario(
        "asyncio-throughput",
        "PUSH to PULL, await send and await recv one by one, tcp and ipc, 16 B to 1 MiB",
        (*ASYNCIO, "bare"),
        partial(_cases, ASYNCIO, "asyncio PUSH to PULL"),
    ),
    Scenario(
        "blocking-throughput",
        "PUSH to PULL, send and recv one by one, tcp and ipc, 16 B to 1 MiB",
        (*BLOCKING, "bare"),
        partial(_cases, BLOCKING, "blocking PUSH to PULL"),
    ),
    Scenario(
        "blocking-batch",
        "PUSH to PULL, send_many and recv_many next to pyzmq one by one, tcp and ipc, 16 B",
        ("omq", "pyzmq"),
        _batches,
    ),
)
