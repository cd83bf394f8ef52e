"""Messages whose producers wait; `tests/property/test_pzq_waiting_property.py` has the rest."""

from __future__ import annotations

from omq.pzq.cluster.pending_replication import PendingReplication
from tests.unit.pzq.cluster.sample_keys import keys


def test_acknowledgements_cost_the_same_however_many_messages_wait() -> None:
    waiting = PendingReplication()
    for number in range(1000):
        waiting.add(keys(2 * number, 1), 1.0)
        waiting.has("b", keys(2 * number, 1))
        assert not waiting.enough(2)
        assert not waiting._ready
    for number in range(1000):
        waiting.has("c", keys(2 * number, 1))  # and no majority is in sight
    assert len(waiting.expired(2.0)) == 1000
    assert not waiting._ready
