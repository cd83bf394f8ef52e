"""The binary search for a time finds what a scan of all blocks finds."""

import os
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from omq._core import blocks
from omq.store.errors import DamagedError
from omq.store.interface import Trim
from omq.store.internal import SkipIds
from omq.store.lmdb.layout import BLOCK, TOPIC_NUMBER, block_header, rows, topic_key
from tests.support.hypothesis_profiles import examples
from tests.support.open_store import Opened

QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
NEVER = 2**64

STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(-3, 9), st.integers(1, 4), st.sampled_from([1, 1, 200_000])),
    st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 4), st.just(1)),
    st.tuples(st.just("trim"), st.integers(1, 30)),
    st.tuples(st.just("skip"), st.sampled_from([1, 2, 1_000_000])),
)
HARM = st.tuples(st.integers(0, 40), st.sampled_from(["header", "records", "missing"]))
SETTINGS = st.sampled_from([{}, {"max_messages": 5}, {"max_bytes": 500_000}])

#: The first id of a block, and its timestamp; `None` for damage.
Segment = tuple[int, int | None]


def fill(log: Opened, steps: list[tuple[Any, ...]], persistence: str, limits: dict[str, int], clock: list[int]) -> int:
    """Creates a topic and applies the steps; returns its id."""
    topic = log.make("t", persistence=persistence, **limits)
    for step in steps:
        match step:
            case "append", jump, count, size:
                clock[0] = max(clock[0] + jump, 0)
                log.append(topic, *[bytes(size)] * count)
            case "trim", first:
                log.do(Trim(topic, first))
            case "skip", count if persistence == "weak":
                log.log.submit(SkipIds(topic, log.log.topic(topic).last + count))  # not returned by the store
                log.do(Trim(topic, 1))
    return topic


def harm(log: Opened, topic: int, persistence: str, harms: list[tuple[int, str]]) -> None:
    """Damages stored blocks."""
    transaction = log.log._writers[persistence].environment.begin()
    stored = [(key, bytes(value)) for key, value in rows(transaction, topic_key(b"b", topic))]
    for index, kind in dict(harms).items():
        if index >= len(stored):
            continue
        key, value = stored[index]
        if kind == "missing":
            transaction.delete(key)
        else:
            at = 20 if kind == "header" else BLOCK.size + 4
            transaction.put(key, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :])
    transaction.commit()


def stored_segments(log: Opened, topic: int, persistence: str) -> list[Segment]:
    """Returns the blocks of a topic, and the ranges that are missing in a strong one."""
    found: list[Segment] = []
    state = log.log.topic(topic)
    with log.log._writers[persistence].environment.read() as transaction:
        stored = [(TOPIC_NUMBER.unpack(k)[2], k, bytes(v)) for k, v in rows(transaction, topic_key(b"b", topic))]
    following = state.first
    for (first, key, value), (after, *_) in pairwise([*stored, (state.last + 1, b"", b"")]):
        timestamp = None
        try:
            _, count, timestamp, _ = blocks.read_header(block_header(key, value)[-1])
            after = first + count
        except DamagedError:
            pass
        if after <= state.first:
            continue
        if first > following and persistence == "strong":
            found.append((following, None))
        found.append((max(first, state.first), timestamp))
        following = after
    if following <= state.last and persistence == "strong":
        found.append((following, None))
    return found


def read_segments(log: Opened, topic: int) -> list[Segment]:
    """Returns the blocks that a reader of a topic without damage yields."""
    with log.log.read(topic) as reader:
        headers = [blocks.read_header(header) for header, _ in reader.blocks(reader.first)]
    return [(first, timestamp) for first, _, timestamp, _ in headers]


def starts(segments: list[Segment], last: int, time: int) -> list[tuple[int, int]]:
    """Returns by a scan each start of a block at or after a time whose predecessor is earlier.

    Damage has the time of the next block, or `NEVER` at the end.
    """
    times: list[int] = []
    for _, timestamp in reversed(segments):
        times.insert(0, timestamp if timestamp is not None else times[0] if times else NEVER)
    found = []
    for index, ((first, _), when) in enumerate(zip(segments, times, strict=True)):
        if when >= time and (not index or times[index - 1] < time):
            found.append((first, when if when < NEVER else 0))
    if not times or times[-1] < time:
        found.append((last + 1, 0))
    return found


def check(log: Opened, topic: int, segments: list[Segment]) -> None:
    known = [timestamp for _, timestamp in segments if timestamp is not None]
    times = {0, 1, 2**63, *known, *(one + 1 for one in known), *(max(one - 1, 0) for one in known)}
    with log.log.read(topic) as reader:
        for time in sorted(times):
            expected = starts(segments, reader.last, time)
            assert reader.first_at(time) in expected, (time, segments)
            if known == sorted(known):
                assert len(expected) == 1


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=20), SETTINGS, st.lists(HARM, max_size=6), st.sampled_from(["strong", "weak"]))
def test_a_search_on_disk_finds_what_a_scan_finds(
    steps: list[tuple[Any, ...]], limits: dict[str, int], harms: list[tuple[int, str]], persistence: str
) -> None:
    clock = [5]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=QUICK) as path:
        patch.setattr("omq.store.lmdb.applier.wall", lambda: clock[0])
        with Opened.on_disk(Path(path) / "store") as log:
            topic = fill(log, steps, persistence, limits, clock)
            segments = stored_segments(log, topic, persistence)
            assert segments == read_segments(log, topic)
            check(log, topic, segments)
            harm(log, topic, persistence, harms)
            check(log, topic, stored_segments(log, topic, persistence))


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP.filter(lambda step: step[0] != "skip"), max_size=20), SETTINGS)
def test_a_search_in_memory_finds_what_a_scan_finds(steps: list[tuple[Any, ...]], limits: dict[str, int]) -> None:
    clock = [5]
    with pytest.MonkeyPatch.context() as patch, Opened.in_memory() as log:
        patch.setattr("omq.store.memory.wall", lambda: clock[0])
        topic = fill(log, steps, "weak", limits, clock)
        check(log, topic, read_segments(log, topic))
