"""Failed transactions of the store on disk, and retries."""

import errno
import threading

import lmdb
import pytest

from omq._core import blocks
from omq.store.errors import OutOfSpace, StoreError, StoreFailed
from omq.store.interface import Append, DeleteTopic, MakeTopic, Trim
from omq.store.internal import PurgeTopic
from tests.support.lmdb_faults import Failing, Held
from tests.support.open_store import Opened


def test_an_unexpected_failure_of_a_write_does_not_affect_others(store: Opened, monkeypatch) -> None:
    topic = store.make("t")
    good = [Append(topic, blocks.encode([b"%d" % i]), 1) for i in range(3)]
    bad = Append(topic, b"", 1)
    bad.producer, bad.sequence = 7, 1  # type: ignore[assignment]
    store.try_(good[0], bad, good[1], Trim(topic, 0), good[2])
    assert isinstance(bad.error, StoreError)
    assert sorted(write.first for write in good) == [1, 2, 3]
    assert len(store.read(topic)) == 3


@pytest.mark.parametrize("kind", ["async", "weak"])
def test_a_retried_write_is_answered_once(store: Opened, monkeypatch, kind: str) -> None:
    topic = store.make("t", persistence=kind)
    environment = store.log._writers["weak"].environment
    begin, errors = environment.begin, [lmdb.MapFullError("small")]
    grown: list[int] = []
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), errors))
    monkeypatch.setattr(environment, "grow", lambda: grown.append(1))
    writes = [Append(topic, blocks.encode([b"%d" % i]), 1) for i in range(3)]
    store.log.submit_many(writes)
    store.wait(writes)
    store.wait_grown(topic, 3)
    store.do(Trim(topic, 1))
    assert grown
    assert [sum(one is write for one in store.done) for write in writes] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["strong", "weak", "transient"])
def test_a_deletion_that_fails_leaves_the_topic(store: Opened, monkeypatch, kind: str) -> None:
    topic = store.make("t", persistence=kind)
    store.append(topic, b"a")
    environment = store.log._writers["strong"].environment
    begin, errors = environment.begin, [lmdb.TxnFullError("too much")]
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), errors))
    write = DeleteTopic(topic)
    store.try_(write, MakeTopic("other", "broadcast", "strong"))
    # A failed group is retried one by one.
    assert write.error is None
    errors.append(OSError(errno.EIO, "it failed"))
    made = MakeTopic("more", "broadcast", kind)
    store.try_(made)
    assert store.log.broken is not None
    assert isinstance(made.error, StoreFailed)
    assert [state.name for state in store.log.topics()] == ["other"]


def test_a_topic_is_deleted_even_if_its_rows_cannot_be_purged_yet(store: Opened, monkeypatch) -> None:
    topic = store.make("t", persistence="weak")
    store.append(topic, b"a")
    writer = store.log._writers["weak"]
    delete, full, swept = writer.applier._handlers[DeleteTopic], [True], threading.Event()

    def fails(write: DeleteTopic) -> None:
        if full:
            raise OutOfSpace("no space")
        delete(write)
        swept.set()

    for kind in (DeleteTopic, PurgeTopic):
        monkeypatch.setitem(writer.applier._handlers, kind, fails)
    assert store.do(DeleteTopic(topic)).error is None
    assert store.log.topics() == []
    other = store.make("t", persistence="weak")
    assert other != topic
    store.log._tick(hour=False)
    store.append(other, b"b")
    assert store.read(other) == [(1, b"b")]
    assert topic in writer.applier.topics
    full.clear()
    store.log._tick(hour=False)
    assert swept.wait(30)
    assert topic not in writer.applier.topics
    assert store.read(other) == [(1, b"b")]


def test_a_failed_commit_stops_writes_but_not_reads(store: Opened, monkeypatch) -> None:
    strong, weak = store.make("t"), store.make("u", persistence="weak")
    store.append(strong, b"a")
    store.append(weak, b"b")
    environment = store.log._writers["strong"].environment
    begin, errors = environment.begin, [OSError(errno.EIO, "it failed")]
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), errors))
    for topic in (strong, strong, weak):
        with pytest.raises(StoreFailed):
            store.append(topic, b"c")
    assert "it failed" in str(store.log.broken)
    assert store.read(strong) == [(1, b"a")]
    assert store.read(weak) == [(1, b"b")]
    assert store.log.topic(strong).last == 1


def test_one_bad_write_costs_few_commits(store: Opened, monkeypatch) -> None:
    topic = store.make("t")
    good = [Append(topic, blocks.encode([b"x"]), 1) for _ in range(300)]
    bad = Append(topic, b"", 1)
    bad.producer, bad.sequence = 7, 1  # type: ignore[assignment]
    writer = store.log._writers["strong"]
    before = writer.commits
    held = Held(writer.environment, monkeypatch)
    first = Append(topic, blocks.encode([b"x"]), 1)
    store.log.submit(first)
    assert held.asked.wait(20)
    writes = [*good[:150], bad, *good[150:]]
    store.log.submit_many(writes)
    held.go_on.set()
    store.wait([first, *writes])
    assert isinstance(bad.error, StoreError)
    assert sorted(write.first for write in good) == list(range(2, 302))
    assert writer.commits - before < 20


def test_a_retried_write_is_not_taken_for_a_repetition(store: Opened, monkeypatch) -> None:
    topic = store.make("t")
    writer = store.log._writers["strong"]
    no_space = lmdb.DiskError("no space")
    no_space.code = errno.ENOSPC
    # The group fails as a whole, and then its first write finds no space.
    begin, errors = writer.environment.begin, [None, lmdb.TxnFullError("too much"), no_space]
    monkeypatch.setattr(writer.environment, "begin", lambda: Failing(begin(), errors))
    held = Held(writer.environment, monkeypatch)
    first = Append(topic, blocks.encode([b"first"]), 1)
    store.log.submit(first)
    assert held.asked.wait(20)
    one, same = (Append(topic, blocks.encode([b"x"]), 1, b"p", 7) for _ in range(2))
    store.log.submit_many([one, same])
    held.go_on.set()
    store.wait([first, one, same])
    assert errors == []
    assert isinstance(one.error, OutOfSpace)
    assert (same.error, same.first, same.duplicate) == (None, 2, False)
    assert writer.duplicates == 0
    assert store.read(topic) == [(1, b"first"), (2, b"x")]
