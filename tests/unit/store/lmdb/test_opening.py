"""Checks and findings when a store on disk is opened."""

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from omq._core import blocks
from omq.store.errors import DamagedError, StoreError, StoreLocked
from omq.store.interface import Append, MakeTopic
from omq.store.lmdb import store_directory
from omq.store.lmdb.inspector import Inspector
from omq.store.lmdb.store import LmdbStore
from tests.support.fork_server import run
from tests.support.open_store import Opened
from tests.support.waits import until

Again = Callable[..., Opened]


def test_a_second_opener_is_refused(again: Again, directory: Path) -> None:
    again()
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        LmdbStore(directory, notify=print)
    code = "import sys; from omq.store.lmdb.store import LmdbStore; LmdbStore(sys.argv[1], notify=print)"
    other = run("-c", code, directory)
    assert "StoreLocked" in other.stderr


def test_a_directory_of_something_else_is_refused(directory: Path) -> None:
    directory.mkdir()
    (directory / "format").write_text("something else")
    with pytest.raises(DamagedError, match="format"):
        LmdbStore(directory, notify=print)
    (directory / "format").write_text('{"omq-store": 99, "id": "x"}')
    with pytest.raises(StoreError, match="version 99"):
        LmdbStore(directory, notify=print)


def kind_of(directory: Path) -> str | None:
    kind: str | None = json.loads((directory / "format").read_bytes()).get("kind")
    return kind


def test_a_directory_of_another_program_is_refused(directory: Path) -> None:
    with LmdbStore(directory, notify=print, kind="broker") as store:
        id = store.id
    before = sorted(path.name for path in directory.iterdir())
    with pytest.raises(StoreError, match=r"store is a directory of `omq broker`, and `omq pzq` cannot open it: give"):
        LmdbStore(directory, notify=print, kind="pzq")
    assert sorted(path.name for path in directory.iterdir()) == before
    with LmdbStore(directory, notify=print, kind="broker") as store:
        assert store.id == id
    with LmdbStore(directory, notify=print) as store:  # as tests and tools do
        assert store.id == id
    assert kind_of(directory) == "broker"


def test_a_directory_without_a_kind_gets_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LmdbStore(directory, notify=print) as store:
        id = store.id
    assert kind_of(directory) is None
    with monkeypatch.context() as patched:
        patched.setattr(store_directory.Format, "write", full)
        with LmdbStore(directory, notify=print, kind="pzq") as store:
            assert store.id == id
    assert kind_of(directory) is None
    with LmdbStore(directory, notify=print, kind="pzq") as store:
        assert store.id == id
    assert kind_of(directory) == "pzq"
    with Inspector(directory) as offline:
        assert offline.id == id


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


KILLED = """
import os, signal, sys
from omq._core import blocks
from omq.store.interface import Append, MakeTopic
from tests.support.open_store import Opened
from tests.support.waits import until
log = Opened.on_disk(sys.argv[1])
for kind in ("strong", "weak", "async"):
    topic = log.make(kind, persistence=kind)
    log.append(topic, b"a", b"b")
    log.wait_grown(topic, 2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(directory: Path) -> None:
    """A store whose process was killed."""
    died = run("-c", KILLED, directory)
    assert died.returncode == -signal.SIGKILL


def test_nothing_is_lost_by_a_kill(again: Again, directory: Path) -> None:
    killed(directory)
    log = again()
    assert log.log.findings == ["the store was not shut down cleanly"]
    for topic, kind in ((1, "strong"), (2, "weak"), (3, "async")):
        assert log.read(topic) == [(1, b"a"), (2, b"b")]
        assert (log.append(topic, b"c").first == 3) == (kind != "async")  # further ids may have been assigned


def test_after_a_power_loss_weak_topics_have_the_last_synced_state(again: Again, directory: Path, monkeypatch) -> None:
    killed(directory)
    monkeypatch.setattr(store_directory.StoreDirectory, "_boot", lambda self: "another")
    log = again()
    assert "the state of the last sync" in log.log.findings[1]
    assert log.read(1) == [(1, b"a"), (2, b"b")]
    for topic in (2, 3):
        assert log.read(topic) in ([], [(1, b"a"), (2, b"b")])
        appended = log.append(topic, b"c").first
        assert appended > 3
        log.wait_grown(topic, appended)  # an async append is answered before it can be read
        assert log.read(topic)[-1][1] == b"c"
    log = again()
    assert log.log.findings == []
    assert [log.read(topic)[-1][1] for topic in (1, 2, 3)] == [b"b", b"c", b"c"]


def test_many_topics_are_opened_quickly(again: Again) -> None:
    log = again()
    writes = [MakeTopic(f"t{i}", "broadcast", "strong") for i in range(500)]
    log.try_(*writes)
    log.try_(*[Append(write.topic_id, blocks.encode([b"x"] * 50), 50) for write in writes])
    began = time.monotonic()
    log = again()
    assert time.monotonic() - began < 5
    assert len(log.log.topics()) == 500


def test_a_weak_topic_without_files_starts_over_without_repeating_ids(again: Again, directory: Path) -> None:
    log = again()
    strong, weak = log.make("t"), log.make("u", persistence="weak")
    log.append(strong, b"a")
    last = log.append(weak, b"b", b"c").first + 1
    log.log.close()
    shutil.rmtree(directory / "weak")
    log = again()
    assert "weak and async topics start over" in log.log.findings[0]
    assert log.read(strong) == [(1, b"a")]
    assert log.append(weak, b"d").first > last


def test_without_the_catalog_nothing_is_opened(again: Again, directory: Path) -> None:
    log = again()
    log.append(log.make("u", persistence="weak"), b"b")
    log.log.close()
    (directory / "strong").rename(directory / "aside")
    with pytest.raises(DamagedError, match="is missing"):
        LmdbStore(directory, notify=print)
    (directory / "aside").rename(directory / "strong")
    assert again().log.findings == []


@pytest.mark.parametrize("name", ["strong", "weak"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_lost_data_file_is_not_taken_for_an_empty_store(
    again: Again, directory: Path, name: str, empty: bool
) -> None:
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
            LmdbStore(directory, notify=print)
        assert path.exists() == empty
    path.write_bytes(kept)
    assert again().log.findings == []


def test_a_store_whose_first_opening_failed_is_created(again: Again, directory: Path) -> None:
    directory.mkdir()
    store_directory.StoreDirectory(directory).release()
    (directory / "strong").mkdir()
    (directory / "strong" / "data.mdb").touch()
    assert again().make("t") == 1


@pytest.mark.parametrize("kind", ["in place", "once there is space"])
def test_a_kill_after_a_start_without_space_is_not_taken_for_a_power_loss(
    again: Again, directory: Path, monkeypatch, kind: str
) -> None:
    log = again()
    topic = log.make("t", persistence="weak")
    log.append(topic, b"a")
    log.log.close()
    with monkeypatch.context() as full:

        def no_space(path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(store_directory, "write_durably", no_space)
        if kind != "in place":
            full.setattr(store_directory, "overwrite", lambda path, data: False)
        log = again(flush_interval=1000.0)
        log.append(topic, b"b")
        assert (directory / "session").exists() == (kind == "in place")
    until((directory / "session").exists)
    # A kill would leave the files as they are now.
    left = directory.with_name("left")
    shutil.copytree(directory, left)
    with Opened.on_disk(left) as log:
        assert log.log.findings == ["the store was not shut down cleanly"]
        assert log.read(topic) == [(1, b"a"), (2, b"b")]


def test_a_file_is_overwritten_in_its_space(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert not store_directory.overwrite(path, b"{}")
    path.write_bytes(b'{"a": 1}')
    for data in (b'{"a": 2, "b": 3}', b"{}", b" " * 4094 + b"{}"):
        assert store_directory.overwrite(path, data)
        assert path.read_bytes().strip() == data.strip()
    assert not store_directory.overwrite(path, b" " * 4095 + b"{}")
    assert path.stat().st_size == 4096
