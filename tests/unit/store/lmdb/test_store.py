"""The store on disk: what is there when it is opened again, and what it does beside its topics."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from omq._core import blocks
from omq.store import clock, interface
from omq.store.errors import DamagedError, StageError, StagesFull, StoreError, StoreFailed, StoreFull, StoreLocked
from omq.store.interface import (
    BLOCK_SIZE,
    AbortStage,
    Append,
    CommitStages,
    DeleteTopic,
    MakeTopic,
    MoveToDeadLetter,
    SetPosition,
    Settle,
    Stage,
    Trim,
)
from omq.store.internal import Clean, Sweep
from omq.store.lmdb import data_file, producers, reader, session
from omq.store.lmdb.offline import Offline
from omq.store.lmdb.store import Store
from tests.unit.store.opened import Opened

Again = Callable[..., Opened]


@pytest.mark.parametrize("kind", ["strong", "weak", "async"])
def test_all_is_there_when_it_is_opened_again(again: Again, kind: str) -> None:
    log = again()
    topic, jobs = log.make("t", persistence=kind, max_age=1000.5), log.make("jobs", "round_robin", kind)
    log.append(topic, b"a", b"b", producer=b"p", sequence=7)
    log.append(jobs, *[b"%d" % i for i in range(5000)])
    log.do(SetPosition(topic, "n", 1))
    log.do(Settle(jobs, [(1, 10), (20, 30), (4500, 4600)], handed=4700, deliveries={15: 3}))
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
    assert log.log.positions(topic) == {"n": 1}
    settled = log.log.settled(jobs)
    assert (settled.watermark, settled.handed, settled.deliveries) == (10, 4700, {15: 3})
    assert list(settled.missing(1, 5001)) == [(11, 19), (31, 4499), (4601, 5000)]
    commit = log.do(CommitStages(b"c", [b"stage"]))
    assert commit.published == [(b"stage", topic, 4, 1)]
    log = again()
    assert log.do(CommitStages(b"c", [b"stage"])).published == commit.published
    assert [body for _, body in log.read(topic)] == [b"a", b"b", b"c", b"s"]
    assert log.log.topic(topic).settings == {"max_age": 1000.5}


def test_a_transient_topic_begins_anew_and_gives_no_id_twice(again: Again) -> None:
    log = again()
    topic = log.make("t", persistence="transient")
    assert log.append(topic, b"a").first == 1
    log = again()
    state = log.log.topic(topic)
    assert state.last >= 1
    assert state.first == state.last + 1
    assert log.append(topic, b"b").first == state.last + 1


def test_ids_of_deleted_topics_are_not_given_again(again: Again) -> None:
    log = again()
    topic = log.make("t", persistence="weak")
    log.append(topic, b"a")
    log.do(DeleteTopic(topic))
    log = again()
    assert log.make("t", persistence="weak") == topic + 1
    assert log.log.topic(topic + 1).last == 0


def test_a_deleted_topic_gives_its_pages_back(store: Opened) -> None:
    for kind in ("strong", "weak"):
        topic = store.make(kind, persistence=kind)
        for _ in range(40):
            store.append(topic, bytes(300_000))
        size = store.log.stats().engines[kind].used_bytes
        store.do(DeleteTopic(topic))
        other = store.make(kind + "2", persistence=kind)
        store.append(other, b"")
        store.log._flusher.flush()  # until the next sync the last one's pages are kept
        for _ in range(35):
            store.append(other, bytes(300_000))
        assert store.log.stats().engines[kind].used_bytes < size * 1.3


def test_retention_gives_pages_back(store: Opened) -> None:
    topic = store.make("t", persistence="strong", max_bytes=2_000_000)
    for _ in range(100):
        store.append(topic, *[bytes(1000)] * 100)
    stats = store.log.stats().engines["strong"]
    assert store.log.topic(topic).bytes <= 2_000_000 + BLOCK_SIZE
    assert stats.used_bytes < 5_000_000


def test_old_messages_go_by_themselves(store: Opened) -> None:
    topics = [store.make(kind, persistence=kind, max_age=0.3) for kind in ("strong", "weak", "transient")]
    for topic in topics:
        store.append(topic, b"a")
    deadline = time.monotonic() + 20
    while any(store.log.topic(topic).first == 1 for topic in topics):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [store.read(topic) for topic in topics] == [[], [], []]
    assert [store.append(topic, b"b").first for topic in topics] == [2, 2, 2]


def test_a_dead_letter_goes_to_another_environment_once(again: Again) -> None:
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
            assert first + 1 in log.log.settled(topic)
            log.wait_grown(dead, moved)
            with log.log.read(dead) as reader:
                assert [bytes(records) for _, records in reader.blocks(moved)] == [record]
            with pytest.raises(StoreError):
                log.do(MoveToDeadLetter(topic, 10**9, dead))


def test_a_second_opener_is_refused(again: Again, directory: Path) -> None:
    again()
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        Store(directory, notify=print)
    code = "import sys; from omq.store.lmdb.store import Store; Store(sys.argv[1], notify=print)"
    other = subprocess.run([sys.executable, "-c", code, directory], capture_output=True, text=True, check=False)
    assert "StoreLocked" in other.stderr


def test_a_directory_of_something_else_is_refused(directory: Path) -> None:
    directory.mkdir()
    (directory / "format").write_text("something else")
    with pytest.raises(DamagedError, match="format"):
        Store(directory, notify=print)
    (directory / "format").write_text('{"omq-store": 99, "id": "x"}')
    with pytest.raises(StoreError, match="version 99"):
        Store(directory, notify=print)


KILLED = """
import os, signal, sys
from omq._core import blocks
from omq.store.interface import Append, MakeTopic
sys.path.insert(0, sys.argv[2])
from tests.unit.store.opened import Opened
log = Opened.on_disk(sys.argv[1])
for kind in ("strong", "weak", "async"):
    topic = log.make(kind, persistence=kind)
    log.append(topic, b"a", b"b")
    log.wait_grown(topic, 2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(directory: Path) -> None:
    """A store whose process was killed."""
    root = Path(__file__).parents[3]
    died = subprocess.run([sys.executable, "-c", KILLED, directory, root], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL


def test_after_a_kill_all_is_there(again: Again, directory: Path) -> None:
    killed(directory)
    log = again()
    assert log.log.findings == ["the store was not closed in order"]
    for topic, kind in ((1, "strong"), (2, "weak"), (3, "async")):
        assert log.read(topic) == [(1, b"a"), (2, b"b")]
        assert (log.append(topic, b"c").first == 3) == (kind != "async")  # others might have been given


def test_after_a_loss_of_power_weak_topics_are_as_synced(again: Again, directory: Path, monkeypatch) -> None:
    killed(directory)
    monkeypatch.setattr(session.Session, "_boot", lambda self: "another")
    log = again()
    assert "as at the last sync" in log.log.findings[1]
    assert log.read(1) == [(1, b"a"), (2, b"b")]
    for topic in (2, 3):
        assert log.read(topic) in ([], [(1, b"a"), (2, b"b")])
        appended = log.append(topic, b"c").first
        assert appended > 3
        log.wait_grown(topic, appended)  # of an async topic it is acknowledged before it can be read
        assert log.read(topic)[-1][1] == b"c"
    log = again()
    assert log.log.findings == []
    assert [log.read(topic)[-1][1] for topic in (1, 2, 3)] == [b"b", b"c", b"c"]


def test_the_map_grows(directory: Path, monkeypatch) -> None:
    monkeypatch.setattr("omq.store.lmdb.environment.LARGEST_MAP", 1 << 20)
    with Opened.on_disk(directory) as log:
        for kind in ("strong", "weak"):
            topic = log.make(kind, persistence=kind)
            for i in range(40):
                log.append(topic, bytes([i]) * 100_000)
            assert [body[0] for _, body in log.read(topic)] == list(range(40))


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


def test_many_topics_are_opened_quickly(again: Again) -> None:
    log = again()
    writes = [MakeTopic(f"t{i}", "broadcast", "strong") for i in range(500)]
    log.try_(*writes)
    log.try_(*[Append(write.topic_id, blocks.encode([b"x"] * 50), 50) for write in writes])
    began = time.monotonic()
    log = again()
    assert time.monotonic() - began < 5
    assert len(log.log.topics()) == 500


def test_a_write_that_fails_unexpectedly_harms_no_other(store: Opened, monkeypatch) -> None:
    topic = store.make("t")
    good = [Append(topic, blocks.encode([b"%d" % i]), 1) for i in range(3)]
    bad = Append(topic, None, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        len(bad.records)
    bad.records = b""
    bad.count = "many"  # type: ignore[assignment]
    store.try_(good[0], bad, good[1], Trim(topic, 0), good[2])
    assert isinstance(bad.error, StoreError)
    assert sorted(write.first for write in good) == [1, 2, 3]
    assert len(store.read(topic)) == 3


def test_without_space_appends_fail_and_the_rest_goes_on(store: Opened, monkeypatch) -> None:
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
    append, settle = Append(jobs, blocks.encode([b"c"]), 1), Settle(jobs, [(1, 1)])
    store.try_(append, settle)
    assert isinstance(append.error, StoreFull)
    assert settle.error is None
    assert 1 in store.log.settled(jobs)
    assert store.log.broken is None
    full.clear()
    assert store.append(jobs, b"c").first == 3


class NoRoom:
    """Whether the commits of an environment find space; it is to be installed with `monkeypatch`."""

    def __init__(self, environment, monkeypatch) -> None:
        self.full = full = threading.Event()
        begin = environment.begin
        error = lmdb.DiskError("mdb_txn_commit: No space left on device")
        error.code = errno.ENOSPC

        class Transaction:
            def __init__(self) -> None:
                self._real = begin()
                self._grows = False

            def __getattr__(self, name: str):
                return getattr(self._real, name)

            def put(self, key, value):
                self._grows = self._grows or key[:1] == b"b"
                return self._real.put(key, value)

            def commit(self) -> None:
                if full.is_set() and self._grows:
                    raise error
                self._real.commit()

        monkeypatch.setattr(environment, "begin", Transaction)


def test_what_was_acknowledged_early_is_written_once_there_is_space(again: Again, monkeypatch, caplog) -> None:
    store = again()
    topic, other = store.make("t", persistence="async"), store.make("other", persistence="async")
    jobs = store.make("jobs", "round_robin", "weak")
    store.append(topic, b"1")
    store.append(jobs, b"job")
    room = NoRoom(store.log._writers["weak"].environment, monkeypatch)
    room.full.set()
    # It cannot be known yet.
    early = store.append(topic, b"2", b"3", producer=b"p", sequence=1)
    assert early.first == 2
    with pytest.raises(StoreFull, match=r"the disk is full: .*written first"):
        store.append(topic, b"no")
    assert store.log.full
    with pytest.raises(StoreFull, match=r"the disk is full: .*weak/data.mdb"):
        store.append(other, b"no")
    for write in MoveToDeadLetter(jobs, 1, topic), Append(jobs, blocks.encode([b"no"]), 1):
        with pytest.raises(StoreFull):
            store.do(write)
    store.do(Settle(jobs, [(1, 1)]))
    assert store.read(topic) == [(1, b"1")]
    room.full.clear()
    store.wait_grown(topic, 3)
    assert store.append(topic, b"4").first == 4
    assert store.append(topic, b"2", b"3", producer=b"p", sequence=1).first == 2
    assert not store.log.full
    store.append(other, b"yes")
    store.wait_grown(other, 1)
    store.wait_grown(topic, 4)
    assert store.read(topic) == [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"4")]
    said = [record.levelname for record in caplog.records if "async" in record.message]
    assert said == ["ERROR", "WARNING"]
    assert again().read(topic)[-1] == (4, b"4")


def test_what_is_acknowledged_and_finds_no_space_until_the_end_is_said(again: Again, monkeypatch, caplog) -> None:
    store = again()
    topic = store.make("t", persistence="async")
    store.append(topic, b"1")
    store.wait_grown(topic, 1)
    room = NoRoom(store.log._writers["weak"].environment, monkeypatch)
    room.full.set()
    store.append(topic, b"2")
    store.log.close()
    assert "1 writes to async topics are lost" in caplog.text
    # Its id was told, and is not given again.
    store = again()
    assert store.log.findings
    assert store.read(topic) == [(1, b"1")]
    assert store.append(topic, b"3").first > 2


@pytest.mark.parametrize("kind", ["async", "weak"])
def test_what_is_tried_again_is_answered_once(store: Opened, monkeypatch, kind: str) -> None:
    topic = store.make("t", persistence=kind)
    environment = store.log._writers["weak"].environment
    begin, armed = environment.begin, [True]
    grown: list[int] = []
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), lmdb.MapFullError("small"), armed))
    monkeypatch.setattr(environment, "grow", lambda: grown.append(1))
    writes = [Append(topic, blocks.encode([b"%d" % i]), 1) for i in range(3)]
    store.log.submit_many(writes)
    store.wait(writes)
    store.wait_grown(topic, 3)
    store.do(Trim(topic, 1))
    assert grown
    assert [sum(one is write for one in store.done) for write in writes] == [1, 1, 1]


class Failing:
    """A transaction whose commit fails, the first time."""

    def __init__(self, real, error: Exception, armed: list[bool]) -> None:
        self._real = real
        self._error = error
        self._armed = armed

    def __getattr__(self, name: str):
        return getattr(self._real, name)

    def commit(self) -> None:
        if not self._armed:
            self._real.commit()
            return
        self._armed.clear()
        self._real.abort()
        raise self._error


@pytest.mark.parametrize("kind", ["strong", "weak", "transient"])
def test_a_deletion_that_fails_leaves_the_topic(store: Opened, monkeypatch, kind: str) -> None:
    topic = store.make("t", persistence=kind)
    store.append(topic, b"a")
    environment = store.log._writers["strong"].environment
    begin, armed, errors = environment.begin, [True], [lmdb.TxnFullError("too much")]
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), errors[0], armed))
    write = DeleteTopic(topic)
    store.try_(write, MakeTopic("other", "broadcast", "strong"))
    # Together they are tried again one by one.
    assert write.error is None
    armed.append(True)
    errors[0] = OSError(errno.EIO, "it failed")
    made = MakeTopic("more", "broadcast", kind)
    store.try_(made)
    assert store.log.broken is not None
    assert isinstance(made.error, StoreFailed)
    assert [state.name for state in store.log.topics()] == ["other"]


def test_what_the_catalog_has_forgotten_is_deleted_even_where_its_rows_cannot_go_yet(
    store: Opened, monkeypatch
) -> None:
    topic = store.make("t", persistence="weak")
    store.append(topic, b"a")
    writer = store.log._writers["weak"]
    delete, full, swept = writer.ledger._does[DeleteTopic], [True], threading.Event()

    def fails(write: DeleteTopic) -> None:
        if full:
            raise StoreFull("no space")
        delete(write)
        swept.set()

    for kind in (DeleteTopic, Sweep):
        monkeypatch.setitem(writer.ledger._does, kind, fails)
    assert store.do(DeleteTopic(topic)).error is None
    assert store.log.topics() == []
    other = store.make("t", persistence="weak")
    assert other != topic
    store.log._tick(hour=False)
    store.append(other, b"b")
    assert store.read(other) == [(1, b"b")]
    assert topic in writer.ledger.topics
    full.clear()
    store.log._tick(hour=False)
    assert swept.wait(30)
    assert topic not in writer.ledger.topics
    assert store.read(other) == [(1, b"b")]


def test_a_failed_commit_ends_all_writing_and_no_reading(store: Opened, monkeypatch) -> None:
    strong, weak = store.make("t"), store.make("u", persistence="weak")
    store.append(strong, b"a")
    store.append(weak, b"b")
    environment = store.log._writers["strong"].environment
    begin, armed = environment.begin, [True]
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), OSError(errno.EIO, "it failed"), armed))
    for topic in (strong, strong, weak):
        with pytest.raises(StoreFailed):
            store.append(topic, b"c")
    assert "it failed" in str(store.log.broken)
    assert store.read(strong) == [(1, b"a")]
    assert store.read(weak) == [(1, b"b")]
    assert store.log.topic(strong).last == 1


def test_whoever_fails_to_listen_stops_nothing(directory: Path, caplog) -> None:
    told = threading.Semaphore(0)

    def notify(writes) -> None:
        told.release(len(writes))
        raise RuntimeError("deaf")

    with Store(directory, notify=notify) as store:
        for _ in range(3):
            store.submit(MakeTopic("t", "broadcast", "weak"))
            assert told.acquire(timeout=20)
    assert "deaf" in caplog.text


def test_without_its_files_a_weak_topic_begins_anew_and_gives_no_id_twice(again: Again, directory: Path) -> None:
    log = again()
    strong, weak = log.make("t"), log.make("u", persistence="weak")
    log.append(strong, b"a")
    last = log.append(weak, b"b", b"c").first + 1
    log.log.close()
    shutil.rmtree(directory / "weak")
    log = again()
    assert "weak and async topics begin anew" in log.log.findings[0]
    assert log.read(strong) == [(1, b"a")]
    assert log.append(weak, b"d").first > last


def test_without_the_catalog_nothing_is_opened(again: Again, directory: Path) -> None:
    log = again()
    log.append(log.make("u", persistence="weak"), b"b")
    log.log.close()
    (directory / "strong").rename(directory / "aside")
    with pytest.raises(DamagedError, match="is missing"):
        Store(directory, notify=print)
    (directory / "aside").rename(directory / "strong")
    assert again().log.findings == []


def test_nobody_waits_for_ids_of_a_transient_topic_under_its_lock(store: Opened, monkeypatch) -> None:
    transient, dead = store.make("t", "round_robin", "transient"), store.make("dead")
    store.append(transient, b"job")
    environment = store.log._writers["strong"].environment
    begin, asked, go_on = environment.begin, threading.Event(), threading.Event()

    def held() -> Any:
        asked.set()
        assert go_on.wait(20)
        return begin()

    monkeypatch.setattr(environment, "begin", held)
    # More than was reserved: the strong writer, which allows ids, has to settle a dead letter in memory beside.
    many = [Append(transient, blocks.encode([b""] * 65536), 65536) for _ in range(40)]
    writes = [MoveToDeadLetter(transient, 1, dead), *many, SetPosition(transient, "n", 5)]
    store.log.submit_many(writes)
    assert asked.wait(20)
    assert store.log.topic(transient).last < 1 << 20
    go_on.set()
    store.wait(writes)
    assert [write.error for write in writes] == [None] * len(writes)
    assert [write.first for write in many] == [2 + 65536 * i for i in range(40)]
    assert 1 in store.log.settled(transient)
    store.wait_grown(transient, 1 + 65536 * 40)


def test_without_ids_to_give_a_transient_topic_says_so(store: Opened, monkeypatch) -> None:
    topic = store.make("t", persistence="transient")
    environment = store.log._writers["strong"].environment
    begin = environment.begin
    error = OSError(errno.EIO, "it failed")
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), error, [True]))
    large = Append(topic, blocks.encode([b""] * 2_000_000), 2_000_000)
    store.try_(large, SetPosition(topic, "n", 0))
    assert isinstance(large.error, StoreFailed)
    assert store.log.positions(topic) == {"n": 0}


def test_a_write_in_memory_looks_at_its_own_topic_alone() -> None:
    class Counted(dict[int, Any]):
        looked = 0

        def items(self) -> Any:
            Counted.looked += len(self)
            return super().items()

    with Opened.in_memory() as log:
        for i in range(100):
            log.make(f"t{i}", persistence="transient")
        log.log._engine.topics = Counted(log.log._engine.topics)
        assert log.append(1, b"x").first == 1
        assert Counted.looked == 0
        assert log.grown[1] == 1


def test_where_lmdb_cannot_read_nothing_is_called_damaged_but_by_verify(
    again: Again, directory: Path, monkeypatch
) -> None:
    log = again()
    topic = log.make("t")
    for _ in range(3):
        log.append(topic, bytes(300_000))
    block_at = reader.block_at

    def fails(transaction, key, value):
        found = block_at(transaction, key, value)
        if found[0] == 2:
            raise lmdb.CorruptedError("a page is none")
        return found

    monkeypatch.setattr(reader, "block_at", fails)
    with pytest.raises(StoreError) as raised:
        log.read(topic)
    assert not isinstance(raised.value, DamagedError)
    assert log.log.stats().damaged == []
    log.log.close()
    with Offline(directory) as offline:
        records, _, found = offline.check(offline.find("t"))
        assert (records, [(one.first, one.last) for one in found]) == (1, [(2, 3)])
        told = list(offline.messages(offline.find("t")))
        assert [getattr(one, "id", None) or (one.first, one.last) for one in told] == [1, (2, 3)]


@pytest.mark.parametrize("name", ["strong", "weak"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_data_file_that_is_lost_is_no_empty_store(again: Again, directory: Path, name: str, empty: bool) -> None:
    log = again()
    for kind in ("strong", "weak"):
        log.append(log.make(kind, persistence=kind), b"a")
    log.log.close()
    path = directory / name / "data.mdb"
    kept = path.read_bytes()
    if empty:
        path.write_bytes(b"")
    else:
        path.unlink()
    for _ in range(2):
        with pytest.raises(DamagedError, match="missing"):
            Store(directory, notify=print)
        assert path.exists() == empty
    path.write_bytes(kept)
    assert again().log.findings == []


def test_a_store_that_was_never_opened_to_the_end_is_made(again: Again, directory: Path) -> None:
    directory.mkdir()
    session.Session(directory).end()
    (directory / "strong").mkdir()
    (directory / "strong" / "data.mdb").touch()
    assert again().make("t") == 1


def test_one_write_that_cannot_be_written_costs_the_others_few_commits(store: Opened) -> None:
    topic = store.make("t")
    good = [Append(topic, blocks.encode([b"x"]), 1) for _ in range(300)]
    bad = Append(topic, b"", 1)
    bad.count = "many"  # type: ignore[assignment]
    writer = store.log._writers["strong"]
    before = writer.commits
    begin, gathered, told = writer.environment.begin, threading.Event(), threading.Event()

    def held() -> Any:
        told.set()
        assert gathered.wait(20)
        return begin()

    writer.environment.begin = held  # type: ignore[method-assign]
    first = Append(topic, blocks.encode([b"x"]), 1)
    store.log.submit(first)
    assert told.wait(20)
    writes = [*good[:150], bad, *good[150:]]
    store.log.submit_many(writes)
    gathered.set()
    store.wait([first, *writes])
    assert isinstance(bad.error, StoreError)
    assert sorted(write.first for write in good) == list(range(2, 302))
    assert writer.commits - before < 20


def test_a_limit_within_a_write_is_no_broken_disk(tmp_path: Path) -> None:
    size = lambda path: (path / "strong" / "data.mdb").stat().st_size  # noqa: E731
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with Opened.on_disk(tmp_path / "store", flush_interval=1000.0) as log:
        topic = log.make("t")
        log.append(topic, b"a")
        limit = (size(tmp_path / "store") + 4095) // 4096 * 4096 + 100_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(StoreFull):
                log.append(topic, bytes(3_000_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert log.append(topic, b"b").first == 2


def kept(log: Opened, topic: int) -> int:
    """How many messages a topic has, once what is too old was dropped."""
    log.log._tick(hour=False)
    log.do(Trim(topic, 1))
    state = log.log.topic(topic)
    return state.last - state.first + 1


@pytest.mark.parametrize("kind", ["strong", "weak", "transient"])
def test_what_is_done_to_the_time_of_the_system_makes_nothing_older(again: Again, monkeypatch, kind: str) -> None:
    year = 365 * 86_400 * 10**9
    real, off, slept = time.time_ns, [0], [0]
    monkeypatch.setattr("omq.store.clock.time.time_ns", lambda: real() + off[0])
    begun = clock.uptime()
    monkeypatch.setattr(clock, "uptime", lambda: begun + slept[0])
    monkeypatch.setattr("omq.store.memory.uptime", lambda: begun + slept[0])
    monkeypatch.setattr("omq.store.lmdb.session.uptime", lambda: begun + slept[0])
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


def test_time_in_which_the_system_was_off_makes_nothing_older(again: Again, monkeypatch) -> None:
    log = again()
    topic = log.make("t", max_age=60.0)
    log.append(topic, b"x")
    log.log.close()
    monkeypatch.setattr("omq.store.lmdb.session.uptime", lambda: clock.uptime() + 61_000_000)
    assert kept(again(), topic) == 0, "the broker was not running, the system was"
    log = again()
    log.append(topic, b"y")
    monkeypatch.setattr(session.Session, "_boot", lambda self: "another")
    monkeypatch.setattr("omq.store.clock.time.time_ns", lambda: 4 * 10**18)
    assert kept(again(), topic) == 1


@pytest.mark.parametrize(
    "kinds", [("strong", "weak"), ("weak", "strong"), ("strong", "transient"), ("transient", "weak")]
)
def test_a_stage_and_a_commit_have_one_name_in_the_whole_store(store: Opened, kinds: tuple[str, str]) -> None:
    one, two = (store.make(kind, persistence=kind) for kind in kinds)
    record = blocks.encode([b"x"])
    store.do(Stage(one, record, 1, b"s", 1))
    with pytest.raises(StageError, match="another persistence"):
        store.do(Stage(two, record, 1, b"s", 1))
    first = store.do(CommitStages(b"c", [b"s"]))
    assert first.published == [(b"s", one, 1, 1)]
    # The name of the stage is free again, that of the commit is not.
    store.do(Stage(two, record, 1, b"s", 1))
    again = store.do(CommitStages(b"c", [b"s"]))
    assert (again.published, again.repeated) == (first.published, True)
    store.do(Stage(one, record, 1, b"t", 1))
    with pytest.raises(StageError):
        store.do(CommitStages(b"d", [b"s", b"t"]))
    assert store.log.topic(two).last == 0


def test_a_stage_that_is_there_twice_is_not_committed_by_half(store: Opened, monkeypatch) -> None:
    one, two = store.make("one"), store.make("two", persistence="weak")
    for writer in store.log._writers.values():
        monkeypatch.setattr(writer.ledger, "_elsewhere", lambda key: False)
    for topic in one, two:
        store.do(Stage(topic, blocks.encode([b"x"]), 1, b"s", 1))
    monkeypatch.undo()
    with pytest.raises(StageError, match="twice"):
        store.do(CommitStages(b"c", [b"s"]))
    store.do(AbortStage(b"s"))
    assert store.do(CommitStages(b"c", [b"s"])).published == [(b"s", two, 1, 1)]


@pytest.mark.parametrize("settings", [{"max_bytes": 10_000}, {}])
def test_what_is_staged_in_memory_is_bounded(settings: dict[str, int]) -> None:
    with Opened.in_memory(max_memory=10_000) as log:
        topic = log.make("t", persistence="transient", **settings)
        record = blocks.encode([bytes(4000)])
        for stage in (b"a", b"b"):
            log.do(Stage(topic, record, 1, stage, 1))
            log.do(Stage(topic, record, 1, stage, 1))
        for stage in (b"b", b"c"):
            with pytest.raises(StagesFull, match="commit or abort"):
                log.do(Stage(topic, record, 1, stage, 2))
        log.do(AbortStage(b"a"))
        log.do(Stage(topic, record, 1, b"c", 1))
        assert log.do(CommitStages(b"c", [b"b", b"c"])).published == [(b"b", topic, 1, 1), (b"c", topic, 2, 1)]
        for stage in (b"a", b"b"):
            log.do(Stage(topic, record, 1, stage, 1))
        log.do(DeleteTopic(topic))
        assert log.log._engine._stages == {}


def rows(store: Opened, kind: bytes, environment: str = "strong") -> int:
    """How many rows of a kind there are."""
    with store.log._writers[environment].environment.read() as reading:
        return sum(bytes(key[:1]) == kind for key, _ in reading.cursor())


@pytest.mark.parametrize("kind", ["strong", "transient"])
def test_of_a_producer_that_never_says_what_it_has_so_many_answers_are_kept(
    again: Again, monkeypatch, kind: str
) -> None:
    for module in "memory", "lmdb.producers":
        monkeypatch.setattr(f"omq.store.{module}.ANSWERS", 100)
    log = again()
    topic = log.make("t", persistence=kind)
    one = blocks.encode([b"x"])
    log.try_(*[Append(topic, one, 1, b"p", i + 1) for i in range(1000)])
    assert log.append(topic, b"x", producer=b"p", sequence=950).duplicate
    if kind == "strong":
        assert 100 <= rows(log, b"d") <= 100 + producers.PRUNED
        log = again()
        log.try_(*[Append(topic, one, 1, b"p", i + 1) for i in range(1000, 1200)])
        assert 100 <= rows(log, b"d") <= 100 + producers.PRUNED
        assert log.append(topic, b"x", producer=b"p", sequence=1150).duplicate
    else:
        assert len(log.log._memory.topics[topic].producers[b"p"].answers) == 100


def test_all_that_is_old_is_forgotten_bit_by_bit(store: Opened, monkeypatch) -> None:
    monkeypatch.setattr("omq.store.lmdb.ledger.SWEPT", 50)
    monkeypatch.setattr("omq.store.lmdb.producers.KNOWN", 10)
    topic = store.make("t")
    one = blocks.encode([b"x"])
    writes: list[Any] = [Append(topic, one, 1, b"%d" % i, j + 1) for i in range(300) for j in range(3)]
    writes += [Append(topic, one, 1, b"busy", i + 1) for i in range(200)]
    store.try_(*writes)
    writer = store.log._writers["strong"]
    assert len(writer.ledger._producers._known) == 10
    assert rows(store, b"p") == 301
    now = writer.ledger._clock.now
    monkeypatch.setattr(writer.ledger._clock, "now", lambda: now() + 26 * 3_600_000_000)
    store.append(topic, b"x", producer=b"new", sequence=1)
    before = writer.commits
    writer.submit(Clean())
    deadline = time.monotonic() + 20
    while rows(store, b"p") > 1 or rows(store, b"d") > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert writer.commits - before > 10
    assert store.append(topic, b"x", producer=b"new", sequence=1).duplicate


def test_who_was_silent_for_long_is_forgotten_in_memory(monkeypatch) -> None:
    with Opened.in_memory() as log:
        topic = log.make("t", persistence="transient")
        log.append(topic, b"x", producer=b"a", sequence=1)
        now = clock.uptime()
        monkeypatch.setattr("omq.store.memory.uptime", lambda: now + interface.SILENCE * 2)
        log.append(topic, b"x", producer=b"b", sequence=1)
        known = log.log._engine.topics[topic].producers
        assert list(known) == [b"b"]
        monkeypatch.setattr("omq.store.memory.PRODUCERS", 2)
        for name in b"c", b"b", b"d":
            log.append(topic, b"x", producer=name, sequence=2)
        assert list(known) == [b"b", b"d"]


def test_the_answers_of_dead_letters_are_forgotten_with_what_is_dropped(store: Opened) -> None:
    jobs, dead = store.make("jobs", "round_robin"), store.make("dead", persistence="weak")
    for i in range(300):
        store.append(jobs, b"%d" % i)
        store.do(MoveToDeadLetter(jobs, i + 1, dead))
    assert rows(store, b"d", "weak") < 200


def test_a_file_that_lmdb_left_shorter_than_it_says_is_made_whole(again: Again, directory: Path) -> None:
    log = again()
    log.append(log.make("t"), b"a")
    log.log.close()
    path = directory / "strong" / "data.mdb"
    size = path.stat().st_size
    os.truncate(path, size - 4096)
    data_file.complete(path)
    assert path.stat().st_size == size
    data_file.complete(path)
    assert path.stat().st_size == size
    assert data_file.look(path) is not None


def test_an_async_topic_at_a_limit_of_the_process(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with Opened.on_disk(tmp_path / "store", flush_interval=0.02) as log:
        topic = log.make("t", persistence="async")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # `synced` is larger
        try:
            told = log.append(topic, b"told")
            with pytest.raises(StoreFull):
                log.append(topic, b"refused")
            log.log._flusher.flush()
            assert log.log.full
            assert log.log.broken is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        log.wait_grown(topic, told.first)
        assert log.append(topic, b"b").first == told.first + 1
        log.log._flusher.flush()
        assert log.log.broken is None
