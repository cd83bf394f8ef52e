"""The write-ahead log: appends that are logged, answered, and committed later."""

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from omq._core import blocks
from omq.store.errors import OutOfSpace, StoreError, StoreFailed
from omq.store.interface import Acknowledge, Append, DeleteTopic
from omq.store.lmdb import applier, store_directory, wal
from omq.store.lmdb.inspector import Inspector
from omq.store.lmdb.wal import MAX_FILE_BYTES, MAX_WRITE_BYTES, MAX_WRITES
from tests.support.fork_server import run
from tests.support.lmdb_faults import Failing, NoRoom
from tests.support.open_store import TIMEOUT_S, Opened

Again = Callable[..., Opened]
IDLE = 1000.0  # seconds between syncs, so that only the test causes commits


def note(log: Opened, topic: int, *bodies: bytes, producer: bytes = b"", sequence: int = 0) -> Append:
    """Appends through the write-ahead log."""
    write = Append(topic, blocks.encode(bodies), len(bodies), producer, sequence)
    until = time.monotonic() + TIMEOUT_S
    while not log.log.write_at_once([write], allow_wal=True):  # a write of the store itself is in progress
        assert time.monotonic() < until
        time.sleep(0)
    log.wait([write])
    if write.error is not None:
        raise write.error
    return write


@pytest.fixture
def died(directory: Path) -> Iterator[Callable[..., Opened]]:
    """Opens the files that a process killed now would leave."""
    opened: list[Opened] = []

    def open_copy(**options: object) -> Opened:
        copy = directory.with_name(f"copy {len(opened)}")
        shutil.copytree(directory, copy)
        opened.append(Opened.on_disk(copy, **options))
        return opened[-1]

    yield open_copy
    for one in opened:
        one.log.close()


def test_a_logged_append_is_acknowledged_and_then_committed(again: Again) -> None:
    log = again(flush_interval=IDLE)
    topic = log.make("t", persistence="weak")
    commits = log.log.stats().commits
    assert [note(log, topic, b"a", b"b").first, note(log, topic, b"c").first] == [1, 3]
    assert (log.read(topic), log.log.stats().commits) == ([], commits)
    log.log.catch_up()
    assert log.grown == {topic: 3}
    assert log.read(topic) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert log.log.stats().commits == commits + 1
    log.log.catch_up()  # the log is empty
    assert log.log.stats().commits == commits + 1


def test_later_writes_follow_logged_appends(again: Again) -> None:
    log = again(flush_interval=IDLE)
    topic, jobs = log.make("t", persistence="weak"), log.make("jobs", "round_robin", "weak")
    note(log, jobs, b"1")
    note(log, topic, b"a")
    log.do(Acknowledge(jobs, [(1, 1)], 1))
    assert log.append(topic, b"b").first == 2
    assert log.read(topic) == [(1, b"a"), (2, b"b")]
    assert 1 in log.log.ack_set(jobs)
    note(log, topic, b"c")
    log = again()
    assert log.log.findings == []
    assert log.read(topic)[2:] == [(3, b"c")]


def test_logged_appends_are_committed_before_a_sync(again: Again) -> None:
    log = again(flush_interval=0.02)
    topic = log.make("t", persistence="weak")
    note(log, topic, b"a")
    log.wait_grown(topic, 1)


@pytest.mark.parametrize("persistence", ["weak", "async"])
def test_logged_appends_of_a_killed_process_are_replayed(again: Again, died: Again, persistence: str) -> None:
    log = again(flush_interval=IDLE)
    topic, gone = log.make("t", persistence=persistence), log.make("gone", persistence="weak")
    log.append(topic, b"0", producer=b"p", sequence=1)
    note(log, gone, b"of a topic that is deleted")
    log.do(DeleteTopic(gone))
    first_ids = [note(log, topic, b"%d" % i, producer=b"p", sequence=i + 1).first for i in range(1, 6)]
    left = died()
    assert left.log.findings == ["the store was not shut down cleanly"]
    assert left.read(topic) == list(zip(range(1, 7), (b"%d" % i for i in range(6)), strict=True))
    repeated = [left.append(topic, b"%d" % i, producer=b"p", sequence=i + 1) for i in range(1, 6)]
    assert [write.first for write in repeated] == first_ids
    assert all(write.duplicate for write in repeated)
    # The log of the killed process is replayed only once, and the next log works.
    log.log.catch_up()
    note(log, topic, b"6")
    left = died()
    assert [body for _, body in left.read(topic)] == [b"%d" % i for i in range(7)]


KILLED = """
import os, signal, sys
from omq._core import blocks
from omq.store.interface import Append
from tests.support.open_store import Opened
log = Opened.on_disk(sys.argv[1], flush_interval=1000.0)
topic = log.make("t", persistence="weak")
for i in range(70):
    assert log.log.write_at_once([Append(topic, blocks.encode([b"%d" % i]), 1)], allow_wal=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_one(directory: Path) -> None:
    """Returns a store whose process has logged 70 messages and was killed."""
    killed = run("-c", KILLED, directory)
    assert killed.returncode == -signal.SIGKILL


def test_a_kill_loses_no_logged_append(again: Again, directory: Path) -> None:
    kill_one(directory)
    with Inspector(directory) as offline:
        topic = offline.find("t")
        assert offline.check(topic)[0] == 70
        assert [message.body for message in offline.messages(topic, 60)] == [b"%d" % i for i in range(59, 70)]
        assert [message.id for message in offline.messages(topic, 66, 69)] == [66, 67, 68]
    log = again()
    assert log.read(1) == [(i + 1, b"%d" % i) for i in range(70)]
    assert note(log, 1, b"more").first == 71


@pytest.mark.parametrize("kind", ["directory", "loop", "fifo"])
def test_a_log_that_cannot_be_read_is_not_ignored(again: Again, directory: Path, kind: str) -> None:
    kill_one(directory)
    place, kept = directory / "weak" / "notes", directory / "kept"
    place.rename(kept)
    {"directory": place.mkdir, "loop": lambda: place.symlink_to(place), "fifo": lambda: os.mkfifo(place)}[kind]()
    with pytest.raises(StoreError, match=r"weak/notes: .* acknowledged messages that are nowhere else"):
        Inspector(directory)
    with pytest.raises(StoreError, match=r"weak/notes: .* remove it to continue without these messages"):
        again()
    place.rmdir() if kind == "directory" else place.unlink()
    kept.rename(place)
    log = again()
    assert log.log.findings == ["the store was not shut down cleanly"]
    assert len(log.read(1)) == 70


def test_logged_appends_keep_their_timestamps(again: Again, died: Again, monkeypatch) -> None:
    log = again(flush_interval=IDLE)
    topic = log.make("t", persistence="weak")
    monkeypatch.setattr(applier, "wall", lambda: 1_000_000)
    note(log, topic, b"a")
    monkeypatch.setattr(applier, "wall", lambda: 9_000_000)
    assert log.append(topic, b"b").timestamp == 1_000_000  # the same transaction
    note(log, topic, b"c")
    monkeypatch.setattr(applier, "wall", lambda: 20_000_000)
    left = died()
    left.append(topic, b"d")
    with left.log.read(topic) as reader:
        read = [blocks.decode(header, records, "t") for header, records in reader.blocks(1)]
    assert [message.timestamp for block in read for message in block] == [1, 1, 9, 20]


def test_a_power_loss_takes_unsynced_appends(again: Again, directory: Path, monkeypatch) -> None:
    kill_one(directory)
    monkeypatch.setattr(store_directory.StoreDirectory, "_boot", lambda self: "another")
    log = again()
    assert "the state of the last sync" in log.log.findings[1]
    (topic,) = log.log.topics()
    assert log.read(topic.id) == []
    assert note(log, topic.id, b"new").first > 70  # no id is assigned twice


@pytest.mark.parametrize("kept", ["until there is room", "until the end"])
def test_logged_appends_without_space_are_kept(again: Again, died: Again, monkeypatch, caplog, kept: str) -> None:
    log = again(flush_interval=IDLE)
    topic = log.make("t", persistence="weak")
    log.append(topic, b"1")
    room = NoRoom(log.log._writers["weak"].environment, monkeypatch)
    room.full.set()
    assert note(log, topic, b"2").first == 2
    log.log.catch_up()
    assert log.log.full
    assert "no space for 1 acknowledged writes" in caplog.text
    with pytest.raises(OutOfSpace):
        log.append(topic, b"no")
    assert not log.log.write_at_once([Append(topic, blocks.encode([b"no"]), 1)], allow_wal=True)
    assert died().read(topic) == [(1, b"1"), (2, b"2")]
    if kept == "until there is room":
        room.full.clear()
        log.wait_grown(topic, 2)
        assert log.append(topic, b"3").first == 3
        log = died()
    else:
        log = again()
        log.append(topic, b"3")
    assert log.read(topic) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert "lost" not in caplog.text


def test_logged_appends_that_cannot_be_committed_are_replayed_after_reopening(again: Again, monkeypatch) -> None:
    log = again(flush_interval=IDLE)
    topic = log.make("t", persistence="weak")
    note(log, topic, b"1")
    environment = log.log._writers["weak"].environment
    begin = environment.begin
    broken = lmdb.DiskError("mdb_txn_commit: Input/output error")
    broken.code = errno.EIO
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), [broken]))
    monkeypatch.setattr(environment, "is_full", lambda: False)
    log.log.catch_up()
    assert log.log.broken is not None
    with pytest.raises(StoreFailed):
        note(log, topic, b"no")
    log = again()
    assert log.read(topic) == [(1, b"1")]
    assert log.append(topic, b"2").first == 2


def test_appends_that_cannot_be_logged_are_committed_at_once(again: Again, directory: Path, monkeypatch) -> None:
    log = again(flush_interval=IDLE)
    topic, limited = log.make("t", persistence="weak"), log.make("limited", persistence="weak")

    def last_of(*bodies: bytes, to: int = topic, producer: bytes = b"", sequence: int = 0) -> int:
        note(log, to, *bodies, producer=producer, sequence=sequence)
        return log.log.topic(to).last  # the committed last id

    assert last_of(b"noted") == 0
    assert last_of(bytes(MAX_WRITE_BYTES)) == 2
    assert last_of(b"unknown", producer=b"p", sequence=5) == 3
    assert last_of(b"known", producer=b"p", sequence=6) == 3
    assert last_of(b"known again", producer=b"p", sequence=6) == 4
    assert last_of(b"before", producer=b"p", sequence=4) == 5
    for i in range(MAX_WRITES):
        assert last_of(b"%d" % i) == 5
    assert last_of(b"one more") == 6 + MAX_WRITES
    size = MAX_FILE_BYTES // 20
    while (last := last_of(bytes(size))) == 6 + MAX_WRITES:
        assert len(log.done) < 2 * MAX_WRITES + 20
    assert last > 6 + MAX_WRITES + 15
    for one in log.log._writers["weak"].applier.topics.values():
        one.reserved = one.last + 10
    assert last_of(b"ids", to=limited) == 1
    with monkeypatch.context() as patched:
        patched.setattr(wal.os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        last = log.log.topic(topic).last
        assert last_of(b"no room for notes") == last + 1
        patched.setattr(wal.os, "pwrite", lambda file, data, at: len(data) - 1)
        assert last_of(b"room for a part") == last + 2


def test_the_leading_appends_of_a_group_are_logged(again: Again) -> None:
    log = again(flush_interval=IDLE)
    topic = log.make("t", persistence="weak")
    writes = [Append(topic, blocks.encode([body]), 1) for body in (b"1", bytes(MAX_WRITE_BYTES), b"3")]
    assert log.log.write_at_once(writes, allow_wal=True)
    assert [write.first for write in writes] == [1, 2, 3]
    assert len(log.read(topic)) == 3


def noted(count: int) -> list[Append]:
    """Returns appends that have ids."""
    writes = [Append(7, b"record %d" % i * (i + 1), i + 1, b"producer" * (i % 2), i % 2 * 9, 3) for i in range(count)]
    for i, write in enumerate(writes):
        write.first, write.timestamp = 10 * i + 1, 1000 + i
    return writes


def seen(writes: list[Append]) -> list[tuple[object, ...]]:
    return [tuple(getattr(write, name) for name in Append.__slots__) for write in writes]


def test_a_torn_entry_is_ignored(tmp_path: Path) -> None:
    book, writes = wal.WriteAheadLog(tmp_path, "id"), noted(4)
    ends = []
    for write in writes:
        assert book.put(write)
        ends.append((tmp_path / "notes").stat().st_size)
    data = (tmp_path / "notes").read_bytes()
    for cut in range(len(data) + 1):
        whole = sum(end <= cut for end in ends)
        assert seen(wal.read(data[:cut], "id")[0]) == seen(writes[:whole])
        assert seen(wal.read(data[:cut] + bytes(100), "id")[0]) == seen(writes[:whole])
    for at in range(len(data)):
        spoilt = data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]
        whole = sum(end <= at for end in ends)
        assert seen(wal.read(spoilt, "id")[0]) == seen(writes[:whole])


def test_entries_of_another_store_are_ignored(tmp_path: Path) -> None:
    book = wal.WriteAheadLog(tmp_path, "one")
    assert book.put(noted(1)[0])
    assert wal.WriteAheadLog(tmp_path, "another").replay() == []
    assert len(wal.WriteAheadLog(tmp_path, "one").replay()) == 1


def test_entries_of_earlier_rounds_are_ignored(tmp_path: Path) -> None:
    book, writes = wal.WriteAheadLog(tmp_path, "id"), noted(4)
    for write in writes:
        assert book.put(write)
    assert book.take()
    book.clear()
    assert wal.WriteAheadLog(tmp_path, "id").replay() == []
    # The new entry has the length of the first old one, so that the second old one follows it.
    assert book.put(writes[0])
    assert seen(wal.WriteAheadLog(tmp_path, "id").replay()) == seen(writes[:1])
    other = wal.WriteAheadLog(tmp_path, "id")
    other.replay()
    assert other.put(writes[3])
    assert seen(wal.WriteAheadLog(tmp_path, "id").replay()) == seen([writes[0], writes[3]])
    other.clear()
    book.close()
    other.close()
    assert os.path.getsize(tmp_path / "notes") < MAX_FILE_BYTES
