"""The ack deadlines of a consumer."""

from hypothesis import given
from hypothesis import strategies as st

from omq.ranges import Range
from omq.workqueue.ack_deadlines import AckDeadlines, InFlight


def piece(deadlines: AckDeadlines, first: int, last: int, now: float) -> Range[InFlight]:
    deadline, order = deadlines.begin(first, last, now)
    return Range(first, last, InFlight(1, deadline, order))


def test_progress_restarts_the_timeout_of_later_deliveries() -> None:
    deadlines = AckDeadlines(10.0)
    one, two = piece(deadlines, 5, 9, 0.0), piece(deadlines, 1, 4, 1.0)
    deadlines.progress(one.value.order, 6, 7.0)
    assert deadlines.of(Range(5, 5, one.value)) == 10.0, "it was delivered before, and may hang"
    assert deadlines.of(Range(7, 9, one.value)) == 17.0
    assert deadlines.of(two) == 17.0, "what was delivered later is behind, whatever its ids"
    deadlines.progress(two.value.order, 2, 8.0)
    assert deadlines.of(Range(7, 9, one.value)) == 17.0
    assert deadlines.of(Range(3, 4, two.value)) == 18.0
    deadlines.progress(one.value.order, 5, 9.0)
    assert deadlines.of(two) == deadlines.of(Range(7, 9, one.value)) == 19.0


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 1)), max_size=200))
def test_a_deadline_depends_on_the_latest_progress_before_it(signs: list[tuple[int, float]]) -> None:
    deadlines = AckDeadlines(5.0)
    held = piece(deadlines, 1, 20, 0.0)
    seen: list[tuple[int, float]] = []
    now = 0.0
    for id, later in signs:
        now += later
        deadlines.progress(held.value.order, id, now)
        seen.append((id, now))
        for first in range(1, 21):
            before = [moment for one, moment in seen if one < first]
            wanted = max([held.value.deadline, *(moment + 5.0 for moment in before)])
            assert deadlines.of(Range(first, 20, held.value)) == wanted
    assert len(deadlines._marks) <= 21
