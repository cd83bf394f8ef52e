"""The combinations: how the owner takes messages, on which socket, from how many peers, with how much work."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

BLOCKING = ("recv", "recv_multipart", "recv_many", "recv_into", "recv_columns", "for", "poll", "wait", "fileno")
ASYNCIO = ("await recv", "await recv_multipart", "await recv_many", "async for", "await poll")
ONE_PART = ("recv", "recv_into", "recv_columns", "for", "await recv", "async for")  # not for what a ROUTER gets
SUBSCRIPTIONS = "XPUB-subscriptions"  # an XPUB whose peers subscribe and cancel, and send nothing else
KINDS = ("PULL", "SUB", "DEALER", "ROUTER", "REP", "XSUB")
UPSTREAM = ("XPUB", SUBSCRIPTIONS)
#: Kinds that pyzmq lacks: their peers are omq's. A CHANNEL has one peer; STREAM has bytes and no messages
#: (tests/system/conformance/test_stream_crowd.py).
ONE_PART_KINDS = ("GATHER", "SERVER", "CLIENT", "PEER", "DISH")
CROWDS = ((1, 1), (1, 49), (4, 1))  # busy peers, quiet ones
WORKS = (0.0, 10e-6, 50e-6, 10e-3)  # seconds that the owner computes on each message
MARKS = (1, 2, 1000, 0)  # recv_hwm
SENDERS = ("raw", "libzmq", "omq")  # who is busy: a plain socket that is always ahead, or a library

BOUND = 0.05  # seconds that a quiet peer's message may be old, with one busy peer
PEER_WORK_S = 1e-3  # seconds of work that each further busy peer may have before it
MIN_QUIET_INTERVAL_S = 0.015  # seconds between two quiet messages, at least
BATCH = 1024  # messages that a call takes at most...
BATCH_WORK = 0.005  # ...and the seconds that its owner lets them last: that long it learns of nothing


@dataclass(frozen=True)
class Scenario:
    """One combination.

    Attributes:
        style: How the owner takes messages, one of `BLOCKING` or `ASYNCIO`.
        kind: The owner's socket, one of `KINDS` or `UPSTREAM`.
        busy: Peers that send without end.
        quiet: Peers that send now and then.
        work: Seconds of pure Python for each message.
        hwm: The owner's `recv_hwm`.
        sender: What the busy peers are.
        heartbeats: Whether the quiet peers ask for signs of life.
        sudden: Whether the work begins only when a few of the quiet peers' messages have been taken.
    """

    style: str
    kind: str
    busy: int
    quiet: int
    work: float
    hwm: int
    sender: str
    heartbeats: bool = False
    sudden: bool = False

    @property
    def bound(self) -> float:
        """Seconds that a quiet peer's message may be old when it is taken."""
        return BOUND + (self.busy - 1) * max(self.work, PEER_WORK_S)

    @property
    def rest(self) -> float:
        """Seconds between two quiet messages: half of what the owner can do for a peer that has its fair share."""
        return max(MIN_QUIET_INTERVAL_S, 2 * (self.busy + 1) * self.work)

    @property
    def limit(self) -> int:
        """Returns how many messages one call may take: an owner that works long on each takes few."""
        return max(1, min(BATCH, int(BATCH_WORK / self.work))) if self.work else BATCH

    @property
    def fits(self) -> bool:
        """Returns whether the combination exists."""
        if self.kind == "ROUTER" and self.style in (
            "recv",
            "await recv",
            "recv_into",
            "recv_columns",
            "for",
            "async for",
        ):
            return False  # its messages have several parts
        return not (self.kind in ("REP", "DISH") and self.style == "recv_columns")

    def __str__(self) -> str:
        crowd = f"{self.busy}+{self.quiet}"
        return f"{self.style.replace(' ', '-')}-{self.kind}-{crowd}-{self.work * 1e6:g}us-hwm{self.hwm}-{self.sender}"


def product(kinds: tuple[str, ...] = KINDS, senders: tuple[str, ...] = SENDERS) -> Iterator[Scenario]:
    """Every combination."""
    for style, kind, (busy, quiet), work, hwm, sender in itertools.product(
        BLOCKING + ASYNCIO, kinds, CROWDS, WORKS, MARKS, senders
    ):
        cell = Scenario(style, kind, busy, quiet, work, hwm, sender)
        if cell.fits:
            yield cell


@cache
def chosen() -> list[Scenario]:
    """Few cells that hold every pair of values, but for those of style and kind: each twin meets each kind instead."""
    return _covering(product(), _pairs)


def usual() -> list[Scenario]:
    """The fewest of them that hold every value."""
    return _covering(chosen(), _values)


def combined(style: str, kind: str) -> list[Scenario]:
    """Few cells of one style and kind that hold every pair of the other values."""
    return _covering((cell for cell in product() if (cell.style, cell.kind) == (style, kind)), _others)


def of_one_part() -> list[Scenario]:
    """Few cells of the kinds that pyzmq lacks that hold every pair of values, as `chosen`."""
    return _covering(product(ONE_PART_KINDS, ("raw", "omq")), _pairs)


def _covering(all_cells: Iterable[Scenario], pairs_of: Callable[[Scenario], Iterator[object]]) -> list[Scenario]:
    numbers: dict[object, int] = {}
    cells = [(cell, sum(1 << numbers.setdefault(pair, len(numbers)) for pair in pairs_of(cell))) for cell in all_cells]
    missing = (1 << len(numbers)) - 1
    # The cells by the number of their missing pairs, which was counted before and can only fall.
    ranked = [(-pairs.bit_count(), number) for number, (_, pairs) in enumerate(cells)]
    heapq.heapify(ranked)
    found = []
    while missing:
        counted, number = ranked[0]
        best, pairs = cells[number]
        count = (pairs & missing).bit_count()
        if count == -counted:  # the first of the best, always
            missing &= ~pairs
            found.append(best)
        heapq.heapreplace(ranked, (-count, number))
    return found


def _values(cell: Scenario) -> Iterator[object]:
    yield from enumerate((cell.style, cell.kind, (cell.busy, cell.quiet), cell.work, cell.hwm, cell.sender))


def _others(cell: Scenario) -> Iterator[object]:
    values = (cell.busy, cell.quiet), ("work", cell.work), ("hwm", cell.hwm), cell.sender
    return itertools.combinations(values, 2)


def _pairs(cell: Scenario) -> Iterator[object]:
    crowd = (cell.busy, cell.quiet)
    values = ("style", cell.style), ("kind", cell.kind), crowd, ("work", cell.work), ("hwm", cell.hwm), cell.sender
    yield from itertools.islice(itertools.combinations(values, 2), 1, None)
    yield cell.style in ASYNCIO, cell.kind
