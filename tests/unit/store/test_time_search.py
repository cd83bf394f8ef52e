"""`Reader.first_at` of both stores: the first message at or after a time."""

from collections.abc import Callable
from typing import Any

import pytest

from omq.store.interface import Trim
from omq.store.internal import SkipIds
from omq.store.lmdb import reader as lmdb_reader
from tests.support.open_store import Opened

Again = Callable[..., Opened]
PLACES = pytest.mark.parametrize("place", ["disk", "memory"], indirect=True)


class WallClock:
    """The system's clock of both stores: `now` is its time."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock()
    for module in ("memory", "lmdb.applier"):
        monkeypatch.setattr(f"omq.store.{module}.wall", clock)
    return clock


def filled(log: Opened, wall: WallClock, *timestamps: int, count: int = 1, **settings: Any) -> int:
    """Creates a topic with a block of *count* messages for each timestamp."""
    topic = log.make("t", persistence=settings.pop("persistence", "weak"), **settings)
    for wall.now in timestamps:
        log.append(topic, *[b"x"] * count)
    return topic


def first_at(log: Opened, topic: int, timestamp: int) -> tuple[int, int]:
    with log.log.read(topic) as reader:
        return reader.first_at(timestamp)


@PLACES
def test_a_topic_without_messages(log: Opened) -> None:
    topic = log.make("t", persistence="weak")
    assert first_at(log, topic, 0) == first_at(log, topic, 2**63) == (1, 0)


@PLACES
def test_a_topic_of_one_block(log: Opened, wall: WallClock) -> None:
    topic = filled(log, wall, 500, count=7)
    assert first_at(log, topic, 0) == first_at(log, topic, 499) == first_at(log, topic, 500) == (1, 500)
    assert first_at(log, topic, 501) == first_at(log, topic, 2**64 - 1) == (8, 0)


@PLACES
def test_between_blocks_the_later_one_is_found(log: Opened, wall: WallClock) -> None:
    topic = filled(log, wall, 10, 20, 30, count=4)
    found = {timestamp: first_at(log, topic, timestamp) for timestamp in (9, 10, 11, 20, 21, 30, 31)}
    assert found == {9: (1, 10), 10: (1, 10), 11: (5, 20), 20: (5, 20), 21: (9, 30), 30: (9, 30), 31: (13, 0)}


@PLACES
def test_the_first_of_several_blocks_with_the_same_timestamp(log: Opened, wall: WallClock) -> None:
    topic = filled(log, wall, 10, 20, 20, 20, 30)
    assert first_at(log, topic, 20) == first_at(log, topic, 11) == (2, 20)


@PLACES
def test_dropped_messages_are_not_found(log: Opened, wall: WallClock) -> None:
    topic = filled(log, wall, 10, 20, 30, count=4)
    log.do(Trim(topic, 7))  # within the second block
    assert first_at(log, topic, 0) == first_at(log, topic, 20) == (7, 20)
    assert first_at(log, topic, 21) == (9, 30)
    log.do(Trim(topic, 13))
    assert first_at(log, topic, 0) == first_at(log, topic, 31) == (13, 0)


@PLACES
def test_a_clock_that_was_set_back(log: Opened, wall: WallClock) -> None:
    topic = filled(log, wall, 10, 50, 20, 60)
    assert first_at(log, topic, 5) == (1, 10)
    # Both are the start of a block at or after the time, after an earlier one.
    assert first_at(log, topic, 40) in ((2, 50), (4, 60))
    assert first_at(log, topic, 55) == (4, 60)
    assert first_at(log, topic, 61) == (5, 0)


@PLACES
def test_a_reader_does_not_find_later_messages(log: Opened, wall: WallClock) -> None:
    topic = filled(log, wall, 10)
    with log.log.read(topic) as reader:
        wall.now = 20
        log.append(topic, b"y")
        assert reader.first_at(15) == (2, 0)


def test_ids_that_a_crash_has_skipped(again: Again, wall: WallClock) -> None:
    log = again()
    topic = filled(log, wall, 10, 20)
    log.log.submit(SkipIds(topic, 1_000_000))  # the store's own write, which is not returned
    log.do(Trim(topic, 1))
    assert first_at(log, topic, 21) == (1_000_001, 0)
    wall.now = 30
    assert log.append(topic, b"x").first == 1_000_001
    assert first_at(log, topic, 20) == (2, 20)
    assert first_at(log, topic, 21) == (1_000_001, 30)
    assert first_at(log, topic, 31) == (1_000_002, 0)
    assert first_at(again(), topic, 21) == (1_000_001, 30)


def damage(log: Opened, topic: int, first: int, at: int | None) -> None:
    """Flips a bit of a stored block, or deletes the block if *at* is `None`."""
    environment = next(one.environment for one in log.log._writers.values() if one.applier.topics.get(topic))
    transaction = environment.begin()
    key = lmdb_reader.block_key(topic, first)
    value = bytearray(transaction.get(key))
    if at is None:
        transaction.delete(key)
    else:
        value[at] ^= 1
        transaction.put(key, bytes(value))
    transaction.commit()


HEADER, RECORDS = 20, lmdb_reader.BLOCK.size + 9


@pytest.mark.parametrize("persistence", ["strong", "weak"])
def test_damaged_headers_count_as_the_next_block(store: Opened, wall: WallClock, persistence: str) -> None:
    topic = filled(store, wall, 10, 20, 30, 40, 50, persistence=persistence)
    for first in (2, 3, 5):
        damage(store, topic, first, HEADER)
    assert first_at(store, topic, 10) == (1, 10)
    assert first_at(store, topic, 11) == first_at(store, topic, 40) == (2, 40)
    assert first_at(store, topic, 41) == (5, 0)  # the time of the last block is unknown


@pytest.mark.parametrize("persistence", ["strong", "weak"])
def test_a_topic_with_only_damaged_headers(store: Opened, wall: WallClock, persistence: str) -> None:
    topic = filled(store, wall, 10, 20, persistence=persistence)
    for first in (1, 2):
        damage(store, topic, first, HEADER)
    assert first_at(store, topic, 0) == first_at(store, topic, 100) == (1, 0)


def test_damaged_records_have_a_timestamp(store: Opened, wall: WallClock) -> None:
    topic = filled(store, wall, 10, 20, 30)
    damage(store, topic, 2, RECORDS)
    assert first_at(store, topic, 15) == (2, 20)


@pytest.mark.parametrize(("persistence", "found"), [("strong", (2, 30)), ("weak", (3, 30))])
def test_missing_messages_are_found_where_they_are_damage(
    store: Opened, wall: WallClock, persistence: str, found: tuple[int, int]
) -> None:
    topic = filled(store, wall, 10, 20, 30, persistence=persistence)
    damage(store, topic, 2, None)
    assert first_at(store, topic, 10) == (1, 10)
    assert first_at(store, topic, 15) == found


def test_a_search_reads_few_blocks(store: Opened, wall: WallClock, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled(store, wall, *range(0, 10_240, 10))
    seeks: list[int] = []
    seek = lmdb_reader.seek
    monkeypatch.setattr(lmdb_reader, "seek", lambda *where: seeks.append(where[2]) or seek(*where))
    for number in (0, 1, 511, 1022, 1023):
        seeks.clear()
        assert first_at(store, topic, 10 * number - 5) == (number + 1, 10 * number)
        assert len(seeks) <= 11


def test_a_search_reads_each_damaged_block_once(
    store: Opened, wall: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(store, wall, *range(0, 640, 10))
    for first in range(2, 65):
        damage(store, topic, first, HEADER)
    reads: list[bytes] = []
    header = lmdb_reader.block_header
    monkeypatch.setattr(lmdb_reader, "block_header", lambda key, value: reads.append(key) or header(key, value))
    assert first_at(store, topic, 5) == (2, 0)
    assert len(reads) <= 64 + 2 * 7  # and in each step the block before
