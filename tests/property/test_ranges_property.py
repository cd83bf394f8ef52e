"""Ranges of ids, against a plain set and a plain dictionary of single ids."""

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from omq.ranges import Range, RangeMap, RangeSet, append_range, gaps, ranges_of
from tests.support.hypothesis_profiles import examples

Pair = tuple[int, int]

RANGES = st.tuples(st.integers(1, 60), st.integers(0, 12)).map(lambda two: (two[0], two[0] + two[1]))
VALUES = st.sampled_from(["a", "b", (1, 0.5), (1, 1.5)])
LAST = 80


def ids_of(ranges: Iterable[Pair]) -> list[int]:
    return [id for first, last in ranges for id in range(first, last + 1)]


def values_of(ranges: Iterable[Range[object]]) -> dict[int, object]:
    return {id: one.value for one in ranges for id in range(one.first, one.last + 1)}


def is_normal(ranges: list[Pair]) -> bool:
    """Returns whether ranges ascend, with at least one id between them."""
    return all(first <= last for first, last in ranges) and all(one[1] + 1 < two[0] for one, two in pairwise(ranges))


@examples(200)
@given(st.lists(st.tuples(st.booleans(), RANGES), max_size=40), RANGES)
def test_a_set_is_what_a_set_of_ids_would_be(steps: list[tuple[bool, Pair]], bounds: Pair) -> None:
    ranges, model = RangeSet(), set[int]()
    for adds, (first, last) in steps:
        ids = set(range(first, last + 1))
        if adds:
            ranges.add(first, last)
            model |= ids
        else:
            assert ids_of(ranges.discard(first, last)) == sorted(model & ids)
            model -= ids
        assert is_normal([*ranges])
        assert ids_of(ranges) == sorted(model)
        assert ranges.count == len(model)
        assert len(ranges) == len([*ranges])
        assert not ranges or ranges.first == min(model)
    assert [id for id in range(1, LAST) if id in ranges] == sorted(model)
    assert [*RangeSet(ranges)] == [*ranges] == ranges_of(model)
    low, high = bounds
    assert ids_of(ranges.within(low, high)) == sorted(id for id in model if low <= id <= high)
    missing = [*ranges.missing(low, high)]
    assert is_normal(missing)
    assert ids_of(missing) == [id for id in range(low, high + 1) if id not in model]
    assert ranges.first_gap(low) == next(id for id in range(low, LAST) if id not in model)


@examples(200)
@given(st.lists(st.tuples(st.booleans(), RANGES, VALUES), max_size=40))
def test_a_map_is_what_a_dictionary_of_ids_would_be(steps: list[tuple[bool, Pair, object]]) -> None:
    ranges, model = RangeMap[object](), dict[int, object]()
    for puts, (first, last), value in steps:
        ids = range(first, last + 1)
        found = {id: model[id] for id in ids if id in model}
        assert values_of(ranges.within(first, last)) == found
        assert ranges.overlaps(first, last) == bool(found)
        assert (one.value if (one := ranges.get(first)) else None) == model.get(first)
        if puts:
            ranges.put(first, last, value)
            model.update(dict.fromkeys(ids, value))
        else:
            assert values_of(ranges.take(first, last)) == found
            model = {id: value for id, value in model.items() if id not in found}
        every = [*ranges]
        assert values_of(every) == model
        assert ranges.count == sum(one.count for one in every) == len(model)
        assert len(ranges) == len(every)
        assert not every or ranges.head is every[0]
        for one, two in pairwise(every):
            assert one.last < two.first
            assert one.last + 1 < two.first or one.value != two.value, "neighbours with one value are one range"


@given(st.lists(st.integers(0, 30)))
def test_ids_become_ranges_whatever_their_order(ids: list[int]) -> None:
    found, one_by_one = ranges_of(ids), list[Pair]()
    assert is_normal(found)
    assert ids_of(found) == sorted(set(ids))
    for id in sorted(set(ids)):
        append_range(one_by_one, id, id)
    assert one_by_one == found


@given(st.lists(RANGES), RANGES)
def test_gaps_are_the_rest(ranges: list[Pair], bounds: Pair) -> None:
    low, high = bounds
    ids = {id for id in ids_of(ranges) if low <= id <= high}
    rest = [*gaps(ranges_of(ids_of(ranges)), low, high)]
    assert is_normal(rest)
    assert ids_of(rest) == [id for id in range(low, high + 1) if id not in ids]
    assert [*gaps(rest, low, high)] == ranges_of(ids)


def test_a_range_shows_its_ids_and_its_value() -> None:
    assert repr(Range(3, 5, "a")) == "<3 to 5: 'a'>"
