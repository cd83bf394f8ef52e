"""One owner of two sockets, each with one peer, of which one is busy: the other socket is served in time as well."""

from __future__ import annotations

import asyncio
import itertools
import selectors
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import uvloop

import omq
import omq.asyncio
from tests.liveness import receive_styles
from tests.liveness.latency_record import LatencyRecord
from tests.liveness.limits import judge
from tests.liveness.scenario_run import Crowd, Run, tick
from tests.liveness.scenarios import Scenario

pytestmark = pytest.mark.alone

CALL_TIMEOUT_S = receive_styles.CALL_TIMEOUT_S


def _waiting(several: list[Any]) -> Iterator[Any]:
    while True:
        yield from omq.wait(several, CALL_TIMEOUT_S)


def _selecting(several: list[Any]) -> Iterator[Any]:
    with selectors.DefaultSelector() as selector:
        for sock in several:
            selector.register(sock.fileno(), selectors.EVENT_READ, sock)
        while True:
            yield from (key.data for key, _ in selector.select(CALL_TIMEOUT_S))


def _polling(several: list[Any]) -> Iterator[Any]:
    while True:
        yield from (sock for sock in several if sock.poll(0))


WAYS = {"wait": _waiting, "fileno": _selecting, "poll": _polling}


def _cells(ways: Iterable[str]) -> list[Any]:
    """Each way with every kind and work; few of them are not slow."""
    found: list[Any] = []
    for number, way in enumerate(ways):
        for kind, work in itertools.product(("PAIR", "PULL"), (10e-3, 0.0, 50e-6)):
            cell = Scenario(way, kind, 1, 1, work, 1000, "raw")
            quick = kind == "PAIR" and work == (10e-3, 0.0)[number % 2]
            found.append(pytest.param(cell, id=str(cell), marks=() if quick else pytest.mark.slow))
    return found


@pytest.mark.parametrize("cell", _cells(WAYS))
def test_the_other_socket_is_served(cell: Scenario, crowd: Crowd) -> None:
    kind = cell.kind

    def once() -> LatencyRecord:
        with (
            receive_styles.socket_of(omq, kind, cell.hwm) as busy,
            receive_styles.socket_of(omq, kind, cell.hwm) as quiet,
        ):
            crowd.join(cell, busy.endpoints[0], quiet.endpoints[0])
            while not crowd.joined():
                time.sleep(0.002)
            crowd.go(cell.rest)
            run = Run(cell, cell.rest)
            for sock in WAYS[cell.style]([busy, quiet]):
                run.take([sock.recv(timeout=0)])
                if run.over:
                    break
            crowd.leave(run.ledger)
        return run.ledger

    judge(cell, once)


@pytest.mark.parametrize("cell", _cells(receive_styles.ASYNCIO))
def test_the_task_of_the_other_socket_is_served(cell: Scenario, crowd: Crowd) -> None:
    kind = cell.kind

    async def take(sock: Any, run: Run) -> None:
        async for batch in receive_styles.ASYNCIO[cell.style](sock, cell.limit):
            run.take(batch)
            if run.over:
                break

    async def live() -> LatencyRecord:
        async with (
            receive_styles.socket_of(omq.asyncio, kind, cell.hwm) as busy,
            receive_styles.socket_of(omq.asyncio, kind, cell.hwm) as quiet,
        ):
            crowd.join(cell, busy.endpoints[0], quiet.endpoints[0])
            while not crowd.joined():  # noqa: ASYNC110 - two processes set no event
                await asyncio.sleep(0.002)
            crowd.go(cell.rest)
            run = Run(cell, cell.rest)
            other = asyncio.create_task(tick(run.ledger))
            await asyncio.gather(take(busy, run), take(quiet, run))
            other.cancel()
            await asyncio.wait([other])
            await asyncio.to_thread(crowd.leave, run.ledger)
        return run.ledger

    judge(cell, lambda: uvloop.run(live()))
