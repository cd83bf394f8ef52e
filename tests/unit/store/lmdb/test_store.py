"""The store on disk: reopening, moves between environments, concurrency."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from omq._core import blocks
from omq.store.errors import DamagedError, StoreError, StoreFailed
from omq.store.interface import (
    Acknowledge,
    Append,
    CommitStages,
    DeleteTopic,
    MakeTopic,
    MoveToDeadLetter,
    SetCursor,
    Stage,
)
from omq.store.lmdb import data_file, reader
from omq.store.lmdb.inspector import Inspector
from omq.store.lmdb.store import LmdbStore
from tests.support.lmdb_faults import Failing, Held
from tests.support.open_store import Opened

Again = Callable[..., Opened]


@pytest.mark.parametrize("kind", ["strong", "weak", "async"])
def test_everything_is_there_after_reopening(again: Again, kind: str) -> None:
    log = again()
    topic, jobs = log.make("t", persistence=kind, max_age=1000.5), log.make("jobs", "round_robin", kind)
    log.append(topic, b"a", b"b", producer=b"p", sequence=7)
    log.append(jobs, *[b"%d" % i for i in range(5000)])
    log.do(SetCursor(topic, "n", 1))
    log.do(Acknowledge(jobs, [(1, 10), (20, 30), (4500, 4600)], last_delivered=4700, deliveries={15: 3}))
    log.do(Stage(topic, blocks.encode([b"s"]), 1, b"stage"))
    before = log.log.topics()
    id = log.log.id
    log = again()
    assert log.log.findings == []
    assert log.log.id == id
    assert log.log.topics() == before
    assert log.read(topic) == [(1, b"a"), (2, b"b")]
    assert log.append(topic, b"a", b"b", producer=b"p", sequence=7).duplicate
    assert log.append(topic, b"c", producer=b"p", sequence=8).first == 3
    assert log.log.cursors(topic) == {"n": 1}
    acks = log.log.ack_set(jobs)
    assert (acks.floor, acks.last_delivered, acks.deliveries) == (10, 4700, {15: 3})
    assert list(acks.missing(1, 5000)) == [(11, 19), (31, 4499), (4601, 5000)]
    commit = log.do(CommitStages(b"c", [b"stage"]))
    assert commit.published == [(b"stage", topic, 4, 1)]
    log = again()
    assert log.do(CommitStages(b"c", [b"stage"])).published == commit.published
    assert [body for _, body in log.read(topic)] == [b"a", b"b", b"c", b"s"]
    assert log.log.topic(topic).settings == {"max_age": 1000.5}


def test_a_transient_topic_starts_empty_without_repeating_ids(again: Again) -> None:
    log = again()
    topic = log.make("t", persistence="transient")
    assert log.append(topic, b"a").first == 1
    log = again()
    state = log.log.topic(topic)
    assert state.last >= 1
    assert state.first == state.last + 1
    assert log.append(topic, b"b").first == state.last + 1


def test_ids_of_deleted_topics_are_not_reused(again: Again) -> None:
    log = again()
    topic = log.make("t", persistence="weak")
    log.append(topic, b"a")
    log.do(DeleteTopic(topic))
    log = again()
    assert log.make("t", persistence="weak") == topic + 1
    assert log.log.topic(topic + 1).last == 0


def test_a_dead_letter_moves_to_another_environment_once(again: Again) -> None:
    kinds = ["strong", "weak", "transient"]
    log = again()
    for source in kinds:
        for target in kinds:
            if source == target:
                continue
            topic = log.make(f"{source} to {target}", "round_robin", source)
            dead = log.make(f"dead {source} to {target}", persistence=target)
            record = blocks.encode_record(b"b", b"k", {"h": b"v"})
            first = log.do(Append(topic, record * 3, 3)).first
            log.wait_grown(topic, first + 2)
            moved = log.do(MoveToDeadLetter(topic, first + 1, dead)).first
            again_moved = log.do(MoveToDeadLetter(topic, first + 1, dead)).first
            assert moved == again_moved
            assert first + 1 in log.log.ack_set(topic)
            log.wait_grown(dead, moved)
            with log.log.read(dead) as reader:
                assert [bytes(records) for _, records in reader.blocks(moved)] == [record]
            with pytest.raises(StoreError):
                log.do(MoveToDeadLetter(topic, 10**9, dead))


def test_readers_and_writers_at_once(store: Opened) -> None:
    topic = store.make("t", persistence="weak", max_messages=3000)
    ended = threading.Event()
    trouble: list[BaseException] = []

    def follow() -> None:
        at = 1
        try:
            while not ended.is_set():
                with store.log.read(topic) as reader:
                    at = max(at, reader.first)
                    for header, records in reader.blocks(at):
                        for message in blocks.decode(header, records, "t"):
                            assert message.body == b"%d" % message.id
                            assert message.id == at
                            at += 1
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    id = 1
    for _ in range(150):
        bodies = [b"%d" % i for i in range(id, id + 100)]
        store.append(topic, *bodies)
        id += 100
    ended.set()
    for thread in threads:
        thread.join()
    assert trouble == []


def test_a_failing_callback_does_not_stop_the_store(directory: Path, caplog) -> None:
    acknowledged = threading.Semaphore(0)

    def notify(writes) -> None:
        acknowledged.release(len(writes))
        raise RuntimeError("deaf")

    with LmdbStore(directory, notify=notify) as store:
        for _ in range(3):
            store.submit(MakeTopic("t", "broadcast", "weak"))
            assert acknowledged.acquire(timeout=20)
    assert "deaf" in caplog.text


def test_ids_of_a_transient_topic_are_not_awaited_under_its_lock(store: Opened, monkeypatch) -> None:
    transient, dead = store.make("t", "round_robin", "transient"), store.make("dead")
    store.append(transient, b"job")
    held = Held(store.log._writers["strong"].environment, monkeypatch)
    # More ids than are reserved: the strong writer, which reserves ids, has to ack a dead letter in memory meanwhile.
    many = [Append(transient, blocks.encode([b""] * 65536), 65536) for _ in range(40)]
    writes = [MoveToDeadLetter(transient, 1, dead), *many, SetCursor(transient, "n", 5)]
    store.log.submit_many(writes)
    assert held.asked.wait(20)
    assert store.log.topic(transient).last < 1 << 20
    held.go_on.set()
    store.wait(writes)
    assert [write.error for write in writes] == [None] * len(writes)
    assert [write.first for write in many] == [2 + 65536 * i for i in range(40)]
    assert 1 in store.log.ack_set(transient)
    store.wait_grown(transient, 1 + 65536 * 40)


def test_a_transient_topic_without_ids_raises(store: Opened, monkeypatch) -> None:
    topic = store.make("t", persistence="transient")
    environment = store.log._writers["strong"].environment
    begin = environment.begin
    error = OSError(errno.EIO, "it failed")
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), [error]))
    large = Append(topic, blocks.encode([b""] * 2_000_000), 2_000_000)
    store.try_(large, SetCursor(topic, "n", 0))
    assert isinstance(large.error, StoreFailed)
    assert store.log.cursors(topic) == {"n": 0}


def test_lmdb_read_errors_are_reported_as_damage_only_by_verify(again: Again, directory: Path, monkeypatch) -> None:
    log = again()
    topic = log.make("t")
    for _ in range(3):
        log.append(topic, bytes(300_000))
    block_at = reader.block_at

    def fails(transaction, key, value):
        found = block_at(transaction, key, value)
        if found[0] == 2:
            raise lmdb.CorruptedError("a page is damaged")
        return found

    monkeypatch.setattr(reader, "block_at", fails)
    with pytest.raises(StoreError) as raised:
        log.read(topic)
    assert not isinstance(raised.value, DamagedError)
    assert log.log.stats().damaged == []
    log.log.close()
    with Inspector(directory) as offline:
        records, _, found = offline.check(offline.find("t"))
        assert (records, [(one.first, one.last) for one in found]) == (1, [(2, 3)])
        found = list(offline.messages(offline.find("t")))
        assert [getattr(one, "id", None) or (one.first, one.last) for one in found] == [1, (2, 3)]


def test_a_file_that_lmdb_left_short_is_extended(again: Again, directory: Path) -> None:
    log = again()
    log.append(log.make("t"), b"a")
    log.log.close()
    path = directory / "strong" / "data.mdb"
    size = path.stat().st_size
    os.truncate(path, size - 4096)
    with path.open("r+b") as file:
        data_file.extend_to_last_page(file.fileno())
        assert path.stat().st_size == size
        data_file.extend_to_last_page(file.fileno())
    assert path.stat().st_size == size
    assert data_file.read_meta(path) is not None


@pytest.mark.parametrize("persistence", ["strong", "weak", "transient"])
def test_a_topic_may_be_deleted_in_the_commit_that_creates_it(store: Opened, persistence: str) -> None:
    writes = [MakeTopic("t", "broadcast", persistence), DeleteTopic(1), MakeTopic("u", "broadcast", persistence)]
    store.try_(*writes)
    assert [write.error for write in writes] == [None] * 3
    assert [topic.name for topic in store.log.topics()] == ["u"]
