"""The lease as its holder counts it, and the time at which another node claims it."""

import math

from omq.store.replication.lease import RENEWAL_RATIO, RETRY_RATIO, TAKEOVER_FACTOR, ElectionTimer, HeldLease


def test_a_lease_counts_from_the_moment_of_sending() -> None:
    held = HeldLease(2.0)
    assert held.end == -math.inf
    held.renew(10.0)
    assert held.end == 12.0
    assert held.renew_at == 10.0 + 2.0 * RENEWAL_RATIO
    held.renew(9.0)  # the ack of an earlier entry does not shorten it
    assert held.end == 12.0
    held.drop()
    assert held.end == -math.inf


def test_a_claim_waits_for_longer_than_the_lease() -> None:
    timer = ElectionTimer(5, 10.0)
    assert timer.due(2.0) == 10.0 + 2.0 * TAKEOVER_FACTOR
    timer.received(6, 11.0)
    assert (timer.base, timer.due(2.0)) == (6, 11.0 + 2.0 * TAKEOVER_FACTOR)


def test_an_entry_that_was_known_does_not_delay_a_claim() -> None:
    timer = ElectionTimer(5, 10.0)
    timer.learn(9, 11.0)
    timer.received(7, 12.0)
    assert (timer.base, timer.since) == (9, 11.0)


def test_a_node_that_reads_nothing_claims_less_and_less_often() -> None:
    timer = ElectionTimer(0, 0.0)
    delays = []
    for _ in range(8):
        timer.claimed(100.0, 2.0)
        delays.append(timer.due(2.0) - 100.0)
    assert delays[:3] == [2.0 * RETRY_RATIO * factor for factor in (1, 2, 4)]
    assert delays[-1] == delays[-2]
    timer.received(1, 101.0)
    assert timer.due(0) == 101.0
