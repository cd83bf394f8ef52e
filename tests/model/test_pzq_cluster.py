"""Every interleaving of a small pzq cluster, as far as the bounds go, against what is promised."""

from __future__ import annotations

import hashlib
import random
from collections import deque

import pytest

from tests.model.pzq_cluster import Broken, Cluster, Event

ALL = ("crash", "wipe", "stop", "cut", "slow", "twice")


def explore(cluster: Cluster, faults: int, rounds: int, most: int) -> int:
    """Goes through all states breadth first; how many there are.

    Args:
        cluster: Where it begins.
        faults: How many may happen on a way.
        rounds: How long a way is.
        most: States after which it ends.
    """
    seen = {hashlib.blake2b(cluster.mark(), digest_size=12).digest()}
    waiting: deque[tuple[Cluster, tuple[Event, ...]]] = deque([(cluster, ())])
    while waiting and len(seen) < most:
        before, way = waiting.popleft()
        for event in before.events(faults):
            after = before.copy()
            try:
                after.happen(event)
                after.round()
                mark = hashlib.blake2b(after.mark(), digest_size=12).digest()
                if mark in seen:
                    continue
                seen.add(mark)
                if len(way) + 1 < rounds:
                    waiting.append((after, (*way, event)))
                if event != ("idle",) or len(way) + 1 >= rounds:
                    after.copy().check_healing()
            except Broken as broken:
                raise Broken(f"{broken}, after {[*way, event]}") from None
    return len(seen)


def walk(seed: int, rounds: int, faults: int) -> None:
    """One long way by chance."""
    chance = random.Random(seed)
    cluster = Cluster(messages=3)
    way: list[Event] = []
    try:
        while len(way) < rounds:
            events = cluster.events(faults)
            event = ("idle",) if chance.random() < 0.4 else chance.choice(events)
            if event[0] == "wipe" and cluster.wiped:
                continue  # a majority's disks live
            way.append(event)
            cluster.happen(event)
            cluster.round()
        cluster.check_healing()
    except Broken as broken:
        raise Broken(f"{broken}, with seed {seed} after {way}") from None


def test_a_message_passes_through_a_whole_cluster() -> None:
    cluster = Cluster()
    cluster.happen(("produce",))
    cluster.round()
    assert cluster.acked == {"a0/1"}
    assert [machine.name for machine in cluster.machines.values() if cluster.deliverable(machine)] == ["a"]
    cluster.happen(("consume", "a", "a", "a0/1"))
    cluster.check_healing()


def test_a_dead_owners_message_is_delivered_by_the_first_that_holds_it() -> None:
    cluster = Cluster()
    cluster.happen(("produce",))
    cluster.happen(("crash", "a"))
    for _ in range(8):
        cluster.round()
    assert [machine.name for machine in cluster.machines.values() if cluster.deliverable(machine)] == ["b"]
    cluster.happen(("consume", "b", "a", "a0/1"))
    cluster.happen(("return", "a"))
    cluster.check_healing()


def test_a_minority_does_nothing() -> None:
    cluster = Cluster()
    cluster.happen(("part", "a"))
    for _ in range(8):
        cluster.round()
    cluster.happen(("produce",))
    cluster.round()
    assert not cluster.acked
    assert not cluster.deliverable(cluster.machines["a"])
    cluster.check_healing()


@pytest.mark.timeout(120)
def test_every_way_of_two_faults() -> None:
    assert explore(Cluster(), faults=2, rounds=9, most=6_000) > 1000


@pytest.mark.timeout(120)
def test_ways_by_chance() -> None:
    for seed in range(150):
        walk(seed, rounds=60, faults=8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_way_of_three_faults() -> None:
    assert explore(Cluster(), faults=3, rounds=14, most=400_000) > 100_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_ways_by_chance() -> None:
    for seed in range(1000, 6000):
        walk(seed, rounds=80, faults=12)
