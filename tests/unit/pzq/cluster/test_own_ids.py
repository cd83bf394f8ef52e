"""The ids of a node's own messages in its store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from omq.pzq.cluster.own_ids import OwnIds
from omq.pzq.wire import stem_of
from omq.ranges import RangeSet
from tests.unit.pzq.cluster.sample_keys import STEM, STORE, keys


def ids(last: int) -> tuple[OwnIds, Any]:
    store: Any = SimpleNamespace(id=STORE, topic=lambda id: SimpleNamespace(last=last))
    queue: Any = SimpleNamespace(id=7, lost=RangeSet())
    return OwnIds(store, [queue]), queue


def test_a_message_is_its_own_by_its_key() -> None:
    one, _ = ids(5)
    assert all(map(one.is_mine, keys(1, 5)))
    assert not one.is_mine(keys(1, 1, topic=8)[0])


def test_an_id_that_was_not_given_yet_is_of_a_later_state_of_the_store() -> None:
    one, _ = ids(5)
    assert [one.is_beyond(key) for key in (*keys(5, 2), *keys(6, 1, topic=8))] == [False, True, False]


def test_what_has_come_back_is_lost_until_it_is_acknowledged() -> None:
    one, queue = ids(9)
    one.came_back(keys(4, 2))
    assert list(queue.lost) == [(4, 5)]
    assert [key for key in keys(3, 3) if one.is_mine(key)] == list(keys(3, 1))
    one.found(keys(5, 1)[0])
    assert list(queue.lost) == [(4, 4)]
    one.discard(stem_of(STORE, 8), [(1, 9)])
    assert list(queue.lost) == [(4, 4)]
    one.discard(STEM, [(1, 9)])
    assert not list(queue.lost)
