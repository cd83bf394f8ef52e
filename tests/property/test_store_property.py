"""The store on disk and the one in memory do the same, whatever is asked of them."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from omq._core import blocks
from omq.store.errors import StoreError
from omq.store.interface import (
    AbortStage,
    Acknowledge,
    Append,
    CommitStages,
    DeleteCursor,
    MoveToDeadLetter,
    Requeue,
    SetCursor,
    Stage,
    Trim,
)
from tests.support.hypothesis_profiles import examples
from tests.support.open_store import Opened

QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TOPIC = st.integers(1, 3)
ID = st.integers(1, 40)
NAME = st.sampled_from([b"a", b"b", b"c"])
RANGES = st.lists(st.tuples(ID, ID), max_size=3)
STEP = st.one_of(
    st.tuples(st.just("append"), TOPIC, st.integers(1, 9), st.sampled_from([b"", b"p", b"q"]), st.integers(1, 9), ID),
    st.tuples(st.just("note"), TOPIC, st.integers(1, 9), st.sampled_from([b"", b"p", b"q"]), st.integers(1, 9), ID),
    st.tuples(st.just("ack"), st.just(3), RANGES, st.dictionaries(ID, ID, max_size=2)),
    st.tuples(st.just("move"), st.just(3), ID),
    st.tuples(st.just("requeue"), st.just(1), ID, st.lists(st.integers(2, 3), min_size=1, max_size=3)),
    st.tuples(st.just("position"), TOPIC, st.text("xy", max_size=1), ID),
    st.tuples(st.just("drop"), TOPIC, st.text("xy", max_size=1)),
    st.tuples(st.just("stage"), TOPIC, st.integers(1, 5), NAME, st.integers(0, 3)),
    st.tuples(st.just("commit"), NAME, st.lists(NAME, max_size=2)),
    st.tuples(st.just("abort"), NAME),
    st.tuples(st.just("trim"), TOPIC, ID),
    st.tuples(st.just("again")),
    st.tuples(st.just("killed")),
)


def write_of(step: tuple[Any, ...], number: int) -> Any:
    """The write that a step stands for; others of the same number have the same content."""
    records = lambda count: blocks.encode([b"%d.%d" % (number, i) for i in range(count)])  # noqa: E731
    match step:
        case "append" | "note", topic, count, producer, sequence, outstanding:
            return Append(
                topic, records(count), count, producer, sequence if producer else 0, min(outstanding // 8, sequence)
            )
        case "ack", topic, ranges, deliveries:
            return Acknowledge(topic, [(min(pair), max(pair)) for pair in ranges], 0, deliveries)
        case "move", topic, id:
            return MoveToDeadLetter(topic, id, 1, deliveries=number, reason="overflow" if number % 2 else None)
        case "requeue", topic, id, targets:
            return Requeue(topic, [(id + i, target) for i, target in enumerate(targets)])
        case "position", topic, name, id:
            return SetCursor(topic, name, id)
        case "drop", topic, name:
            return DeleteCursor(topic, name)
        case "stage", topic, count, name, sequence:
            return Stage(topic, records(count), count, name, sequence)
        case "commit", name, stages:
            return CommitStages(name, stages)
        case "abort", name:
            return AbortStage(name)
        case "trim", topic, first:
            return Trim(topic, first)


def outcome(log: Opened, step: tuple[Any, ...], number: int) -> Any:
    """Returns the result of a step."""
    write = write_of(step, number)
    if step[0] == "note" and log.log.write_at_once([write], allow_wal=True):
        log.wait([write])
    else:
        log.try_(write)
    if write.error is not None:
        assert isinstance(write.error, StoreError)
        return type(write.error).__name__
    return [getattr(write, name, None) for name in ("first", "duplicate", "published", "repeated", "found", "moved")]


def state(log: Opened) -> Any:
    """Returns the visible state, except for whole blocks dropped by retention, which are cut otherwise."""
    seen = []
    for topic in (1, 2, 3):
        now = log.log.topic(topic)
        acks = log.log.ack_set(topic)
        seen.append((now.last, log.log.cursors(topic), acks.floor, acks.pages, acks.deliveries))
        if topic < 3:
            seen.append((now.first, log.read(topic)))
        else:
            seen.append([one for one in log.read(topic) if one[0] > acks.floor])
    return seen


@examples(25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=25), st.sampled_from(["strong", "weak"]))
def test_disk_and_memory_do_the_same(steps: list[tuple[Any, ...]], kind: str) -> None:
    with tempfile.TemporaryDirectory(dir=QUICK) as path, Opened.in_memory() as memory:
        here = Path(path) / "begun"
        disk = Opened.on_disk(here)
        try:
            for log in (disk, memory):
                for name, delivery in (("a", "broadcast"), ("b", "broadcast"), ("c", "round_robin")):
                    log.make(name, delivery, kind if log is disk else "weak", max_messages=30)
            for number, step in enumerate(steps):
                if step[0] == "again":
                    disk.log.close()
                    disk = Opened.on_disk(here)
                    assert disk.log.findings == []
                elif step[0] == "killed":
                    # A process that dies leaves what is in its files, and these are as they are now.
                    left, here = here, Path(path) / str(number)
                    shutil.copytree(left, here)
                    disk.log.close()
                    disk = Opened.on_disk(here)
                    assert disk.log.findings == ["the store was not shut down cleanly"]
                else:
                    assert outcome(disk, step, number) == outcome(memory, step, number), step
                if step[0] != "note":
                    disk.log.catch_up()
                    assert state(disk) == state(memory), step
        finally:
            disk.log.close()
