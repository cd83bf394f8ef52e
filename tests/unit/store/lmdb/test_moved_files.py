"""A store whose files are moved, removed or replaced while it is open."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from omq._core import blocks
from omq.store.errors import StoreFailed
from omq.store.interface import Append
from tests.support.open_store import TIMEOUT, Opened


def removed(directory: Path) -> None:
    shutil.rmtree(directory)


def moved(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def replaced(directory: Path) -> None:
    """As a copy is put back by a program that knows nothing of who has the file open."""
    for file in directory.glob("*/data.mdb"):
        shutil.copy(file, file.with_name("copy"))
        file.with_name("copy").replace(file)


def begun_anew(directory: Path) -> None:
    shutil.rmtree(directory)
    with Opened.on_disk(directory) as other:
        other.append(other.make("t"), b"theirs")


WAYS = [removed, moved, replaced, begun_anew]


@pytest.mark.parametrize("displace", WAYS)
def test_nothing_is_acknowledged_that_nobody_will_find(directory: Path, displace: Callable[[Path], None]) -> None:
    with Opened.on_disk(directory, flush_interval=1000) as store:
        topic = store.make("t")
        store.append(topic, b"a")
        displace(directory)
        with pytest.raises(StoreFailed):
            store.append(topic, b"b")
        assert "moved, removed or replaced" in str(store.log.broken)
        assert store.read(topic) == [(1, b"a")]
        assert store.log.stats().file_bytes > 0


@pytest.mark.parametrize("displace", WAYS)
def test_also_where_nobody_writes_that_is_seen(directory: Path, displace: Callable[[Path], None]) -> None:
    with Opened.on_disk(directory, flush_interval=1000) as store:
        store.make("t")
        displace(directory)
        store.log._tick(hour=False)
        assert "moved, removed or replaced" in str(store.log.broken)


def test_a_lock_that_is_removed_locks_nobody_out(store: Opened, directory: Path) -> None:
    (directory / "lock").unlink()
    store.log._tick(hour=False)
    assert "lock" in str(store.log.broken)


@pytest.mark.parametrize("persistence", ["strong", "weak"])
def test_a_store_that_another_has_begun_anew_ends_and_leaves_it_alone(directory: Path, persistence: str) -> None:
    store = Opened.on_disk(directory, flush_interval=1000)
    topic = store.make("t", persistence=persistence)
    shutil.rmtree(directory)
    with Opened.on_disk(directory) as other:
        theirs = other.make("t", persistence=persistence)
        for body in (b"1", b"2", b"3"):
            other.append(theirs, body)
        write = Append(topic, blocks.encode([b"ours"]), 1)
        store.log.submit(write)
        ending = threading.Thread(target=store.log.close, daemon=True)
        ending.start()
        ending.join(TIMEOUT)
        assert not ending.is_alive()
        assert store.log.broken is not None
        other.append(theirs, b"4")
    with Opened.on_disk(directory) as other:
        assert other.log.findings == []
        assert [body for _, body in other.read(theirs)] == [b"1", b"2", b"3", b"4"]


def test_pages_that_lmdb_does_not_read_are_not_looked_for_without_end(store: Opened, monkeypatch) -> None:
    topic = store.make("t", persistence="weak")
    monkeypatch.setattr(store.log._weak, "metas", lambda: [None, None])
    store.append(topic, b"a")
    store.log._flusher.flush()
    assert "meta pages" in str(store.log.broken)


def test_the_same_file_by_another_name_goes_on(directory: Path) -> None:
    directory.mkdir()
    link = directory.with_name("link")
    link.symlink_to(directory.name)
    with Opened.on_disk(link) as store:
        topic = store.make("t")
        directory.rename(directory.with_name("elsewhere"))
        link.unlink()
        link.symlink_to("elsewhere")
        assert store.append(topic, b"a").first == 1
        assert store.append(topic, b"b").first == 2
    with Opened.on_disk(link) as store:
        assert store.read(topic) == [(1, b"a"), (2, b"b")]
