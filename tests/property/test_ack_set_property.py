"""The ack set, next to a plain set of ids."""

from hypothesis import given, settings
from hypothesis import strategies as st

from omq.store.ack_set import PAGE_IDS, AckSet

EDGES = st.sampled_from(
    [1, 2, 62, 63, 64, PAGE_IDS - 1, PAGE_IDS, PAGE_IDS + 1, 2 * PAGE_IDS - 1, 2 * PAGE_IDS, 3 * PAGE_IDS + 5]
)
IDS = EDGES | st.integers(1, 3 * PAGE_IDS + 10)
LAST = 4 * PAGE_IDS


RANGES = st.lists(st.tuples(IDS, st.integers(0, 50) | st.just(PAGE_IDS)), max_size=12)


@settings(max_examples=40, deadline=None)
@given(RANGES, st.dictionaries(IDS, st.integers(2, 9)))
def test_it_is_a_set_of_ids(ranges: list[tuple[int, int]], deliveries: dict[int, int]) -> None:
    acks, model = AckSet(), set[int]()
    acks.count(deliveries)
    for first, more in ranges:
        acks.add(first, first + more)
        model.update(range(first, first + more + 1))
    floor = next(id for id in range(1, LAST + PAGE_IDS) if id not in model) - 1
    assert acks.floor == floor
    assert {id for id in range(1, LAST) if id in acks} == {id for id in model if id < LAST}
    assert all(page and number >= floor // PAGE_IDS for number, page in acks.pages.items())
    for bounds in ((1, LAST - 1), (PAGE_IDS, PAGE_IDS), (PAGE_IDS - 1, 2 * PAGE_IDS)):
        missing = [id for first, last in acks.missing(*bounds) for id in range(first, last + 1)]
        assert missing == [id for id in range(bounds[0], bounds[1] + 1) if id not in model]
    for after in (acks.floor, acks.floor + PAGE_IDS):
        above = [id for first, last in acks.above(after) for id in range(first, last + 1)]
        assert above == sorted(id for id in model if id > after)
    assert acks.deliveries == {id: number for id, number in deliveries.items() if id not in model}
    assert acks.dirty >= acks.pages.keys()
    assert acks.counted >= set(deliveries)


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, st.integers(0, 50)), max_size=8))
def test_pages_that_changed_are_all_that_is_to_be_kept(ranges: list[tuple[int, int]]) -> None:
    acks, kept = AckSet(), dict[int, int]()
    for first, more in ranges:
        acks.add(first, first + more)
        for number in acks.dirty:
            if number in acks.pages:
                kept[number] = acks.pages[number]
            else:
                kept.pop(number, None)
        acks.dirty.clear()
        assert kept == acks.pages
