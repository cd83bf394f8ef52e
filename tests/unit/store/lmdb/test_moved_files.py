"""A store whose files are moved, removed or replaced while it is open."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from omq._core import blocks
from omq.store.errors import StoreFailed
from omq.store.interface import Append
from tests.support.open_store import TIMEOUT_S, Opened


def removed(directory: Path) -> None:
    shutil.rmtree(directory)


def moved(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def replaced(directory: Path) -> None:
    """Replaces each data file by a copy, as a backup program may."""
    for file in directory.glob("*/data.mdb"):
        shutil.copy(file, file.with_name("copy"))
        file.with_name("copy").replace(file)


def recreated(directory: Path) -> None:
    shutil.rmtree(directory)
    with Opened.on_disk(directory) as other:
        other.append(other.make("t"), b"theirs")


WAYS = [removed, moved, replaced, recreated]


@pytest.mark.parametrize("displace", WAYS)
def test_writes_to_moved_files_are_not_acknowledged(directory: Path, displace: Callable[[Path], None]) -> None:
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
def test_moved_files_are_noticed_without_a_write(directory: Path, displace: Callable[[Path], None]) -> None:
    with Opened.on_disk(directory, flush_interval=1000) as store:
        store.make("t")
        displace(directory)
        store.log._tick(hour=False)
        assert "moved, removed or replaced" in str(store.log.broken)


def test_a_store_whose_lock_is_removed_stops(store: Opened, directory: Path) -> None:
    (directory / "lock").unlink()
    store.log._tick(hour=False)
    assert "lock" in str(store.log.broken)


@pytest.mark.parametrize("persistence", ["strong", "weak"])
def test_a_replaced_store_stops_and_leaves_the_new_files_alone(directory: Path, persistence: str) -> None:
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
        ending.join(TIMEOUT_S)
        assert not ending.is_alive()
        assert store.log.broken is not None
        other.append(theirs, b"4")
    with Opened.on_disk(directory) as other:
        assert other.log.findings == []
        assert [body for _, body in other.read(theirs)] == [b"1", b"2", b"3", b"4"]


def test_the_search_for_matching_meta_pages_is_bounded(store: Opened, monkeypatch) -> None:
    topic = store.make("t", persistence="weak")
    monkeypatch.setattr(store.log._weak, "metas", lambda: [None, None])
    store.append(topic, b"a")
    store.log._flusher.flush()
    assert "meta pages" in str(store.log.broken)


def test_a_renamed_path_to_the_same_file_is_accepted(directory: Path) -> None:
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
