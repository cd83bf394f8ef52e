"""Retention of the store on disk by size and age, and reuse of the freed pages."""

import time
from collections.abc import Callable

import pytest

from omq.store import clock
from omq.store.interface import BLOCK_BYTES, AlterTopic, DeleteTopic, Trim
from omq.store.lmdb import store_directory
from tests.support.open_store import Opened
from tests.support.waits import until

Again = Callable[..., Opened]


def test_pages_of_a_deleted_topic_are_reused(store: Opened) -> None:
    for kind in ("strong", "weak"):
        topic = store.make(kind, persistence=kind)
        for _ in range(40):
            store.append(topic, bytes(300_000))
        size = store.log.stats().engines[kind].file_bytes
        used = store.log.stats().engines[kind].used_bytes
        assert 40 * 300_000 < used <= size
        store.do(DeleteTopic(topic))
        until(lambda used=used, kind=kind: store.log.stats().engines[kind].used_bytes < used / 10)
        other = store.make(kind + "2", persistence=kind)
        store.append(other, b"")
        store.log._flusher.flush()  # the pin holds the pages of the last sync until the next one
        for _ in range(35):
            store.append(other, bytes(300_000))
        assert store.log.stats().engines[kind].file_bytes < size * 1.3


def test_pages_of_dropped_messages_are_reused(store: Opened) -> None:
    topic = store.make("t", persistence="strong", max_bytes=2_000_000)
    for _ in range(100):
        store.append(topic, *[bytes(1000)] * 100)
    stats = store.log.stats().engines["strong"]
    assert store.log.topic(topic).bytes <= 2_000_000 + BLOCK_BYTES
    assert stats.file_bytes < 5_000_000
    assert stats.used_bytes < 3_000_000


def test_old_messages_are_dropped(store: Opened) -> None:
    topics = [store.make(kind, persistence=kind, max_age=0.3) for kind in ("strong", "weak", "transient")]
    for topic in topics:
        store.append(topic, b"a")
    until(lambda: all(store.log.topic(topic).first != 1 for topic in topics))
    assert [store.read(topic) for topic in topics] == [[], [], []]
    assert [store.append(topic, b"b").first for topic in topics] == [2, 2, 2]


@pytest.mark.parametrize("persistence", ["strong", "weak"])
def test_settings_are_looked_at_after_a_change_only(store: Opened, persistence: str) -> None:
    class Settings(dict[str, float]):
        looks = 0

        def get(self, key: str, default: object = None) -> object:
            Settings.looks += key == "max_age"
            return super().get(key, default)

    applier = store.log._writers[persistence].applier
    topics = [store.make(name, persistence=persistence) for name in ("a", "b")]
    assert not applier.has_ages()
    store.do(AlterTopic(topics[0], Settings(max_age=1000.0)))
    assert applier.has_ages()
    looks = Settings.looks
    assert all(applier.has_ages() for _ in range(10))
    assert Settings.looks <= looks + 2  # the store's own checks go on
    store.do(DeleteTopic(topics[0]))
    store.make("c", persistence=persistence)  # as many as before
    assert not applier.has_ages()
    store.do(AlterTopic(topics[1], {"max_age": 1000.0}))
    assert applier.has_ages()
    store.do(AlterTopic(topics[1], {}))
    assert not applier.has_ages()


def kept(log: Opened, topic: int) -> int:
    """Returns the number of messages of a topic after retention by age."""
    log.log._tick(hour=False)
    log.do(Trim(topic, 1))
    state = log.log.topic(topic)
    return state.last - state.first + 1


@pytest.mark.parametrize("kind", ["strong", "weak", "transient"])
def test_changes_of_the_system_time_do_not_age_messages(again: Again, monkeypatch, kind: str) -> None:
    year = 365 * 86_400 * 10**9
    real, off, slept = time.time_ns, [0], [0]
    monkeypatch.setattr("omq.store.clock.time.time_ns", lambda: real() + off[0])
    begun = clock.uptime()
    monkeypatch.setattr(clock, "uptime", lambda: begun + slept[0])
    monkeypatch.setattr("omq.store.memory.uptime", lambda: begun + slept[0])
    monkeypatch.setattr("omq.store.lmdb.store_directory.uptime", lambda: begun + slept[0])
    log = again()
    topic = log.make("t", persistence=kind, max_age=60.0)
    timestamps = []
    for jump in (0, year, -year, 0):
        off[0] = jump
        timestamps.append(log.append(topic, b"x").timestamp)
        log.log._tick(hour=True)
    assert kept(log, topic) == 4
    assert timestamps[1] - timestamps[0] > 364 * 86_400_000_000
    assert timestamps[2] < timestamps[0] <= timestamps[3]
    if kind != "transient":
        for jump in (year, -year):
            off[0] = jump
            log = again()
            assert kept(log, topic) == 4
    slept[0] += 61_000_000
    log.append(topic, b"new")
    assert kept(log, topic) == 1


def test_downtime_does_not_age_messages(again: Again, monkeypatch) -> None:
    log = again()
    topic = log.make("t", max_age=60.0)
    log.append(topic, b"x")
    log.log.close()
    monkeypatch.setattr("omq.store.lmdb.store_directory.uptime", lambda: clock.uptime() + 61_000_000)
    assert kept(again(), topic) == 0, "the broker was not running, the system was"
    log = again()
    log.append(topic, b"y")
    monkeypatch.setattr(store_directory.StoreDirectory, "_boot", lambda self: "another")
    monkeypatch.setattr("omq.store.clock.time.time_ns", lambda: 4 * 10**18)
    assert kept(again(), topic) == 1
