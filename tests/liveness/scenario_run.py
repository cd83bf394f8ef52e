"""One run of a cell: an owner takes what busy and quiet peers send, and reports what it has seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop
import zmq

import omq
import omq.asyncio
from tests.liveness import receive_styles
from tests.liveness.latency_record import LatencyRecord
from tests.liveness.peer_worker import Worker
from tests.liveness.scenarios import ASYNCIO, Scenario

LEAD = 0.1  # seconds that the busy peers have for themselves
MESSAGES = 10  # of the quiet peers together
GRACE = 3.0  # seconds after which a message that has not come is starved
TICK = 0.005  # seconds that another task of an asyncio owner sleeps, again and again


class Crowd:
    """The peers of one owner, in two processes that serve one run after another.

    Attributes:
        idle: No run is on.
    """

    def __init__(self) -> None:
        self._busy, self._quiet = Worker(), Worker()
        self.idle = True

    def close(self) -> None:
        for worker in (self._busy, self._quiet):
            worker.close()

    def join(self, cell: Scenario, endpoint: str, quiet: str | None = None) -> None:
        """Has the peers connect: all to one endpoint, or the quiet ones to one of their own."""
        bounded = bool(cell.hwm) and not cell.kind.startswith("XPUB")
        self.idle = False
        self._busy.order(role=cell.sender, kind=cell.kind, endpoint=endpoint, peers=cell.busy, bounded=bounded)
        where = quiet or endpoint
        self._quiet.order(role="quiet", kind=cell.kind, endpoint=where, peers=cell.quiet, heartbeats=cell.heartbeats)

    def joined(self) -> bool:
        return self._busy.answered() and self._quiet.answered()

    def go(self, rest: float) -> None:
        """Has the peers send: the quiet ones a message each *rest* seconds."""
        for worker in (self._busy, self._quiet):
            assert "joined" in worker.receive()
        self._busy.order(go=True)
        self._quiet.order(after=LEAD, count=MESSAGES, rest=rest)

    def leave(self, ledger: LatencyRecord) -> None:
        """Ends the run, while the owner is still there."""
        assert self._quiet.receive()["sent"] == MESSAGES
        self._quiet.order(leave=True)
        report = self._quiet.receive()
        ledger.trips, ledger.lost = report["trips"], report["lost"]
        self._busy.order(leave=True)
        if failure := self._busy.receive()["failure"]:
            ledger.wrong.append(f"a busy peer has lost its connection: {failure}")
        self.idle = True


class Run:
    """The part of both twins that handles received messages."""

    def __init__(self, cell: Scenario, rest: float) -> None:
        self._started = time.monotonic_ns(), _kept_waiting()
        self.ledger = LatencyRecord(cell.kind, cell.work, MESSAGES // 4 if cell.sudden else 0)
        self._cell = cell
        self._end = time.monotonic_ns() + int((LEAD + MESSAGES * rest + GRACE) * 1e9)

    def take(self, batch: Sequence[Any]) -> list[list[bytes]]:
        """Notes what a call gave; the answers to give."""
        now = time.monotonic_ns()
        answers = []
        for message in batch:
            quiet = self.ledger.note(message, now)
            if self._cell.kind == "REP" or (quiet and self._cell.kind == "ROUTER"):
                answers.append([message] if type(message) is bytes else message)
        return answers

    def extend(self, nanoseconds: int) -> None:
        """The owner was away so long: no message is starved for that."""
        self._end += nanoseconds

    @property
    def over(self) -> bool:
        """Returns whether all messages have been taken, or will never be."""
        now = time.monotonic_ns()
        if len(self.ledger.ages) < MESSAGES and now <= self._end:
            return False
        took, waited = now - self._started[0], _kept_waiting() - self._started[1]
        self.ledger.stretch = took / max(took - waited, took / 10)
        return True


def _kept_waiting() -> int:
    """Nanoseconds that this thread has waited for a processor: what other programs cost it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return 0


def run(
    cell: Scenario, crowd: Crowd, *, away: Callable[[], Any] | None = None, rest: float | None = None
) -> LatencyRecord:
    """One run with omq.

    Args:
        cell: What to run.
        crowd: Its peers.
        away: What the owner does, once, instead of taking messages: half of the quiet ones come before it.
        rest: Seconds between two messages of the quiet peers; `None` for the cell's.
    """
    rest = cell.rest if rest is None else rest
    if cell.style in ASYNCIO:
        return uvloop.run(_run_asyncio(cell, crowd, away, rest))
    with receive_styles.socket_of(omq, cell.kind, cell.hwm) as sock:
        batches = receive_styles.BLOCKING[cell.style](sock, cell.limit)
        return _run_blocking(cell, crowd, sock, sock.endpoints[0], batches, away, rest)


def run_libzmq(cell: Scenario, crowd: Crowd) -> LatencyRecord:
    """The same with libzmq, whose owner takes one message at a time."""
    with zmq.Context() as context, receive_styles.libzmq_socket(context, cell.kind, cell.hwm) as sock:
        endpoint = sock.getsockopt_string(zmq.LAST_ENDPOINT)
        return _run_blocking(cell, crowd, sock, endpoint, receive_styles.libzmq(sock, 1), None, cell.rest)


def _run_blocking(
    cell: Scenario, crowd: Crowd, sock: Any, endpoint: str, batches: Any, away: Callable[[], Any] | None, rest: float
) -> LatencyRecord:
    crowd.join(cell, endpoint)
    while not crowd.joined():
        sock.poll(0)  # libzmq takes in new connections only while its user calls it
        time.sleep(0.002)
    crowd.go(rest)
    run = Run(cell, rest)
    while not run.over:
        for answer in run.take(next(batches)):
            sock.send_multipart(answer)
        if away is not None and len(run.ledger.ages) >= MESSAGES // 2:
            begun = time.monotonic_ns()
            away()
            away = None
            run.extend(time.monotonic_ns() - begun)
    batches.close()
    crowd.leave(run.ledger)
    return run.ledger


async def _run_asyncio(cell: Scenario, crowd: Crowd, away: Callable[[], Any] | None, rest: float) -> LatencyRecord:
    async with receive_styles.socket_of(omq.asyncio, cell.kind, cell.hwm) as sock:
        crowd.join(cell, sock.endpoints[0])
        while not crowd.joined():  # noqa: ASYNC110 - two processes set no event
            await asyncio.sleep(0.002)
        crowd.go(rest)
        run = Run(cell, rest)
        other = asyncio.create_task(tick(run.ledger))
        batches = receive_styles.ASYNCIO[cell.style](sock, cell.limit)
        while not run.over:
            for answer in run.take(await anext(batches)):
                await sock.send_multipart(answer)
            if away is not None and len(run.ledger.ages) >= MESSAGES // 2:
                begun = time.monotonic_ns()
                await away()
                away = None
                run.extend(time.monotonic_ns() - begun)
        other.cancel()
        await asyncio.wait([other])
        await batches.aclose()
        await asyncio.to_thread(crowd.leave, run.ledger)
    return run.ledger


async def tick(ledger: LatencyRecord) -> None:
    """Another task of an asyncio owner, which notes how late it is each time."""
    while True:
        due = time.monotonic() + TICK
        try:
            await asyncio.sleep(TICK)
        finally:
            ledger.laps.append(max(0.0, time.monotonic() - due))
