"""Which messages were stored in a node's own store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from omq.pzq.cluster.beginnings import Beginnings
from omq.pzq.keys import Keys
from omq.pzq.lineage import Lineage
from omq.pzq.run import run_of
from omq.pzq.wire import key_format, stem_of
from omq.ranges import RangeSet

STORE = "0123456789abcdef0123456789abcdef"
STEM = stem_of(STORE, 7)


def lineage(last: int, now: int, *begun: tuple[int, int]) -> tuple[Lineage, Any]:
    store: Any = SimpleNamespace(id=STORE, topic=lambda id: SimpleNamespace(last=last))
    queue: Any = SimpleNamespace(id=7, lost=RangeSet())
    return Lineage(store, [queue], {STEM: Beginnings.of(begun)}, now), queue


def keys(first: int, count: int, when: int, topic: int = 7) -> Keys:
    return run_of(key_format(STORE, topic), when, first, count)


def mine(lineage: Lineage, some: Keys) -> list[str]:
    return [key for key in some if lineage.is_mine(key)]


def test_what_was_stored_since_a_copy_was_made_is_not_of_the_copy_that_is_put_back() -> None:
    one, _ = lineage(5, 100, (0, 10))
    assert mine(one, keys(1, 9, when=50)) == list(keys(1, 5, when=50))
    assert mine(one, keys(6, 2, when=100)) == list(keys(6, 2, when=100))
    assert not mine(one, keys(1, 1, when=50, topic=8))
    assert not any(map(one.is_mine, ["", "1|2", "x" * 40]))
    # Nor does it become so by another start.
    again, _ = lineage(9, 200, *one.begun[STEM])
    assert mine(again, keys(1, 9, when=50)) == list(keys(1, 5, when=50))
    assert mine(again, keys(6, 4, when=150)) == list(keys(6, 4, when=150))


def test_what_has_come_back_is_lost_until_it_is_done_with() -> None:
    one, queue = lineage(5, 100)
    one.came_back(keys(4, 9, when=50))
    assert list(queue.lost) == [(4, 5)], "6 to 12 are others, which were stored by another copy"
    assert mine(one, keys(3, 3, when=50)) == list(keys(3, 1, when=50))
    for key in keys(5, 5, when=50):
        one.found(key)
    assert list(queue.lost) == [(4, 4)]
    one.discard(stem_of(STORE, 8), [(1, 9)])
    assert list(queue.lost) == [(4, 4)]
    one.discard(STEM, [(1, 9)])
    assert not list(queue.lost)


def test_what_is_stored_where_the_clock_was_set_back_is_its_own() -> None:
    one, queue = lineage(5, 100)
    assert not one.look_at_clock(queue, 100)
    assert not mine(one, keys(6, 1, when=90))
    assert one.look_at_clock(queue, 90)
    assert not one.look_at_clock(queue, 90)
    assert mine(one, keys(6, 1, when=90)) == list(keys(6, 1, when=90))
