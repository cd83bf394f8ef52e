"""Which messages a store has stored, though a copy of it gives numbers again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omq.pzq.cluster.beginnings import KEPT, Beginnings
from omq.pzq.cluster.possession import BOUND

#: How many messages each run of a node stores, and how far the clock has gone, or was set back, before it.
RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=12)


@given(runs=RUNS)
def test_what_a_store_has_stored_is_its_own_whatever_the_clock_does(runs: list[tuple[int, int]]) -> None:
    begun, number, now = Beginnings(), 0, 100
    stored: list[tuple[int, int]] = []
    for count, passed in runs:
        now += passed
        begun = begun.begun(number, now)
        for _ in range(count):
            number += 1
            stored.append((number, now))
    assert all(number <= begun.upto(at) for number, at in stored)


def test_what_another_copy_of_it_has_stored_is_not() -> None:
    begun = Beginnings().begun(0, 10).begun(5, 100)
    assert (begun.upto(9), begun.upto(10), begun.upto(99), begun.upto(100)) == (0, 5, 5, BOUND)
    # A start behind which nothing was stored counts no more than the next one.
    assert begun.begun(5, 200) == Beginnings.of([(0, 10), (5, 200)])
    assert begun.set_back(50) == Beginnings.of([(0, 10), (5, 50)])


def test_what_is_of_later_runs_alone() -> None:
    first, second = Beginnings.of([(0, 10)]), Beginnings.of([(0, 10), (5, 100)])
    assert (second.until(99, first), second.until(100, first)) == (BOUND, 5)
    assert second.until(100, second) == BOUND


def test_of_many_starts_those_are_kept_behind_which_much_was_stored_and_the_first() -> None:
    begun = Beginnings().begun(0, 10).begun(50, 20)
    for run in range(KEPT + 9):
        begun = begun.begun(51 + run, 100 + run)
    assert len(begun) == KEPT
    assert begun[:3] == ((0, 10), (50, 20), (51, 100))
    assert begun[-1] == (51 + KEPT + 8, 100 + KEPT + 8)
