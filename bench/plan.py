"""The parts of a scenario: cases, the peers of each, and the targets that omq has to meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from bench.measure import Sample
from bench.peers import another_build


@dataclass(frozen=True)
class Metric:
    """One figure of a sample.

    Attributes:
        key: Its name in the samples.
        title: The head of its column, with the unit.
        decimals: Digits after the point in the table.
        less_is_better: For latencies.
    """

    key: str
    title: str
    decimals: int = 0
    less_is_better: bool = False


RATE = Metric("rate", "msg/s")
MEGABYTES = Metric("megabytes", "MB/s", 1)
P50 = Metric("p50", "p50 us", 1, less_is_better=True)
P99 = Metric("p99", "p99 us", 1, less_is_better=True)
PUBLISHED = Metric("published", "published/s")


@dataclass(frozen=True)
class Target:
    """A bound for the median of omq.

    Attributes:
        bound: The bound of the ratio omq/peer or, without a peer, of omq's own figure.
        peer: The peer that omq is compared with; `None` for an absolute figure.
        metric: The metric that is compared; `None` for the case's first metric.
        idle: The bound that holds instead on a machine that is otherwise idle (`bench.report.CaseResult.idle`).
        subject: The peer whose median it is; `None` for the subject of the case.
    """

    bound: float
    peer: str | None = None
    metric: Metric | None = None
    idle: float | None = None
    subject: str | None = None


@dataclass(frozen=True)
class Case:
    """One table: the same load for every peer.

    Attributes:
        title: The load.
        subject: The omq peer, whose ratio to the others is shown.
        runs: The calls that measure each peer once, in the order of interleaving; the first argument is the peer.
        metrics: The columns; the first is the one that ratios and targets are about.
        targets: The bounds for the subject.
        rounds: The number of rounds at most; `None` for that of the command line.
    """

    title: str
    subject: str
    runs: Mapping[str, partial[Sample]]
    metrics: tuple[Metric, ...]
    targets: tuple[Target, ...] = ()
    rounds: int | None = None

    def with_another_build(self) -> Case:
        """Returns the case with the omq of `OMQ_BEFORE`, if there is one, in turn with this one."""
        runs = {}
        for peer, run in self.runs.items():
            runs[peer] = run
            if before := another_build(peer):
                runs[before] = partial(run.func, before, *run.args[1:], **run.keywords)
        return replace(self, runs=runs)


@dataclass(frozen=True)
class ScenarioOptions:
    """The options of the command line.

    Attributes:
        sizes: Bytes of a message; empty for the scenario's own.
        transports: `tcp`, `ipc`; empty for the scenario's own.
        seconds: How long a measured burst should last.
        subscribers: Processes that a PUB serves.
        connections: Connections of one socket.
    """

    sizes: tuple[int, ...] = ()
    transports: tuple[str, ...] = ()
    seconds: float = 1.0
    subscribers: int = 8
    connections: int = 10_000


@dataclass(frozen=True)
class Scenario:
    """A family of cases under one name.

    Attributes:
        name: Its name on the command line.
        about: One line for the list.
        peers: The peers, omq's first.
        cases: Makes the cases for given options.
    """

    name: str
    about: str
    peers: tuple[str, ...]
    cases: Callable[[ScenarioOptions], list[Case]]


def size_text(size: int) -> str:
    """Returns a size as text: `128 B`, `16 KiB`, `1 MiB`."""
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"
