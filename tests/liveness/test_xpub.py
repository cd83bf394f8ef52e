"""A busy subscriber's upstream messages do not delay those of others: messages, and subscriptions that flap.

libzmq reads them all, however late: an XPUB takes in whatever has arrived before its user gets the first of it.
"""

from __future__ import annotations

import pytest

from tests.liveness.limits import assert_served
from tests.liveness.scenario_run import MESSAGES, Crowd, run
from tests.liveness.scenarios import SUBSCRIPTIONS, UPSTREAM, Scenario

pytestmark = pytest.mark.alone

#: The marks are not below the number of quiet messages: an XPUB drops what it has no room for, so a smaller one would
#: test whether the machine has a processor for the owner in time.
CELLS = [
    Scenario("recv", "XPUB", 1, 1, 0.0, 1000, "raw"),
    Scenario("recv_many", "XPUB", 4, 1, 50e-6, MESSAGES, "libzmq"),
    Scenario("await recv", "XPUB", 1, 49, 10e-6, 1000, "omq"),
    Scenario("poll", SUBSCRIPTIONS, 1, 49, 0.0, 2, "raw"),
    Scenario("recv", SUBSCRIPTIONS, 4, 1, 50e-6, 1000, "raw"),
    Scenario("async for", SUBSCRIPTIONS, 1, 1, 10e-6, 1000, "raw"),
]
EVERY = [
    Scenario(style, kind, *crowd, work, hwm, "raw")
    for style in ("recv", "recv_many", "fileno", "await recv", "await recv_many")
    for kind in UPSTREAM
    for crowd in ((1, 1), (4, 1))
    for work in (0.0, 10e-6, 50e-6)
    for hwm in (MESSAGES, 1000)
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_quiet_subscriber_is_read(cell: Scenario, crowd: Crowd) -> None:
    ledger = run(cell, crowd)
    assert len(ledger.ages) == MESSAGES, f"{cell}: {ledger}"
    assert not ledger.wrong, f"{cell}: {ledger}"
    assert ledger.taken, f"{cell}: {ledger}"


def test_a_quiet_subscriber_does_not_wait_for_all_that_others_have_sent(crowd: Crowd) -> None:
    assert_served(Scenario("recv", "XPUB", 4, 1, 50e-6, 1000, "raw"), crowd)


@pytest.mark.slow
@pytest.mark.parametrize("cell", EVERY, ids=str)
def test_a_quiet_subscriber_is_read_in_time(cell: Scenario, crowd: Crowd) -> None:
    assert_served(cell, crowd)
