"""What a queue keeps in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from omq.pzq.device.queue import Flight, Queue
from omq.store.errors import DamagedError
from omq.store.interface import TopicState
from omq.store.settled import Settled


def test_what_is_done_with_elsewhere_and_never_read_is_not_kept_in_mind() -> None:
    journal: Any = SimpleNamespace(store=SimpleNamespace(id="0" * 32, settled=lambda id: Settled()))
    queue = Queue(journal, TopicState(1, "replicas", "round_robin", "weak", {}, 1, 0, 0), lambda seconds, call: None)
    chance = random.Random(1)
    for turn in range(100):
        ids = [*range(turn * 100 + 1, turn * 100 + 101)]
        queue.grown(ids[-1])
        chance.shuffle(ids)
        for id in ids:
            queue.discard(id)
        assert not queue._discarded
    assert queue.is_empty
    queue.grown(10_002)
    queue.discard(10_002)
    assert queue._unread[0] == (10_001, 10_002)
    queue.discard(10_001)
    assert queue.is_empty


class Damaged:
    """A reader that finds one message damaged, and others behind it."""

    def __enter__(self) -> Damaged:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def blocks(self, first: int, stop: int) -> Iterator[tuple[bytes, memoryview]]:
        if first <= 3 < stop:
            raise DamagedError("damaged", 1, 3, 3)
        return iter(())


def test_what_cannot_be_read_is_told_to_the_cluster_and_is_not_done_with() -> None:
    store = SimpleNamespace(id="0" * 32, settled=lambda id: Settled(), read=lambda id: Damaged())
    journal: Any = SimpleNamespace(store=store)
    state = TopicState(1, "delivery", "round_robin", "weak", {}, 1, 5, 0, jumped=((9, 9),))
    store.topic = lambda id: state
    queue = Queue(journal, state, lambda seconds, call: None)
    assert list(queue.live()) == []
    assert list(queue.lost) == [(3, 3), (9, 9)]
    assert (queue.damaged, queue._done, list(queue._unread)) == (1, [(3, 3)], [(1, 2), (4, 5)])


def test_what_is_found_damaged_while_it_is_read_is_told_to_the_cluster() -> None:
    store = SimpleNamespace(id="0" * 32, settled=lambda id: Settled(), read=lambda id: Damaged())
    journal: Any = SimpleNamespace(store=store)
    queue = Queue(journal, TopicState(1, "delivery", "round_robin", "weak", {}, 1, 5, 0), lambda seconds, call: None)
    left: list[int] = []
    lost: list[tuple[int, int]] = []
    queue.tell(left.append, lambda first, last: lost.append((first, last)))
    assert queue.head() is None
    assert (left, lost, queue.damaged) == ([], [(3, 3)], 1)
    assert list(queue.runs([1, 2, 3])) == []
    assert lost == [(3, 3)], "it was read"


def stocked(chance: random.Random) -> Queue:
    """A queue where some messages were read, some came back, some were delivered in an earlier life, some are gone."""
    journal: Any = SimpleNamespace(store=SimpleNamespace(id="0" * 32, settled=lambda id: Settled()))
    queue = Queue(journal, TopicState(1, "replicas", "round_robin", "weak", {}, 1, 0, 0), lambda seconds, call: None)
    queue._handed_before = queue._handed = chance.choice([0, 3, 20])
    flights = [
        Flight(queue, id, b"%d" % id, [b"x"], chance.choice([0, 1, 5, 30]), int(id <= queue._handed))
        for id in range(1, 21)
    ]
    for flight in flights:
        if flight.tries and chance.random() < 0.3:
            assert queue.returned(flight)
        else:
            queue._ready.append(flight)
    queue._discarded.update(flight.id for flight in flights if chance.random() < chance.choice([0, 0.2]))
    return queue


@pytest.mark.parametrize("seed", range(50))
def test_some_are_taken_as_one_by_one(seed: int) -> None:
    most, room, alone = (
        (chance := random.Random(-seed - 1)).randrange(1, 25),
        chance.randrange(60),
        chance.random() < 0.5,
    )
    together, apart = stocked(random.Random(seed)), stocked(random.Random(seed))
    taken = together.take_some(most, room, alone)
    one_by_one: list[Flight] = []
    while len(one_by_one) < most and (flight := apart.head()) is not None:
        if flight.size > room and (one_by_one or not alone):
            break
        room -= flight.size
        one_by_one.append(apart.take())
    assert [(flight.id, flight.tries) for flight in taken] == [(flight.id, flight.tries) for flight in one_by_one]
    assert [flight.id for flight in together._ready] == [flight.id for flight in apart._ready]
    assert (together._handed, together._again, together._discarded, len(together._back)) == (
        *(apart._handed, apart._again, apart._discarded, len(apart._back)),
    )
