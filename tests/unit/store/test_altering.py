"""Other settings of a topic, in the stores on disk and in memory."""

import errno
from collections.abc import Callable

import lmdb
import pytest

from omq.store import clock
from omq.store.errors import StoreError, UnknownTopic
from omq.store.interface import Acknowledge, AlterTopic, DeleteTopic, MakeTopic
from tests.support.lmdb_faults import Failing
from tests.support.open_store import Opened
from tests.unit.store.test_log import everywhere, of_every_kind

Again = Callable[..., Opened]

on_disk = pytest.mark.parametrize("kind", ["strong", "weak", "async", "transient"])


@of_every_kind
def test_the_new_settings_apply_at_once(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind, max_messages=100)
    log.append(topic, *[b"%d" % number for number in range(1, 11)])
    log.wait_grown(topic, 10)
    log.do(AlterTopic(topic, {"max_messages": 3}))
    assert log.log.topic(topic).settings == {"max_messages": 3}
    assert log.log.topic(topic).first == 8
    log.do(AlterTopic(topic, {"max_messages": 4, "colour": "blue"}))
    log.append(topic, b"11", b"12")
    log.wait_grown(topic, 12)
    assert [id for id, _ in log.read(topic)] == [9, 10, 11, 12]
    log.do(AlterTopic(topic, {}))
    log.append(topic, *[b"x"] * 100)
    log.wait_grown(topic, 112)
    assert log.log.topic(topic).first == 9


@of_every_kind
def test_an_altered_topic_is_reported_as_stored(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    assert log.do(AlterTopic(topic, {"max_messages": 3})).stored
    log.do(DeleteTopic(topic))
    log.try_(write := AlterTopic(topic, {}))
    assert (type(write.error), write.stored) == (UnknownTopic, False)


@of_every_kind
def test_bytes_are_bounded_by_the_new_settings(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    for _ in range(10):
        log.append(topic, bytes(100_000))
    log.wait_grown(topic, 10)
    log.do(AlterTopic(topic, {"max_bytes": 350_000}))
    assert log.log.topic(topic).first == 8
    log.do(AlterTopic(topic, {"max_bytes": 350_000, "overflow": "reject"}))
    log.append(topic, bytes(100_000), bytes(100_000))
    log.wait_grown(topic, 12)
    assert log.log.topic(topic).first == 8, "it does not drop its oldest messages any more"
    log.do(AlterTopic(topic, {"max_bytes": 350_000, "overflow": "drop-oldest"}))
    assert log.log.topic(topic).first == 10


@everywhere
def test_unknown_topics_cannot_be_altered(log: Opened) -> None:
    topic = log.make("t", persistence="weak")
    with pytest.raises(UnknownTopic):
        log.do(AlterTopic(topic + 1, {}))
    log.do(DeleteTopic(topic))
    with pytest.raises(UnknownTopic):
        log.do(AlterTopic(topic, {"max_messages": 1}))
    assert log.log.topics() == []


@on_disk
def test_settings_survive_a_reopening(again: Again, kind: str) -> None:
    log = again()
    topic = log.make("t", persistence=kind, max_messages=5)
    other = log.make("u", persistence=kind, max_messages=5)
    log.do(AlterTopic(topic, {"max_age": 60.0, "retry_delay": [1.0, 2.0]}))
    log = again()
    assert log.log.topic(topic).settings == {"max_age": 60.0, "retry_delay": [1.0, 2.0]}
    assert log.log.topic(other).settings == {"max_messages": 5}
    log.do(AlterTopic(topic, {}))
    assert again().log.topic(topic).settings == {}


@on_disk
def test_changes_of_one_group_are_made_in_order(store: Opened, kind: str) -> None:
    topic, gone = store.make("t", persistence=kind), store.make("gone", persistence=kind)
    writes = [AlterTopic(topic, {"max_messages": number}) for number in (1, 2, 3)]
    deleted, altered, late = DeleteTopic(gone), AlterTopic(gone, {"max_messages": 1}), AlterTopic(gone, {})
    store.try_(*writes, altered, deleted, late, MakeTopic("gone", "broadcast", kind))
    assert [write.error for write in (*writes, altered, deleted)] == [None] * 5
    assert isinstance(late.error, UnknownTopic)
    assert {state.name: state.settings for state in store.log.topics()} == {"t": {"max_messages": 3}, "gone": {}}


@on_disk
def test_a_change_that_fails_has_no_effect(store: Opened, monkeypatch, kind: str) -> None:
    topic = store.make("t", persistence=kind, max_messages=100)
    store.append(topic, *[b"x"] * 10)
    store.wait_grown(topic, 10)
    store.do(AlterTopic(topic, {"max_messages": 50}))
    environment = store.log._writers["strong"].environment
    begin = environment.begin
    full = lmdb.DiskError("mdb_txn_commit: No space left on device")
    full.code = errno.ENOSPC
    errors: list[Exception | None] = [full] * 10
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), errors))
    write = AlterTopic(topic, {"max_messages": 3})
    store.try_(write)
    assert isinstance(write.error, StoreError)
    assert store.log.topic(topic).settings == {"max_messages": 50}
    errors.clear()
    store.append(topic, b"x")
    store.wait_grown(topic, 11)
    assert store.log.topic(topic).first == 1
    store.do(AlterTopic(topic, {"max_messages": 3}))
    assert store.log.topic(topic).first == 9


def test_a_weak_environment_without_space_does_not_undo_a_durable_change(store: Opened, monkeypatch) -> None:
    topic = store.make("t", persistence="weak", max_messages=100)
    store.append(topic, *[b"x"] * 10)
    store.wait_grown(topic, 10)
    environment = store.log._writers["weak"].environment
    begin = environment.begin
    full = lmdb.DiskError("mdb_txn_commit: No space left on device")
    full.code = errno.ENOSPC
    errors: list[Exception | None] = [full] * 10
    monkeypatch.setattr(environment, "begin", lambda: Failing(begin(), errors))
    store.do(AlterTopic(topic, {"max_messages": 3}))
    assert store.log.topic(topic).settings == {"max_messages": 3}
    errors.clear()
    store.append(topic, b"x")
    store.wait_grown(topic, 11)
    assert store.log.topic(topic).first == 9


@of_every_kind
def test_the_age_of_a_message(log: Opened, kind: str, monkeypatch) -> None:
    real, slept = clock.uptime, [0]
    for place in ("omq.store.clock.uptime", "omq.store.memory.uptime"):
        monkeypatch.setattr(place, lambda: real() + slept[0])
    topic = log.make("t", delivery="round_robin", persistence=kind)
    assert log.log.age(topic, 1) == 0
    log.append(topic, b"a", b"b")
    log.wait_grown(topic, 2)
    slept[0] += 100_000_000
    log.append(topic, b"c")
    log.wait_grown(topic, 3)
    assert all(100 <= log.log.age(topic, id) < 160 for id in (1, 2))
    assert 0 <= log.log.age(topic, 3) < 60
    assert log.log.age(topic, 4) == 0
    log.do(Acknowledge(topic, [(1, 2)], 2))
    assert 0 <= log.log.age(topic, 1) < 60, "the next message that is kept counts"
