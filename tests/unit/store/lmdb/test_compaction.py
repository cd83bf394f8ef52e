"""Compaction of stores: smaller files with the same content."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from omq._core import blocks
from omq.store.errors import DamagedError, OutOfSpace, StoreError, StoreLocked
from omq.store.interface import Append, DeleteTopic, SetCursor
from omq.store.lmdb import compaction
from omq.store.lmdb.compaction import compact
from omq.store.lmdb.snapshot import restore_snapshot, take_snapshot
from omq.store.lmdb.store import LmdbStore
from tests.support import snapshot_process
from tests.support.disks import small_disk_at
from tests.support.open_store import Opened

Again = Callable[..., Opened]
LARGE = bytes(300_000)
NAMES = ("strong", "weak")


@pytest.fixture
def drained(directory: Path) -> Path:
    """A stopped store with much free space."""
    with Opened.on_disk(directory) as store:
        for name in NAMES:
            kept, dropped = store.make(name, persistence=name), store.make(f"{name} dropped", persistence=name)
            store.append(kept, b"1", LARGE, producer=b"p", sequence=3)
            store.do(SetCursor(kept, "reader", 1))
            for _ in range(20):
                store.append(dropped, LARGE)
            store.do(DeleteTopic(dropped))
            store.append(kept, b"3")
    return directory


def check(store: Opened) -> None:
    """Checks that a store has what `drained` has stored, and continues."""
    assert store.log.findings == []
    assert store.log.all_cursors() == {1: {"reader": 1}, 3: {"reader": 1}}
    for topic in (1, 3):
        assert store.read(topic) == [(1, b"1"), (2, LARGE), (3, b"3")]
        assert store.append(topic, b"1", LARGE, producer=b"p", sequence=3).duplicate
        assert store.append(topic, b"4").first == 4


def sizes(directory: Path) -> dict[str, int]:
    return {name: (directory / name / "data.mdb").stat().st_size for name in NAMES}


def test_files_get_smaller(drained: Path, again: Again) -> None:
    before = sizes(drained)
    found = compact(drained)
    assert {name: size.before for name, size in found.items()} == before
    assert {name: size.after for name, size in found.items()} == sizes(drained)
    for name in NAMES:
        assert before[name] > 5_000_000
        assert sizes(drained)[name] < 1_000_000
    assert not (drained / "compact").exists()
    check(again())
    again().log.close()
    assert not compact(drained)["weak"].after > 1_000_000


def test_used_bytes_are_those_in_use(drained: Path, again: Again) -> None:
    stats = again().log.stats()
    for name in NAMES:
        assert stats.engines[name].file_bytes > 5_000_000
        assert stats.engines[name].used_bytes < 1_000_000


def test_the_state_of_the_last_sync_is_not_restored_into_the_new_file(drained: Path, again: Again) -> None:
    compact(drained)
    assert not (drained / "weak" / "synced").exists()
    check(again(flush_interval=3600.0))
    assert (drained / "weak" / "synced").exists()


@pytest.mark.parametrize("replaced", [0, 1])
def test_an_interrupted_compaction_leaves_a_good_store(
    drained: Path, again: Again, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    before = sizes(drained)
    left = replaced
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal left
        if target.name == "data.mdb":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        # As after a kill: what was written stays.
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            compact(drained)
    after = sizes(drained)
    assert [after[name] < before[name] for name in NAMES] == [replaced == 1, False]
    assert (drained / "compact").exists()
    check(again())
    again().log.close()
    compact(drained)
    assert max(sizes(drained).values()) < 1_500_000
    assert not (drained / "compact").exists()


def test_a_store_in_use_is_refused(drained: Path, again: Again) -> None:
    again()
    before = sizes(drained)
    with pytest.raises(StoreLocked, match="in use by process"):
        compact(drained)
    assert sizes(drained) == before


def test_a_store_is_not_compacted_during_a_snapshot(drained: Path) -> None:
    child = snapshot_process.start(drained, drained.with_name("snapshot"), -1)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"copying\n"
        with pytest.raises(StoreLocked, match="a snapshot of it is being taken"):
            compact(drained)
    finally:
        child.kill()
        child.communicate()
    assert compact(drained)["strong"].after < 1_000_000


def test_a_store_that_was_killed_is_refused(drained: Path, again: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    store = again()
    copy = drained.with_name("copy")
    store.append(1, b"4")
    shutil.copytree(drained, copy)
    with pytest.raises(StoreError, match="not shut down cleanly: start its program, stop it"):
        compact(copy)
    assert sizes(copy)["strong"] > 5_000_000


def test_what_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store here"):
        compact(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_store_is_refused(drained: Path) -> None:
    path = drained / "weak" / "data.mdb"
    data = bytearray(path.read_bytes())
    for page in range(2 * 4096, len(data), 4096):
        data[page + 10 : page + 12] = b"\xff\xff"
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="store/weak"):
        compact(drained)
    assert path.read_bytes() == data
    assert not (drained / "compact").exists()


def test_a_disk_without_room_is_found_first(tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "disk") as disk:
        with Opened.on_disk(disk / "store") as store:
            store.append(store.make("t"), bytes(500_000))
        before = (disk / "store" / "strong" / "data.mdb").read_bytes()
        with pytest.raises(OutOfSpace, match=r"the compacted files need \d+ bytes, and the disk has \d+ free"):
            compact(disk / "store")
        assert (disk / "store" / "strong" / "data.mdb").read_bytes() == before
        with Opened.on_disk(disk / "store") as store:
            assert store.log.findings == []


def test_rows_that_are_missing_in_the_copy_are_found(drained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sizes(drained)
    counted = compaction.Environment.entries
    monkeypatch.setattr(compaction.Environment, "entries", lambda self: counted(self) - ("compact" in self.path.parts))
    with pytest.raises(StoreError, match="rows; the store is as it was"):
        compact(drained)
    assert sizes(drained) == before


def test_a_snapshot_is_compacted(drained: Path, again: Again) -> None:
    target, restored = drained.with_name("snapshot"), drained.with_name("restored")
    before = take_snapshot(drained, target).size
    compact(target)
    assert restore_snapshot(target, restored).size < before // 5
    with Opened.on_disk(restored) as store:
        check(store)


def test_the_write_ahead_log_of_a_compacted_store_counts(drained: Path) -> None:
    with LmdbStore(drained, notify=lambda writes: None) as store:
        assert store.write_at_once([Append(3, blocks.encode([b"4"]), 1)], allow_wal=True)
    compact(drained)
    with Opened.on_disk(drained) as again:
        assert [id for id, _ in again.read(3)] == [1, 2, 3, 4]
