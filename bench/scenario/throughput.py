"""PUSH to PULL between two processes, one message a call; and many a call in the blocking twin."""

from __future__ import annotations

from functools import partial

from bench.measure import Load, throughput
from bench.plan import MEGABYTES, RATE, Case, Scenario, Settings, Target, size_text

SIZES = (16, 128, 1024, 16 << 10, 1 << 20)
BARE_FROM = 1 << 20  # bytes; below it a bare socket, one system call a message, tells nothing

ASYNCIO = ("omq-asyncio", "pyzmq-asyncio", "pyomq-asyncio")
BLOCKING = ("omq", "pyzmq", "pyomq")
METRICS = (RATE, MEGABYTES)


def _targets(peers: tuple[str, ...], size: int) -> tuple[Target, ...]:
    """Lead everywhere; by how much at 128 B; and keep 80 % of the bare machine at 1 MiB."""
    _, pyzmq, pyomq = peers
    lead = {pyzmq: 1.0, pyomq: 1.0}
    if peers is ASYNCIO and size == 128:
        lead = {pyzmq: 25.0, pyomq: 2.5}
    bare = (Target(0.8, "bare"),) if size >= BARE_FROM else ()
    return (*(Target(bound, peer) for peer, bound in lead.items()), *bare)


def _cases(peers: tuple[str, ...], title: str, settings: Settings) -> list[Case]:
    cases = []
    for transport in settings.transports or ("tcp", "ipc"):
        for size in settings.sizes or SIZES:
            load = Load(transport, size, settings.seconds)
            several = (*peers, "bare") if size >= BARE_FROM else peers
            runs = {peer: partial(throughput, peer, load) for peer in several}
            name = f"{title} over {transport}, {size_text(size)}"
            cases.append(Case(name, peers[0], runs, METRICS, _targets(peers, size)))
    return cases


def _batches(settings: Settings) -> list[Case]:
    cases = []
    for transport in settings.transports or ("tcp", "ipc"):
        for size in settings.sizes or (16,):
            load = Load(transport, size, settings.seconds)
            runs = {
                "omq": partial(throughput, "omq", load, ("push-many", "pull-many")),
                "pyzmq": partial(throughput, "pyzmq", load),
            }
            name = f"send_many to recv_many beside pyzmq one by one, over {transport}, {size_text(size)}"
            cases.append(Case(name, "omq", runs, METRICS, (Target(1.0, "pyzmq"),)))
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
        "PUSH to PULL, send_many and recv_many beside pyzmq one by one, tcp and ipc, 16 B",
        ("omq", "pyzmq"),
        _batches,
    ),
)
