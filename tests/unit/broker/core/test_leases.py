"""Deadlines of what a consumer has."""

from hypothesis import given
from hypothesis import strategies as st

from omq.broker.core.delivery_state import DeliveryState
from omq.broker.core.leases import Leases
from omq.ranges import Range


def piece(leases: Leases, first: int, last: int, now: float) -> Range[DeliveryState]:
    deadline, order = leases.begin(first, last, now)
    return Range(first, last, DeliveryState(1, deadline, order))


def test_time_begins_anew_for_what_was_delivered_behind_what_is_done() -> None:
    leases = Leases(10.0)
    one, two = piece(leases, 5, 9, 0.0), piece(leases, 1, 4, 1.0)
    leases.sign(one.value.order, 6, 7.0)
    assert leases.of(Range(5, 5, one.value)) == 10.0, "it was delivered before, and may hang"
    assert leases.of(Range(7, 9, one.value)) == 17.0
    assert leases.of(two) == 17.0, "what was delivered later is behind, whatever its ids"
    leases.sign(two.value.order, 2, 8.0)
    assert leases.of(Range(7, 9, one.value)) == 17.0
    assert leases.of(Range(3, 4, two.value)) == 18.0
    leases.sign(one.value.order, 5, 9.0)
    assert leases.of(two) == leases.of(Range(7, 9, one.value)) == 19.0


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 1)), max_size=200))
def test_it_is_the_latest_sign_of_anything_before(signs: list[tuple[int, float]]) -> None:
    leases = Leases(5.0)
    held = piece(leases, 1, 20, 0.0)
    seen: list[tuple[int, float]] = []
    now = 0.0
    for id, later in signs:
        now += later
        leases.sign(held.value.order, id, now)
        seen.append((id, now))
        for first in range(1, 21):
            before = [moment for one, moment in seen if one < first]
            wanted = max([held.value.deadline, *(moment + 5.0 for moment in before)])
            assert leases.of(Range(first, 20, held.value)) == wanted
    assert len(leases._signs) <= 21
