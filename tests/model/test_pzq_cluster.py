"""Every interleaving of a small pzq cluster, as far as the bounds go, against what is promised."""

from __future__ import annotations

import hashlib
import random
import time
from collections import deque
from collections.abc import Callable
from itertools import permutations

import pytest

from tests.model.pzq_cluster_model import HEALING, KINDS, Broken, Cluster, Event, key_in

KEY = key_in("a0", 1)

#: Of a beginning: the faults that have happened, and how far its ways go.
FAULTS = {"produced": 0, "taken_over": 1, "returning": 1}
ROUNDS = {"produced": 6, "taken_over": 4, "returning": 4}


def explore(cluster: Cluster, faults: int, rounds: int, seconds: float) -> tuple[int, bool]:
    """Goes through all states breadth first.

    It checks all states at the end of a way for healing, and one of eight others.

    Args:
        cluster: Where it begins.
        faults: How many may happen on a way.
        rounds: How long a way is.
        seconds: Of a processor, after which it ends in any case: how long it takes depends on the machine.

    Returns:
        How many states there are, and whether these are all.
    """
    end = time.process_time() + seconds
    seen = {hashlib.blake2b(cluster.mark(), digest_size=12).digest()}
    waiting: deque[tuple[Cluster, tuple[Event, ...]]] = deque([(cluster, ())])
    while waiting:
        if time.process_time() > end:
            return len(seen), False
        before, way = waiting.popleft()
        for event, after in zip(before.events(faults), before.copies(), strict=False):
            try:
                after.happen(event)
                after.round()
                mark = hashlib.blake2b(after.mark(), digest_size=12).digest()
                if mark in seen:
                    continue
                seen.add(mark)
                if len(way) + 1 < rounds:
                    waiting.append((after, (*way, event)))
                # The others come to it by being idle.
                if mark[0] < 32 or len(way) + 1 == rounds:
                    after.copy().check_healing()
            except Broken as broken:
                raise Broken(f"{broken}, after {[*way, event]}") from None
    return len(seen), True


def walk(seed: int, rounds: int, faults: int) -> None:
    """One long way by chance."""
    chance = random.Random(seed)
    cluster = Cluster(messages=3, kinds=(*KINDS, "lazy"))
    way: list[Event] = []
    try:
        while len(way) < rounds:
            events = cluster.events(faults)
            event = ("idle",) if chance.random() < 0.4 else chance.choice(events)
            if event[0] == "wipe" and cluster.lost:
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
    assert cluster.acked == {KEY}
    assert [machine.name for machine in cluster.machines.values() if cluster.deliverable(machine)] == ["a"]
    cluster.happen(("consume", "a", "a", KEY))
    cluster.check_healing()


def test_a_dead_owners_message_is_delivered_by_the_first_that_holds_it() -> None:
    cluster = taken_over()
    cluster.happen(("consume", "b", "a", KEY))
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


def test_an_owner_gets_its_queue_back_only_once_it_knows_what_was_acknowledged() -> None:
    cluster = taken_over()
    cluster.happen(("consume", "b", "a", KEY))
    cluster.links["b", "a"] = "thin"  # what was acknowledged does not come through, the rest does
    cluster.happen(("return", "a"))
    for _ in range(12):
        cluster.round()
        assert not cluster.deliverable(cluster.machines["a"])
    cluster.check_healing()


@pytest.mark.parametrize("fault", ["crash", "wipe"])
def test_remote_acks_are_kept_by_every_node_that_received_them(fault: str) -> None:
    cluster = taken_over()
    cluster.happen(("consume", "b", "a", KEY))
    for _ in range(8):
        cluster.round()
    for event in (("crash", "c"), ("return", "c"), (fault, "b"), ("return", "a")):
        cluster.happen(event)
        for _ in range(8):
            cluster.round()
            assert not cluster.deliverable(cluster.machines["a"])
    cluster.check_healing()


def test_a_node_that_has_lost_its_disk_supports_no_leader_at_first() -> None:
    cluster = Cluster()
    cluster.happen(("produce",))
    cluster.happen(("part", "a"))
    for _ in range(8):
        cluster.round()
    assert cluster.deliverable(cluster.machines["b"])  # as the third one supports it
    cluster.happen(("wipe", "c"))
    cluster.happen(("return", "c"))
    cluster.links = {("a", "b"): "cut", ("b", "a"): "cut", ("c", "b"): "cut"}
    for _ in range(8):
        cluster.round()  # the second one delivers on, by what the third has sent before; the first must not
    cluster.check_healing()


def test_what_is_acknowledged_while_a_replica_is_being_stored() -> None:
    cluster = Cluster(kinds=(*KINDS, "lazy"))
    cluster.happen(("lazy", "a", "b"))
    cluster.happen(("produce",))
    cluster.happen(("consume", "a", "a", KEY))
    cluster.happen(("crash", "a"))
    for _ in range(8):
        cluster.round()
    assert not cluster.deliverable(cluster.machines["b"])
    cluster.check_healing()


@pytest.mark.parametrize("link", ["", "slow", "twice"])
@pytest.mark.parametrize("away", "bc")
def test_what_was_acknowledged_while_a_node_was_away_is_not_delivered_by_it(away: str, link: str) -> None:
    cluster = missing(away)
    cluster.happen(("crash", "a"))
    cluster.happen(("return", away))
    if link:
        cluster.happen((link, "c" if away == "b" else "b", away))
    for _ in range(12):
        cluster.round()
        assert not cluster.deliverable(cluster.machines[away])
    cluster.check_healing()


@pytest.mark.parametrize("order", [*permutations("abc")])
def test_nodes_that_lose_their_disks_one_after_another(order: tuple[str, ...]) -> None:
    cluster = produced()
    for name in order:
        cluster.happen(("wipe", name))
        cluster.happen(("return", name))
        for _ in range(HEALING):
            cluster.round()
    assert not cluster.lost
    cluster.check_healing()


@pytest.mark.parametrize("which", "ab")
@pytest.mark.parametrize("alone", [0, 2], ids=["at once", "started alone before"])
def test_an_older_copy_of_a_directory_has_no_part_in_the_cluster(which: str, alone: int) -> None:
    cluster = Cluster(messages=2)
    cluster.happen(("produce",))
    machine = cluster.machines[which]
    cluster.happen(("crash", which))
    copy = cluster.copy().machines[which]
    cluster.happen(("return", which))
    for _ in range(8):
        cluster.round()
    cluster.happen(("consume", "a", "a", key_in("a0", 2)))
    cluster.happen(("produce",))
    for _ in range(8):
        cluster.round()
    cluster.happen(("crash", which))
    machine.put_back(copy)
    cluster.happen(("part", which))
    for _ in range(alone):
        cluster.happen(("return", which))
        cluster.round()
        cluster.happen(("crash", which))
    cluster.happen(("heal",))
    cluster.happen(("return", which))
    for _ in range(8):
        cluster.round()
        assert not cluster.deliverable(machine)
    assert machine.node is None
    cluster.happen(("wipe", which))  # it joins as a new node
    cluster.check_healing()


def taken_over() -> Cluster:
    """The first node has died with a message, and the second one delivers it."""
    cluster = Cluster()
    cluster.happen(("produce",))
    cluster.happen(("crash", "a"))
    for _ in range(8):
        cluster.round()
    assert [machine.name for machine in cluster.machines.values() if cluster.deliverable(machine)] == ["b"]
    return cluster


def produced() -> Cluster:
    """A message is on all nodes."""
    cluster = Cluster()
    cluster.happen(("produce",))
    cluster.round()
    return cluster


def missing(away: str = "b") -> Cluster:
    """A node has died with a message, which was acknowledged to its owner then."""
    cluster = produced()
    cluster.happen(("crash", away))
    for _ in range(8):
        cluster.round()
    cluster.happen(("consume", "a", "a", KEY))
    for _ in range(8):
        cluster.round()
    return cluster


def returning() -> Cluster:
    """The first node comes back when the second one has its message."""
    cluster = taken_over()
    cluster.happen(("return", "a"))
    return cluster


BEGINNINGS = (produced, taken_over, returning)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_every_way_of_a_fault(beginning: Callable[[], Cluster]) -> None:
    name = beginning.__name__
    states, are_all = explore(beginning(), faults=FAULTS[name] + 1, rounds=ROUNDS[name], seconds=90)
    assert are_all
    assert states > 400


@pytest.mark.timeout(300)
def test_ways_by_chance() -> None:
    for seed in range(30):
        walk(seed, rounds=60, faults=8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_every_way_of_two_faults(beginning: Callable[[], Cluster]) -> None:
    states, _ = explore(beginning(), faults=FAULTS[beginning.__name__] + 2, rounds=10, seconds=600)
    assert states > 10_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_ways_by_chance() -> None:
    for seed in range(1000, 10_000):
        walk(seed, rounds=80, faults=12)
