"""A quiet peer that asks for signs of life keeps its connection, whatever the owner does."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.liveness.quiet_peers import HEARTBEAT_TIMEOUT
from tests.liveness.scenario_run import MESSAGES, Crowd, run
from tests.liveness.scenarios import ASYNCIO, BLOCKING, Scenario

pytestmark = pytest.mark.alone

AWAY = 3 * HEARTBEAT_TIMEOUT / 1000  # seconds: several times what the peers wait for a sign of life
WORKING = 2.5 * HEARTBEAT_TIMEOUT / 1000  # seconds


def _cell(style: str, kind: str, work: float, quiet: int = 3) -> Scenario:
    return Scenario(style, kind, 1, quiet, work, 1000, "raw", heartbeats=True)


def _assert_kept(cell: Scenario, crowd: Crowd, **how: Any) -> None:
    ledger = run(cell, crowd, **how)
    assert not ledger.lost, f"{cell}: {ledger}"
    assert len(ledger.ages) == MESSAGES, f"{cell}: {ledger}"
    assert not ledger.wrong, f"{cell}: {ledger}"


@pytest.mark.parametrize(
    "cell",
    [
        _cell("recv", "PULL", 0.01),
        _cell("await recv", "DISH", 0.01),
        *(
            pytest.param(_cell(style, kind, 0.01), marks=pytest.mark.slow)
            for style in ("recv_multipart", "recv_many", "fileno", "await recv_multipart", "await recv_many")
            for kind in ("PULL", "DEALER", "ROUTER")
        ),
        pytest.param(_cell("recv", "SERVER", 0.01), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_next_to_a_busy_peer_and_a_working_owner(cell: Scenario, crowd: Crowd) -> None:
    _assert_kept(cell, crowd, rest=WORKING / MESSAGES)


def _asleep() -> None:
    time.sleep(AWAY)


def _computing() -> None:
    until = time.monotonic() + AWAY
    while time.monotonic() < until:
        pass


def _in_one_call() -> None:
    """A call into C that keeps the interpreter's lock for longer than the peers wait."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        power, took = 50_000, 0.0
        while took < 1.5 * HEARTBEAT_TIMEOUT / 1000:
            number = 3**power
            started = time.monotonic()
            str(number)
            took = time.monotonic() - started
            power *= 2
    finally:
        sys.set_int_max_str_digits(limit)


async def _awaiting() -> None:
    await asyncio.sleep(AWAY)


_SLOW = [
    (style, kind, away)
    for style, kind in (("recv_many", "DEALER"), ("fileno", "ROUTER"), ("poll", "PULL"))
    for away in (_asleep, _computing, _in_one_call)
]


@pytest.mark.parametrize(
    ("style", "kind", "away"),
    [
        ("recv", "PULL", _asleep),
        ("await recv_multipart", "ROUTER", _awaiting),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in _SLOW),
    ],
)
def test_next_to_a_busy_peer_while_the_owner_is_away(
    style: str, kind: str, away: Callable[[], Any], crowd: Crowd
) -> None:
    assert style in BLOCKING + ASYNCIO
    _assert_kept(_cell(style, kind, 0.0), crowd, away=away)
