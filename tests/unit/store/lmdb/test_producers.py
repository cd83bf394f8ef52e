"""The state of producers on disk, and its expiry."""

from collections.abc import Callable
from typing import Any

import pytest

from omq._core import blocks
from omq.store.interface import Append, DeleteTopic, MoveToDeadLetter
from omq.store.internal import ExpireState
from omq.store.lmdb import producers
from tests.support.open_store import Opened
from tests.support.waits import until

Again = Callable[..., Opened]


def rows(store: Opened, kind: bytes, environment: str = "strong") -> int:
    """Returns the number of rows of a kind."""
    with store.log._writers[environment].environment.read() as reading:
        return sum(bytes(key[:1]) == kind for key, _ in reading.cursor())


@pytest.mark.parametrize("kind", ["strong", "transient"])
def test_answers_of_a_producer_that_confirms_none_are_bounded(again: Again, monkeypatch, kind: str) -> None:
    for module in "memory", "lmdb.producers":
        monkeypatch.setattr(f"omq.store.{module}.MAX_ANSWERS", 100)
    log = again()
    topic = log.make("t", persistence=kind)
    one = blocks.encode([b"x"])
    log.try_(*[Append(topic, one, 1, b"p", i + 1) for i in range(1000)])
    assert log.append(topic, b"x", producer=b"p", sequence=950).duplicate
    if kind == "strong":
        assert 100 <= rows(log, b"d") <= 100 + producers.PRUNE_BATCH
        log = again()
        log.try_(*[Append(topic, one, 1, b"p", i + 1) for i in range(1000, 1200)])
        assert 100 <= rows(log, b"d") <= 100 + producers.PRUNE_BATCH
        assert log.append(topic, b"x", producer=b"p", sequence=1150).duplicate
    else:
        assert len(log.log._memory.topics[topic].producers[b"p"].answers) == 100


def test_old_state_expires_in_steps(store: Opened, monkeypatch) -> None:
    monkeypatch.setattr("omq.store.lmdb.applier.MAX_DELETIONS", 50)
    monkeypatch.setattr("omq.store.lmdb.producers.MAX_CACHED_PRODUCERS", 10)
    topic = store.make("t")
    one = blocks.encode([b"x"])
    writes: list[Any] = [Append(topic, one, 1, b"%d" % i, j + 1) for i in range(300) for j in range(3)]
    writes += [Append(topic, one, 1, b"busy", i + 1) for i in range(200)]
    store.try_(*writes)
    writer = store.log._writers["strong"]
    assert len(writer.applier._producers._cache) == 10
    assert rows(store, b"p") == 301
    now = writer.applier._clock.now
    monkeypatch.setattr(writer.applier._clock, "now", lambda: now() + 26 * 3_600_000_000)
    store.append(topic, b"x", producer=b"new", sequence=1)
    before = writer.commits
    writer.submit(ExpireState())
    until(lambda: rows(store, b"p") <= 1 and rows(store, b"d") <= 1)
    assert writer.commits - before > 10
    assert store.append(topic, b"x", producer=b"new", sequence=1).duplicate


def test_answers_of_moved_dead_letters_are_dropped_with_the_records(store: Opened) -> None:
    jobs, dead = store.make("jobs", "round_robin"), store.make("dead", persistence="weak")
    for i in range(300):
        store.append(jobs, b"%d" % i)
        store.do(MoveToDeadLetter(jobs, i + 1, dead))
    assert rows(store, b"d", "weak") < 200


@pytest.mark.parametrize("reopened", [False, True])
def test_a_sequence_below_the_lowest_outstanding_one_is_a_repetition(again: Again, reopened: bool) -> None:
    store = again()
    topic = store.make("t")
    store.append(topic, b"x", producer=b"p", sequence=5, first_outstanding=200)
    if reopened:
        store = again()
    assert store.append(topic, b"x", producer=b"p", sequence=100).duplicate


def test_producers_of_deleted_topics_do_not_count_in_a_step(store: Opened, monkeypatch) -> None:
    monkeypatch.setattr("omq.store.lmdb.applier.MAX_DELETIONS", 10)
    deleted, topic = store.make("deleted"), store.make("t")
    one = blocks.encode([b"x"])
    store.try_(*[Append(id, one, 1, b"%d" % i, 1) for id in (deleted, topic) for i in range(9)])
    writer = store.log._writers["strong"]
    now = writer.applier._clock.now
    monkeypatch.setattr(writer.applier._clock, "now", lambda: now() + 26 * 3_600_000_000)
    monkeypatch.setattr(writer.applier, "_purge", lambda left: None)
    with writer._writing:
        writer._try([DeleteTopic(deleted), step := ExpireState()])
    assert step.next_start is None
    assert (rows(store, b"p"), rows(store, b"d")) == (9, 9)
