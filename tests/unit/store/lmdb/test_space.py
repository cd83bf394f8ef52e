"""The store on a full disk."""

import errno
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from omq._core import blocks
from omq.store.errors import OutOfSpace
from omq.store.interface import Acknowledge, Append, DeleteTopic, MoveToDeadLetter
from omq.store.lmdb.snapshot import take_snapshot
from tests.support.lmdb_faults import NoRoom
from tests.support.open_store import Opened
from tests.support.waits import until

Again = Callable[..., Opened]


def test_the_map_grows(directory: Path, monkeypatch) -> None:
    monkeypatch.setattr("omq.store.lmdb.environment.MAX_MAP_BYTES", 1 << 20)
    with Opened.on_disk(directory) as log:
        for kind in ("strong", "weak"):
            topic = log.make(kind, persistence=kind)
            for i in range(40):
                log.append(topic, bytes([i]) * 100_000)
            assert [body[0] for _, body in log.read(topic)] == list(range(40))


def test_without_space_only_appends_fail(store: Opened, monkeypatch) -> None:
    jobs = store.make("t", "round_robin")
    store.append(jobs, b"a", b"b")
    writer = store.log._writers["strong"]
    begin = writer.environment.begin
    full = threading.Event()
    full.set()

    class Full:
        def __init__(self, real):
            self._real = real
            self._puts = 0

        def __getattr__(self, name):
            return getattr(self._real, name)

        def put(self, key, value):
            if full.is_set() and key[:1] == b"b":
                error = lmdb.DiskError("no space")
                error.code = 28
                raise error
            return self._real.put(key, value)

    monkeypatch.setattr(writer.environment, "begin", lambda: Full(begin()))
    append, settle = Append(jobs, blocks.encode([b"c"]), 1), Acknowledge(jobs, [(1, 1)])
    store.try_(append, settle)
    assert isinstance(append.error, OutOfSpace)
    assert settle.error is None
    assert 1 in store.log.ack_set(jobs)
    assert store.log.broken is None
    full.clear()
    assert store.append(jobs, b"c").first == 3


def test_pending_appends_are_written_once_there_is_space(again: Again, monkeypatch, caplog) -> None:
    store = again()
    topic, other = store.make("t", persistence="async"), store.make("other", persistence="async")
    jobs = store.make("jobs", "round_robin", "weak")
    store.append(topic, b"1")
    store.append(jobs, b"job")
    room = NoRoom(store.log._writers["weak"].environment, monkeypatch)
    room.full.set()
    # The failure is not known yet.
    early = store.append(topic, b"2", b"3", producer=b"p", sequence=1)
    assert early.first == 2
    with pytest.raises(OutOfSpace, match=r"the disk is full: .*written first"):
        store.append(topic, b"no")
    assert store.log.full
    with pytest.raises(OutOfSpace, match=r"the disk is full: .*weak/data.mdb"):
        store.append(other, b"no")
    for write in MoveToDeadLetter(jobs, 1, topic), Append(jobs, blocks.encode([b"no"]), 1):
        with pytest.raises(OutOfSpace):
            store.do(write)
    store.do(Acknowledge(jobs, [(1, 1)]))
    assert store.read(topic) == [(1, b"1")]
    # The store is full until there is space, also during a retry of pending appends.
    full_states: list[bool] = []
    enough = threading.Event()

    def refused() -> None:
        full_states.append(store.log.full)
        if len(full_states) == 3:
            enough.set()

    room.refused = refused
    assert enough.wait(20)
    assert all(full_states)
    room.full.clear()
    store.wait_grown(topic, 3)
    assert store.append(topic, b"4").first == 4
    assert store.append(topic, b"2", b"3", producer=b"p", sequence=1).first == 2
    assert not store.log.full
    store.append(other, b"yes")
    store.wait_grown(other, 1)
    store.wait_grown(topic, 4)
    assert store.read(topic) == [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"4")]
    levels = [record.levelname for record in caplog.records if "acknowledged" in record.message]
    assert levels == ["ERROR", "WARNING"]
    assert again().read(topic)[-1] == (4, b"4")


def test_pending_appends_without_space_at_the_end_are_logged_as_lost(again: Again, monkeypatch, caplog) -> None:
    store = again()
    topic = store.make("t", persistence="async")
    store.append(topic, b"1")
    store.wait_grown(topic, 1)
    room = NoRoom(store.log._writers["weak"].environment, monkeypatch)
    room.full.set()
    store.append(topic, b"2")
    store.log.close()
    assert "1 acknowledged writes are lost" in caplog.text
    # Its id was in the answer, and is not assigned again.
    store = again()
    assert store.log.findings
    assert store.read(topic) == [(1, b"1")]
    assert store.append(topic, b"3").first > 2


def test_a_file_size_limit_is_not_taken_for_a_broken_disk(tmp_path: Path) -> None:
    size = lambda path: (path / "strong" / "data.mdb").stat().st_size  # noqa: E731
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with Opened.on_disk(tmp_path / "store", flush_interval=1000.0) as log:
        topic = log.make("t")
        log.append(topic, b"a")
        limit = (size(tmp_path / "store") + 4095) // 4096 * 4096 + 100_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(OutOfSpace):
                log.append(topic, bytes(3_000_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert log.append(topic, b"b").first == 2


def test_an_async_topic_at_the_file_size_limit(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with Opened.on_disk(tmp_path / "store", flush_interval=0.02) as log:
        topic = log.make("t", persistence="async")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # `synced` is larger
        try:
            for _ in range(2):
                with pytest.raises(OutOfSpace, match="larger"):
                    log.append(topic, b"refused")
            log.log._flusher.flush()
            assert log.log.full
            assert log.log.broken is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        log.wait_grown(topic, log.append(topic, b"b").first)
        assert [body for _, body in log.read(topic)] == [b"b"]
        until(lambda: not log.log.full)
        log.log._flusher.flush()
        assert log.log.broken is None


def test_deletions_on_a_full_disk_are_retried_slowly(store: Opened, monkeypatch) -> None:
    """Not even deletions find space: the writer's thread must not spin."""
    monkeypatch.setattr("omq.store.lmdb.applier.MAX_DELETIONS", 1)
    topic = store.make("t")
    for _ in range(20):
        store.append(topic, bytes(300_000))
    environment = store.log._writers["strong"].environment
    begin, full, tried = environment.begin, threading.Event(), threading.Semaphore(0)
    error = lmdb.DiskError("mdb_txn_commit: No space left on device")
    error.code = errno.ENOSPC

    class Full:
        def __init__(self) -> None:
            self._real = begin()

        def __getattr__(self, name: str):
            return getattr(self._real, name)

        def commit(self) -> None:
            if full.is_set():
                tried.release()
                raise error
            self._real.commit()
            full.set()  # after the topic's deletion, and before its rows are purged

    monkeypatch.setattr(environment, "begin", Full)
    store.try_(DeleteTopic(topic))
    assert tried.acquire(timeout=20)
    again = 0
    end = time.monotonic() + 0.5
    while tried.acquire(timeout=max(0.0, end - time.monotonic())):
        again += 1
    assert again <= 6
    monkeypatch.setattr(environment, "begin", begin)
    until(lambda: not store.log._writers["strong"].applier.has_deletions)
    with environment.read() as reading:
        assert not any(bytes(key[:1]) == b"b" for key, _ in reading.cursor())


def test_many_small_commits_cause_an_early_sync(directory: Path, monkeypatch) -> None:
    """The pin of a sync holds pages, so that each later commit takes about five new ones."""
    monkeypatch.setattr("omq.store.lmdb.flusher.MAX_UNSYNCED_COMMITS", 200)
    with Opened.on_disk(directory, flush_interval=1000.0) as log:
        topic = log.make("t", persistence="weak")
        for _ in range(2000):
            log.append(topic, bytes(100))
        assert (directory / "weak" / "data.mdb").stat().st_size < 4096 * 4000


def test_pages_freed_since_the_last_sync_are_reused_on_a_full_disk(tmp_path: Path, monkeypatch) -> None:
    syncs: list[int] = []
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with Opened.on_disk(tmp_path / "store", flush_interval=1000.0) as log:
        topic = log.make("t", persistence="weak")
        jobs = log.make("jobs", "round_robin", persistence="weak")
        log.append(jobs, *[b"job"] * 200)
        writer, sync = log.log._writers["weak"], log.log._flusher.flush
        monkeypatch.setattr(writer, "_sync", lambda: (syncs.append(writer.commits), sync()))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        try:
            for _ in range(500):  # each frees about five pages
                log.append(topic, bytes(1000))
            assert len(syncs) >= 5
            refused = None
            while refused is None:
                append = Append(topic, blocks.encode([bytes(1000)]), 1)
                log.try_(append)
                refused = append.error
                assert append.error is not None or append.first < 2000
            assert isinstance(refused, OutOfSpace)
            # On a full disk, a refused append does not always cost a sync.
            tried = len(syncs)
            began = time.monotonic()
            for _ in range(200):
                with pytest.raises(OutOfSpace):
                    log.append(topic, bytes(100_000))
            assert len(syncs) - tried <= 1 + (time.monotonic() - began)
            # Deletions sync on their own if they need pages.
            for number in range(1, 201):
                log.do(Acknowledge(jobs, [(number, number)]))
            assert log.log.broken is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        log.append(topic, b"again")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_acks_on_a_full_disk_free_space_repeatedly(tmp_path: Path, kind: str) -> None:
    """LMDB is copy-on-write, so that a full disk has space for only few deletions at a time."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with Opened.on_disk(tmp_path / "store") as log:
        jobs = log.make("jobs", "round_robin", persistence=kind)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
        try:
            stored, last = [], 0
            for _ in range(3):
                error = None
                while error is None:
                    append = Append(jobs, blocks.encode([bytes(2000)]), 1)
                    log.try_(append)
                    error = append.error
                assert isinstance(error, OutOfSpace)
                assert log.log.full
                first, last = last + 1, log.log.topic(jobs).last
                stored.append(last - first)
                log.do(Acknowledge(jobs, [(first, last)]))
                until(lambda: not log.log.full)
            assert min(stored) > stored[0] // 2 > 100, stored
            assert log.log.broken is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


class FullDisk:
    """Makes the disk of a test full: it has one page left, and no file may get more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        statvfs = os.statvfs

        def one_page_left(path: Any) -> os.statvfs_result:
            return os.statvfs_result([4096, 4096, *statvfs(path)[2:3], 1, 1, *statvfs(path)[5:]])

        def allocate(descriptor: int, offset: int, length: int) -> None:
            if os.fstat(descriptor).st_size < offset + length:
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "statvfs", one_page_left)
        monkeypatch.setattr(os, "posix_fallocate", allocate)


def test_a_new_store_on_a_full_disk_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        FullDisk(patch)
        with pytest.raises(OutOfSpace, match="new: a new store needs 1048576 bytes, and the disk has 4096 free"):
            Opened.on_disk(tmp_path / "new")
        assert list((tmp_path / "new").iterdir()) == []
    with Opened.on_disk(tmp_path / "new") as log:
        assert log.log.findings == []


def test_a_new_environment_on_a_full_disk_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Opened.on_disk(directory) as log:
        log.append(log.make("t"), b"a")
    shutil.rmtree(directory / "weak")
    with monkeypatch.context() as patch:
        FullDisk(patch)
        with pytest.raises(OutOfSpace, match="store: the new files of 'weak' need 524288 bytes"):
            Opened.on_disk(directory)
    with Opened.on_disk(directory) as log:
        assert log.read(1) == [(1, b"a")]


def test_without_space_for_a_reader_table_nothing_is_mapped(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Opened.on_disk(directory) as log:
        log.append(log.make("t"), b"a")
    for path in directory.glob("*/lock.mdb"):  # a copy of the store may lack them
        path.unlink()
    with monkeypatch.context() as patch:
        FullDisk(patch)
        with pytest.raises(OutOfSpace, match=r"the disk is full: .*lock\.mdb, which needs 16640 bytes"):
            Opened.on_disk(directory)
        with pytest.raises(OutOfSpace, match=r"the disk is full: .*lock\.mdb, which needs 16640 bytes"):
            take_snapshot(directory, directory.with_name("snapshot"))
    with Opened.on_disk(directory) as log:
        assert log.read(1) == [(1, b"a")]


def test_an_existing_store_opens_on_a_full_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Opened.on_disk(directory) as log:
        log.append(log.make("t"), b"a")
    FullDisk(monkeypatch)
    with Opened.on_disk(directory) as log:
        assert log.read(1) == [(1, b"a")]
