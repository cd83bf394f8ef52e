"""Purging the rows of deleted topics, and deleting refused topics."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from omq._core import blocks
from omq.store.errors import DamagedError, UnknownTopic
from omq.store.interface import Acknowledge, CommitStages, DeleteTopic, SetCursor, Stage
from omq.store.lmdb import applier
from omq.store.lmdb.layout import topic_key
from omq.store.lmdb.store import LmdbStore
from tests.support.lmdb_faults import Failing, spoil
from tests.support.open_store import Opened
from tests.support.waits import until

Again = Callable[..., Opened]


def keys(log: LmdbStore, name: str) -> list[bytes]:
    """Returns the keys of an environment, except those of next ids and commits."""
    with getattr(log, f"_{name}").read() as reading:
        return [bytes(key) for key, _ in reading.cursor() if bytes(key[:1]) not in b"ihc"]


def fill(store: Opened, persistence: str) -> int:
    """Makes a topic with rows of every kind."""
    topic = store.make("t", "round_robin", persistence)
    for number in range(1, 30):
        store.append(topic, b"%d" % number, producer=b"p", sequence=number)
    store.do(Acknowledge(topic, [(2, 3)], 7, {5: 2}))
    store.do(SetCursor(topic, "n", 1))
    for stage in (b"published", b"waiting"):
        store.do(Stage(topic, blocks.encode([b"s"]), 1, stage))
    store.do(CommitStages(b"c", [b"published"]))
    return topic


@pytest.mark.parametrize("persistence", ["strong", "weak"])
def test_rows_of_a_deleted_topic_are_purged_in_steps(store: Opened, monkeypatch, persistence: str) -> None:
    monkeypatch.setattr(applier, "MAX_DELETIONS", 3)
    other = store.make("other", persistence=persistence)
    store.append(other, b"a")
    before = keys(store.log, persistence)
    topic = fill(store, persistence)
    assert len(keys(store.log, persistence)) > len(before) + 40
    writer = store.log._writers[persistence]
    commits = writer.commits
    store.do(DeleteTopic(topic))
    until(lambda: keys(store.log, persistence) == before)
    assert writer.commits > commits + 10
    assert store.read(other) == [(1, b"a")]


@pytest.mark.parametrize("persistence", ["strong", "weak"])
def test_rows_that_were_not_purged_are_purged_after_reopening(again: Again, monkeypatch, persistence: str) -> None:
    store = again()
    topic = fill(store, persistence)
    with monkeypatch.context() as held:
        held.setattr(store.log._writers[persistence].applier, "_purge", lambda left: None)
        store.do(DeleteTopic(topic))
        store.log.close()
    store = again()
    until(lambda: keys(store.log, persistence) == [])


def test_a_failed_deletion_leaves_everything(again: Again, monkeypatch) -> None:
    store = again()
    topic = fill(store, "strong")
    writer = store.log._writers["strong"]
    before = keys(store.log, "strong")
    begin, errors = writer.environment.begin, [ValueError("not this time")]
    with monkeypatch.context() as failing:
        failing.setattr(writer.environment, "begin", lambda: Failing(begin(), errors))
        write = DeleteTopic(topic)
        store.try_(write)
        assert "not this time" in str(write.error)
    store.append(topic, b"more")
    assert set(before) <= set(keys(store.log, "strong"))
    assert not writer.applier.has_deletions


@pytest.mark.parametrize(
    ("persistence", "kind"), [("strong", b"n"), ("strong", b"w"), ("weak", b"n"), ("weak", b"v"), ("transient", b"v")]
)
def test_a_refused_topic_can_be_deleted(again: Again, directory: Path, persistence: str, kind: bytes) -> None:
    store = again()
    other = store.make("other", persistence="strong")
    store.append(other, b"a")
    topic = store.make("t", "round_robin", "transient") if persistence == "transient" else fill(store, persistence)
    store.log.close()
    spoil(directory, topic_key(kind, topic))
    store = again()
    assert list(store.log.refused) == ["t"]
    with pytest.raises(DamagedError):
        store.make("t")
    store.do(DeleteTopic(store.log.refused["t"].topic_id))
    assert store.log.refused == {}
    with pytest.raises(UnknownTopic):
        store.do(DeleteTopic(topic))
    recreated = store.make("t")
    assert recreated > topic
    for name in ("strong", "weak"):
        until(lambda name=name: not [key for key in keys(store.log, name) if key[1:5] == topic.to_bytes(4, "big")])
    store = again()
    assert store.log.findings == []
    assert store.append(recreated, b"b").first == 1
    assert store.read(other) == [(1, b"a")]


def test_a_refused_topic_whose_deletion_is_not_committed_stays(again: Again, directory: Path, monkeypatch) -> None:
    store = again()
    topic = fill(store, "strong")
    before = keys(store.log, "strong")
    store.log.close()
    spoil(directory, topic_key(b"n", topic))
    store = again()
    environment = store.log._strong
    begin, errors = environment.begin, [ValueError("not this time")]
    with monkeypatch.context() as failing:
        failing.setattr(environment, "begin", lambda: Failing(begin(), errors))
        with pytest.raises(Exception, match="not this time"):
            store.do(DeleteTopic(topic))
    assert list(store.log.refused) == ["t"]
    store.make("other")
    assert set(before) <= set(keys(store.log, "strong"))


def test_no_pin_is_held_while_the_map_changes(store: Opened) -> None:
    topic = store.make("t", persistence="weak")
    store.append(topic, b"a")
    flusher = store.log._flusher
    environment = store.log._weak
    last = environment.last_transaction()
    assert flusher._synced < last
    with environment.unpinned(False):  # the commits that follow may reuse no page of the last sync
        assert flusher._pin is None
        assert flusher._synced == flusher._last_meta()[0].transaction == last
        syncing = threading.Thread(target=flusher.flush)
        syncing.start()
        assert syncing.is_alive()
    syncing.join()
    assert flusher._pin.id() == last
    environment.grow()
    assert flusher._pin.id() == last
    assert store.append(topic, b"b").first == 2
    with environment.unpinned(True):  # no commit follows: the last sync stays valid
        assert flusher._pin is None
        assert flusher._last_meta()[0].transaction == last
    assert store.read(topic) == [(1, b"a"), (2, b"b")]


def test_the_map_does_not_change_if_the_last_commits_cannot_be_synced(store: Opened, monkeypatch) -> None:
    topic = store.make("t", persistence="weak")
    store.append(topic, b"a")
    flusher = store.log._flusher
    pin, synced = flusher._pin, flusher._synced

    def fail(meta) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(flusher, "_write_meta", fail)
    with pytest.raises(OSError, match="cannot be synced"):
        store.log._weak.grow()
    assert (flusher._pin, flusher._synced, store.log.broken) == (pin, synced, None)
