"""The acks of consumer groups, in the stores on disk and in memory, next to plain sets of ids."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from omq._core import blocks
from omq.store.errors import StoreError
from omq.store.interface import Acknowledge, Append, DeleteGroup, MoveToDeadLetter, SetGroup, Trim
from tests.support.open_store import Opened

QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TOPIC, DEAD = 1, 2
ID = st.integers(1, 60) | st.sampled_from([4094, 4095, 4096, 4097])
NAME = st.sampled_from(["a", "ab", "b", "é"])
STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 30) | st.just(4100)),
    st.tuples(st.just("set"), NAME, st.just(0) | ID),
    st.tuples(st.just("delete"), NAME),
    st.tuples(
        st.just("ack"),
        NAME,
        st.lists(st.tuples(ID, st.integers(0, 9)), max_size=3),
        st.just(0) | ID,
        st.dictionaries(ID, st.integers(1, 9), max_size=3),
    ),
    st.tuples(st.just("move"), NAME, ID),
    st.tuples(st.just("trim"), ID),
    st.tuples(st.just("again")),
    st.tuples(st.just("killed")),
)


@dataclass
class Group:
    """The expected acks of a group."""

    acked: set[int] = field(default_factory=set)
    delivered: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    generation: int = 0  # the number of the creation or move


class Model:
    """A topic and its groups."""

    def __init__(self) -> None:
        self.first, self.last = 1, 0
        self.moved: list[tuple[int, int]] = []  # the generation and the id
        self.generations = 0
        self.groups: dict[str, Group] = {}

    def apply(self, step: tuple[Any, ...]) -> bool:
        """Applies a step; returns whether it succeeds."""
        match step:
            case "append", count:
                self.last += count
            case "set", name, position:
                if position > self.last:
                    return False
                self.generations += 1
                self.groups[name] = Group(set(range(1, position + 1)), position, generation=self.generations)
            case "delete", name:
                self.groups.pop(name, None)
            case "trim", first:
                self.first = max(self.first, min(first, self.last + 1))
            case "ack", name, ranges, delivered, counts:
                ids = {id for first, more in ranges for id in range(first, first + more + 1)}
                if name not in self.groups or max(ids, default=0) > self.last or delivered > self.last:
                    return False
                group = self.groups[name]
                group.acked |= set(range(1, self.first))
                group.delivered = max(group.delivered, delivered)
                group.counts |= {id: count for id, count in counts.items() if id not in group.acked}
                group.acked |= ids
            case "move", name, id:
                if name not in self.groups or not self.first <= id <= self.last:
                    return False
                self.groups[name].acked |= {id, *range(1, self.first)}
                self.moved.append((self.groups[name].generation, id))
        for group in self.groups.values():
            group.counts = {id: count for id, count in group.counts.items() if id not in group.acked}
        return True

    def floor(self, name: str) -> int:
        acked, floor = self.groups[name].acked, 0
        while floor + 1 in acked:
            floor += 1
        return floor


def write_of(log: Opened, step: tuple[Any, ...]) -> Any:
    match step:
        case "append", count:
            return Append(TOPIC, blocks.encode([b"x"] * count), count)
        case "set", name, position:
            return SetGroup(TOPIC, name, position)
        case "delete", name:
            return DeleteGroup(TOPIC, name)
        case "ack", name, ranges, delivered, counts:
            pairs = [(first, first + more) for first, more in ranges]
            return Acknowledge(TOPIC, pairs, delivered, dict(counts), group=name)
        case "move", name, id:
            generation = log.log.ack_set(TOPIC, name).generation
            about: dict[str, Any] = {"deliveries": 2, "reason": "max-deliveries"}
            return MoveToDeadLetter(TOPIC, id, DEAD, group=name, generation=generation, **about)
        case "trim", first:
            return Trim(TOPIC, first)


def check(log: Opened, model: Model, once: bool) -> None:
    """Compares a store with the model.

    Args:
        log: The store.
        model: The model.
        once: The dead letters are in another engine, which takes each message of a generation once within a day.
    """
    state = log.log.topic(TOPIC)
    assert (state.first, state.last) == (model.first, model.last)
    assert log.log.topic(DEAD).last == len(set(model.moved) if once else model.moved)
    floors = {name: model.floor(name) for name in model.groups}
    assert log.log.all_ack_floors().get(TOPIC, {}) == log.log.ack_floors(TOPIC) == floors
    for name, group in model.groups.items():
        acks = log.log.ack_set(TOPIC, name)
        above = {id for first, last in acks.above(acks.floor) for id in range(first, last + 1)}
        assert set(range(1, acks.floor + 1)) | above == group.acked, name
        assert acks.last_delivered == group.delivered, name
        assert acks.deliveries == group.counts, name


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example([("set", "a", 0), ("trim", 2), ("move", "a", 2)], "strong", "weak")
@given(st.lists(STEP, max_size=25), st.sampled_from(["strong", "weak"]), st.sampled_from(["strong", "weak"]))
def test_the_acks_of_groups_are_sets_of_ids(steps: list[tuple[Any, ...]], kind: str, dead_kind: str) -> None:
    with tempfile.TemporaryDirectory(dir=QUICK) as path, Opened.in_memory() as memory:
        here = Path(path) / "begun"
        disk, model = Opened.on_disk(here), Model()
        try:
            for log in (disk, memory):
                log.make("t", persistence=kind if log is disk else "weak")
                log.make("dead", persistence=dead_kind if log is disk else "weak")
            for number, step in enumerate([("append", 30), *steps]):
                if step[0] == "again":
                    disk.log.close()
                    disk = Opened.on_disk(here)
                elif step[0] == "killed":  # a process that dies leaves what is in its files
                    left, here = here, Path(path) / str(number)
                    shutil.copytree(left, here)
                    disk.log.close()
                    disk = Opened.on_disk(here)
                elif step[0] != "move" or step[1] in model.groups:  # between engines the append comes before the ack
                    succeeds = model.apply(step)
                    for log in (disk, memory):
                        log.try_(write := write_of(log, step))
                        assert (write.error is None) == succeeds, (step, write.error)
                        assert succeeds or isinstance(write.error, StoreError)
                check(disk, model, once=kind != dead_kind)
                check(memory, model, once=False)
        finally:
            disk.log.close()
