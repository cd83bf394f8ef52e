"""Snapshots of stores, and stores that are restored from them."""

import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from omq._core import blocks
from omq.store import clock
from omq.store.errors import DamagedError, OutOfSpace, StoreError
from omq.store.interface import Acknowledge, Append, CommitStages, SetCursor, Stage, Trim
from omq.store.lmdb import snapshot, store_directory
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.inspector import Inspector
from omq.store.lmdb.snapshot import StoreCopy, restore_snapshot, take_snapshot
from omq.store.lmdb.store import LmdbStore
from omq.store.lmdb.store_directory import StoreDirectory
from tests.support import snapshot_process
from tests.support.disks import small_disk_at
from tests.support.fork_server import run
from tests.support.open_store import Opened
from tests.support.waits import until

LARGE = bytes(300_000)


def fill(store: Opened) -> None:
    """Makes topics of each kind, with acks, a cursor, a producer, a published and an unpublished stage."""
    prices = store.make("prices")
    store.append(prices, b"1", b"2", producer=b"p", sequence=7)
    store.append(prices, LARGE)
    store.do(SetCursor(prices, "reader", 2))
    weak = store.make("weak", persistence="weak")
    store.append(weak, b"a", LARGE, b"c")
    jobs = store.make("jobs", "round_robin")
    store.append(jobs, *[b"job %d" % i for i in range(10)])
    store.do(Acknowledge(jobs, [(1, 2), (5, 5)], 6))
    store.make("gone", persistence="transient")
    for name, published in ((b"open", False), (b"closed", True)):
        store.do(Stage(weak, blocks.encode([name]), 1, name, 1))
        if published:
            store.do(CommitStages(b"commit", [name]))


def content(store: Opened) -> dict[str, object]:
    """Returns everything that `fill` has stored."""
    ids = {state.name: state.id for state in store.log.topics()}
    found: dict[str, object] = {name: store.read(ids[name]) for name in ("prices", "weak", "jobs")}
    found["cursors"] = store.log.all_cursors()
    found["acks"] = list(store.log.ack_set(ids["jobs"]).missing(1, 10))
    return found


def files(directory: Path) -> dict[str, bytes]:
    """Returns the files of a directory, by their relative paths."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs `omq`, in a process of its own: LMDB opens an environment once per process."""
    return run("-c", "from omq.cli.main import main; main()", *words)


def killed_after(directory: Path, code: str) -> None:
    """Runs code with an open store `log`, and kills the process."""
    program = f"""
import os, signal, sys
from omq._core import blocks
from omq.store.interface import *
from tests.support.open_store import Opened
log = Opened.on_disk(sys.argv[1], flush_interval=3600.0)
{code}
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = run("-c", program, directory)
    assert died.returncode == -signal.SIGKILL


@pytest.fixture
def target(directory: Path) -> Path:
    return directory.with_name("snapshot")


@pytest.fixture
def restored(directory: Path) -> Path:
    return directory.with_name("restored")


@pytest.fixture
def filled(directory: Path) -> Path:
    """A stopped store."""
    with Opened.on_disk(directory, kind="broker") as store:
        fill(store)
    return directory


def test_a_stopped_store_is_copied(filled: Path, target: Path, restored: Path) -> None:
    before = files(filled)
    steps: list[tuple[int, int]] = []
    taken = take_snapshot(filled, target, kind="broker", progress=lambda *step: steps.append(step))
    assert {name: data for name, data in files(filled).items() if name[-8:] != "lock.mdb"} == {
        name: data for name, data in before.items() if name[-8:] != "lock.mdb"
    }
    assert (taken.topics, taken.findings) == (4, [])
    assert taken.size == sum((target / name / "data.mdb").stat().st_size for name in ("strong", "weak"))
    assert steps == sorted(steps)
    assert steps[-1] == (taken.size, taken.size)
    verified = command("store", "verify", target)
    assert verified.returncode == 0, verified.stdout
    assert "not shut down" not in verified.stdout
    done = restore_snapshot(target, restored, kind="broker")
    assert done.format.origin == {"store": taken.format.id, "time": taken.format.snapshot}
    with Opened.on_disk(filled, kind="broker") as old, Opened.on_disk(restored, kind="broker") as new:
        assert new.log.findings == []
        assert new.log.id == done.format.id != old.log.id == taken.format.id
        assert content(new) == content(old)
        prices = new.log.topics()[0].id
        assert new.append(prices, b"1", b"2", producer=b"p", sequence=7).duplicate
        assert new.append(prices, b"more").first == 4
        assert new.do(CommitStages(b"commit", [b"closed"])).published
    assert sorted(path.name for path in filled.parent.iterdir()) == ["restored", "snapshot", "store"]


def test_a_live_store_is_copied_while_it_is_written(directory: Path, target: Path, restored: Path) -> None:
    with Opened.on_disk(directory, kind="broker") as store:
        fill(store)
        ids = {state.name: state.id for state in store.log.topics()}
        for _ in range(20):
            for name in ("prices", "weak"):
                store.append(ids[name], LARGE)
        child = snapshot_process.start(directory, target, 0.01)
        assert child.stdout is not None
        assert child.stdout.readline() == b"copying\n"
        expected = content(store)
        written = 0
        while child.poll() is None:  # the writes would reuse pages that the snapshot needs
            store.do(Trim(ids["prices"], store.log.topic(ids["prices"]).last))
            store.append(ids["prices"], LARGE)
            store.append(ids["weak"], LARGE)
            written += 1
        assert child.communicate()[1] == b""
        assert written > 3
    verified = command("store", "verify", target)
    assert verified.returncode == 0, verified.stdout
    restore_snapshot(target, restored)
    with Opened.on_disk(restored) as copy:
        assert copy.log.findings == []
        assert content(copy) == expected


def test_a_snapshot_is_the_state_at_its_begin(directory: Path, target: Path) -> None:
    with Opened.on_disk(directory) as store:
        fill(store)
        expected = content(store)
        child = snapshot_process.start(directory, target, -1)
        assert child.stdout is not None
        assert child.stdout.readline() == b"copying\n"
        ids = {state.name: state.id for state in store.log.topics()}
        store.append(ids["prices"], b"later")
        store.do(Acknowledge(ids["jobs"], [(3, 3)], 6))
        partial = target.with_name("snapshot.partial")
        assert partial.is_dir()
        child.kill()
        child.communicate()
        assert content(store) != expected
    assert not target.exists()
    with pytest.raises(StoreError, match="not complete"):
        restore_snapshot(partial, directory.with_name("restored"))
    with pytest.raises(StoreError, match=r"snapshot.partial exists: another process makes .*snapshot, or was killed"):
        take_snapshot(directory, target)


def test_the_write_ahead_log_is_copied(directory: Path, target: Path, restored: Path) -> None:
    with Opened.on_disk(directory, flush_interval=3600.0) as store:
        weak = store.make("weak", persistence="weak")
        store.append(weak, b"1")
        assert store.log.write_at_once([Append(weak, blocks.encode([b"2", b"3"]), 2)], allow_wal=True)
        assert store.log._writers["weak"].wal.waiting
        child = snapshot_process.start(directory, target)
        assert child.communicate()[1] == b""
        assert store.log._writers["weak"].wal.waiting, "the test needs a message that is only in the log"
    done = restore_snapshot(target, restored)
    with Opened.on_disk(restored) as copy:
        assert copy.log.id == done.format.id
        assert copy.log.findings == []
        copy.wait_grown(weak, 3)
        assert copy.read(weak) == [(1, b"1"), (2, b"2"), (3, b"3")]
    verified = command("store", "verify", target)
    assert verified.returncode == 0
    assert "weak: 3 messages" in verified.stdout


def test_a_killed_store_is_copied(directory: Path, target: Path, restored: Path) -> None:
    killed_after(
        directory,
        "weak = log.make('weak', persistence='weak'); log.append(weak, b'1')\n"
        "log.log.write_at_once([Append(weak, blocks.encode([b'2']), 1)], allow_wal=True)",
    )
    assert take_snapshot(directory, target).findings == []
    restore_snapshot(target, restored)
    with Opened.on_disk(restored) as copy:
        assert copy.log.findings == []
        copy.wait_grown(1, 2)
        assert copy.read(1) == [(1, b"1"), (2, b"2")]


def test_a_store_after_a_power_loss_is_refused(directory: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_after(directory, "log.append(log.make('t'), b'1')")
    monkeypatch.setattr(StoreDirectory, "_boot", lambda self: "another")
    with pytest.raises(StoreError, match="start its program once"):
        take_snapshot(directory, target)
    assert not target.exists()


def test_the_clock_stands_still_in_a_snapshot(
    filled: Path, target: Path, restored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_snapshot(filled, target)
    restore_snapshot(target, restored)
    month = 30 * 86_400_000_000
    now = clock.uptime()
    monkeypatch.setattr(store_directory, "uptime", lambda: now + month)
    store, copy = (StoreDirectory(path, readonly=True, locked=False) for path in (filled, restored))
    assert store.clock.now() - copy.clock.now() > month // 2


def test_a_snapshot_is_not_a_store(filled: Path, target: Path, restored: Path) -> None:
    take_snapshot(filled, target, kind="broker")
    with pytest.raises(StoreError, match=rf"snapshot is a snapshot: `omq broker restore {target} DIR` makes"):
        LmdbStore(target, notify=print, kind="broker")
    with pytest.raises(StoreError, match="is a snapshot: copy its files"):
        take_snapshot(target, restored)
    with pytest.raises(StoreError, match="is not a snapshot, but a store"):
        restore_snapshot(filled, restored)
    with Inspector(target) as snapshot:
        assert snapshot.format.snapshot
    assert not restored.exists()


@pytest.mark.parametrize("name", ["weak", "strong"])
@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"x" * path.stat().st_size)],
    ids=["missing", "empty", "other"],
)
def test_a_snapshot_with_a_damaged_file_is_refused(
    filled: Path, target: Path, restored: Path, name: str, damage: Callable[[Path], object]
) -> None:
    take_snapshot(filled, target)
    damage(target / name / "data.mdb")
    with pytest.raises(DamagedError, match=f"{name}/data.mdb: damaged: it is not as it was when the snapshot"):
        restore_snapshot(target, restored)
    assert not restored.exists()


def test_a_copy_is_not_made_in_its_source(filled: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_snapshot(filled, target)
    for copy, source in ((take_snapshot, filled), (restore_snapshot, target)):
        monkeypatch.chdir(source)
        before = sorted(source.rglob("*"))
        for path in (source / "copy", source / "weak" / "copy", "copy"):
            with pytest.raises(StoreError, match=rf"copy: it is in (\.|{source}), which would be lost"):
                copy(source, path)
        with pytest.raises(StoreError, match="copy: it is in "):
            copy(".", "copy")
        assert sorted(source.rglob("*")) == before


def test_two_restored_stores_have_two_ids(filled: Path, target: Path, restored: Path) -> None:
    taken = take_snapshot(filled, target)
    other = restored.with_name("other")
    other.mkdir()
    ids = {restore_snapshot(target, path).format.id for path in (restored, other)}
    assert len(ids | {taken.format.id}) == 3
    # A store keeps its origin, and a snapshot of it has its own id.
    with Opened.on_disk(other) as store:
        assert store.log._directory.format.origin["store"] == taken.format.id
    again = take_snapshot(other, restored.with_name("again"))
    assert again.format.id in ids
    assert again.format.origin == {}


def test_another_program_is_refused(directory: Path, target: Path, restored: Path) -> None:
    with Opened.on_disk(directory, kind="pzq") as store:
        fill(store)
    with pytest.raises(StoreError, match="is a directory of `omq pzq`"):
        take_snapshot(directory, target, kind="broker")
    take_snapshot(directory, target, kind="pzq")
    with pytest.raises(StoreError, match="is a directory of `omq pzq`"):
        restore_snapshot(target, restored, kind="broker")


@pytest.mark.parametrize("kind", ["file", "full", "nowhere"])
@pytest.mark.parametrize("copy", [take_snapshot, restore_snapshot])
def test_an_existing_target_is_not_touched(
    filled: Path, target: Path, tmp_path: Path, kind: str, copy: Callable[..., StoreCopy]
) -> None:
    source = filled
    if copy is restore_snapshot:
        take_snapshot(filled, target)
        source = target
    path = tmp_path / "target"
    if kind == "file":
        path.write_text("mine")
    elif kind == "full":
        path.mkdir()
        (path / "file").write_text("mine")
    else:
        path = tmp_path / "nothing" / "target"
    before = files(tmp_path)
    texts = {"file": "not a directory", "full": "not empty", "nowhere": "no directory"}
    with pytest.raises(StoreError, match=rf"target: .*{texts[kind]}"):
        copy(source, path)
    assert files(tmp_path) == before
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")])
def test_a_failed_snapshot_leaves_nothing(filled: Path, target: Path, error: BaseException) -> None:
    def fail(copied: int, total: int) -> None:
        assert target.with_name("snapshot.partial").is_dir()
        raise error

    with pytest.raises(type(error)):
        take_snapshot(filled, target, progress=fail)
    assert [path.name for path in filled.parent.iterdir()] == ["store"]
    take_snapshot(filled, target)


def test_what_is_not_a_store_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(StoreError, match="nothing: there is no store here"):
        take_snapshot(tmp_path / "nothing", target)
    StoreDirectory(tmp_path / "empty").release()
    with pytest.raises(StoreError, match="never opened"):
        take_snapshot(tmp_path / "empty", target)
    assert not target.exists()


@pytest.mark.parametrize("name", ["strong", "weak"])
@pytest.mark.parametrize("damage", ["page", "end", "meta"])
def test_a_damaged_store_is_refused(filled: Path, target: Path, name: str, damage: str) -> None:
    path = filled / name / "data.mdb"
    data = bytearray(path.read_bytes())
    if damage == "page":
        for page in range(2 * 4096, len(data), 4096):
            data[page + 10 : page + 12] = b"\xff\xff"  # the flags of its header
    elif damage == "end":
        del data[3 * 4096 :]
    else:
        data[:8192] = bytes(8192)
    path.write_bytes(data)
    with pytest.raises(StoreError, match=rf"store/{name}"):
        take_snapshot(filled, target)
    assert [path.name for path in filled.parent.iterdir()] == ["store"]


@pytest.mark.parametrize("damage", ["page", "meta"])
def test_a_damaged_snapshot_is_refused(filled: Path, target: Path, restored: Path, damage: str) -> None:
    take_snapshot(filled, target)
    path = target / "strong" / "data.mdb"
    data = bytearray(path.read_bytes())
    if damage == "page":
        for page in range(2 * 4096, len(data), 4096):
            data[page + 10 : page + 12] = b"\xff\xff"
    else:
        data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="snapshot/strong"):
        restore_snapshot(target, restored)
    assert not restored.exists()


def test_damaged_messages_are_copied_and_reported(filled: Path, target: Path) -> None:
    path = filled / "strong" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(b"job 9", b"JOB 9"))
    assert any("ids 10 to 10 of topic 3 are damaged" in finding for finding in take_snapshot(filled, target).findings)
    assert command("store", "verify", target).returncode == 1


@pytest.fixture
def large(filled: Path) -> Path:
    """A stopped store that does not fit on the small disk."""
    with Opened.on_disk(filled) as store:
        for _ in range(5):
            store.append(store.log.topics()[0].id, LARGE)
    return filled


def test_a_full_disk_is_found_first(large: Path, tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "disk") as disk:
        with pytest.raises(OutOfSpace, match=r"the snapshot needs \d+ bytes, and the disk has \d+ free"):
            take_snapshot(large, disk / "snapshot")
        assert list(disk.iterdir()) == []


def test_a_disk_that_becomes_full_leaves_nothing(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk_at(tmp_path / "disk") as disk:
        monkeypatch.setattr(snapshot, "check_space", lambda *_: None)
        with pytest.raises(OutOfSpace, match=rf"the disk is full: {disk / 'snapshot'}"):
            take_snapshot(large, disk / "snapshot")
        assert list(disk.iterdir()) == []


def test_the_disk_of_a_live_store_keeps_free_space(
    directory: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(directory, "log.append(log.make('t'), b'1')")
    monkeypatch.setattr(snapshot, "LIVE_MARGIN_BYTES", 1 << 62)
    with pytest.raises(OutOfSpace, match="snapshot needs"):
        take_snapshot(directory, target)
    calls: list[str] = []

    def check_space(path: Path, needed: int, purpose: str) -> None:
        calls.append(purpose)
        if len(calls) == 2:
            raise OutOfSpace(purpose)

    monkeypatch.setattr(snapshot, "check_space", check_space)
    with pytest.raises(OutOfSpace, match="live store"):
        take_snapshot(directory, target)
    assert not target.exists()


@pytest.mark.parametrize("commits", [3, snapshot.MAX_PIN_TRIES])
def test_commits_between_the_two_transactions_delay_the_snapshot(
    filled: Path, target: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    left = commits
    last = Environment.last_transaction

    def with_a_commit(self: Environment) -> int:
        nonlocal left
        left -= 1
        return last(self) + (left >= 0)

    monkeypatch.setattr(Environment, "last_transaction", with_a_commit)
    monkeypatch.setattr(snapshot, "PIN_RETRY_DELAY_S", 0.0)
    if commits == 3:
        take_snapshot(filled, target)
        assert left == -1
    else:
        with pytest.raises(StoreError, match="a commit during each of 1000 attempts"):
            take_snapshot(filled, target)
        assert not target.exists()


def test_the_slots_of_a_killed_snapshot_are_freed(directory: Path, target: Path) -> None:
    with Opened.on_disk(directory) as store:
        fill(store)
        child = snapshot_process.start(directory, target, -1)
        assert child.stdout is not None
        assert child.stdout.readline() == b"copying\n"
        environments = [writer.environment for writer in store.log._writers.values()]
        table = [lambda env=env: env._lmdb.readers() for env in environments]
        assert all(str(child.pid) in readers() for readers in table)
        for environment in environments:
            environment.clear_stale_readers()
        assert all(str(child.pid) in readers() for readers in table)
        child.kill()
        child.communicate()
        until(lambda: not any(str(child.pid) in readers() for readers in table), "the next tick frees the slots")


def test_a_store_opens_correctly_while_a_snapshot_has_its_lock_table(directory: Path, target: Path) -> None:
    # The writer dies between the write of a meta page and that of the lock table, which LMDB does not reset then.
    code = """
import time
topic = log.make('t')
for number in range(30):
    log.append(topic, b'%d' % number)
from tests.support import snapshot_process
from pathlib import Path
child = snapshot_process.start(Path(sys.argv[1]), Path(sys.argv[1]).with_name("snapshot"), -1)
assert child.stdout.readline() == b"copying\\n"
Path(sys.argv[1]).with_name("child").write_text(str(child.pid))
environment = log.log._strong
transaction = environment.begin()
number = (transaction.id() - 1).to_bytes(8, "little")
with open(environment.directory / "lock.mdb", "r+b", buffering=0) as table:
    place = table.read(128).index(number)
    os.pwrite(table.fileno(), (transaction.id() - 2).to_bytes(8, "little"), place)
"""
    killed_after(directory, code)
    child = int(directory.with_name("child").read_text())
    try:
        with Opened.on_disk(directory) as store:
            assert store.log.topic(1).last == 30
            assert store.append(1, b"30").first == 31
            assert [id for id, _ in store.read(1)] == list(range(1, 32))
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_with_the_same_id_is_refused(directory: Path, target: Path) -> None:
    with Opened.on_disk(directory) as store:
        store.make("t")
        with pytest.raises(StoreError, match=f"its process has the id {os.getpid()}"):
            take_snapshot(directory, target)


def test_a_directory_that_cannot_be_written_is_refused(
    filled: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot.os, "access", lambda path, mode: False)
    with pytest.raises(StoreError, match="run the command as the user of the store"):
        take_snapshot(filled, target)
    assert not target.exists()


def test_the_file_format_of_other_versions_is_refused(filled: Path) -> None:
    path = filled / "format"
    row = json.loads(path.read_bytes())
    for version, text in ((3, "version 3, of a newer omq"), (1, "version 1, of an older omq")):
        path.write_text(json.dumps(row | {"omq-store": version}))
        with pytest.raises(StoreError, match=text):
            LmdbStore(filled, notify=print)
