"""The store of a node of a cluster."""

import errno
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest

from omq._core import blocks
from omq.store.errors import (
    DamagedError,
    OutOfSpace,
    StageError,
    StoreClosed,
    StoreError,
    StoreFailed,
    TopicFull,
    UnknownTopic,
)
from omq.store.interface import (
    AbortStage,
    Acknowledge,
    AlterTopic,
    Append,
    CommitStages,
    DeleteCursor,
    DeleteGroup,
    DeleteTopic,
    MakeTopic,
    MoveToDeadLetter,
    Requeue,
    SetCursor,
    SetGroup,
    Stage,
    Trim,
    Write,
)
from omq.store.internal import ApplyEntry, ApplyRetention, ExpireState
from omq.store.lmdb.compaction import compact
from omq.store.lmdb.inspector import Inspector
from omq.store.lmdb.layout import topic_key
from omq.store.lmdb.snapshot import restore_snapshot, take_snapshot
from omq.store.lmdb.store_directory import FORMAT, REPLICA_FORMAT
from omq.store.replication.copying import copy_replica
from tests.support.lmdb_faults import NoRoom, spoil
from tests.support.open_store import Opened
from tests.support.power import lose_power
from tests.support.replicas import apply, dump
from tests.support.waits import until

ONE = blocks.encode([b"x"])
HOUR_US = 3_600_000_000
T0 = 1_700_000_000_000_000
CLUSTER = "c" * 32
RESTORED = "the power was lost: it has the state of the last sync"

Again = Callable[..., Opened]


@pytest.fixture
def again(directory: Path) -> Iterator[Again]:
    """Opens the replica of this test's directory, closing the one that was open before."""
    last: list[Opened] = []

    def open_again(**options: Any) -> Opened:
        while last:
            last.pop().log.close()
        last.append(Opened.as_replica(directory, **options))
        return last[0]

    yield open_again
    for one in last:
        one.log.close()


@pytest.fixture
def node(again: Again) -> Opened:
    return again(cluster_id=CLUSTER)


def make(node: Opened, name: str, delivery: str = "broadcast", persistence: str = "strong", **settings: Any) -> int:
    (write,) = apply(node, MakeTopic(name, delivery, persistence, settings), timestamp=T0)  # type: ignore[arg-type]
    return int(write.topic_id)


def entries(node: Opened, *groups: list[Write]) -> list[ApplyEntry]:
    """Returns the next entries, one for each group."""
    at, _ = node.log.position
    return [ApplyEntry(at + number, 1, T0, group) for number, group in enumerate(groups, 1)]


# The directory


def test_a_directory_stays_a_replica(directory: Path, again: Again) -> None:
    again(cluster_id=CLUSTER).log.close()
    with pytest.raises(StoreError, match=f"{directory} is a replica of the cluster {CLUSTER}, and can only"):
        Opened.on_disk(directory)
    with pytest.raises(StoreError, match=f"{directory} is a replica of the cluster {CLUSTER}, not of {'d' * 32}"):
        again(cluster_id="d" * 32)
    assert again().log.id == CLUSTER


def test_another_version_of_omq_refuses_a_replica(directory: Path, again: Again) -> None:
    again(cluster_id=CLUSTER).log.close()
    path = directory / "format"
    row = json.loads(path.read_text())
    assert row["omq-store"] == REPLICA_FORMAT > FORMAT  # so an omq without replicas refuses it, too
    path.write_text(json.dumps(row | {"omq-store": 3}))  # it synced each commit, and reserved ids
    with pytest.raises(StoreError, match=f"version 3, of an older omq; this omq reads version {REPLICA_FORMAT}"):
        again(cluster_id=CLUSTER)
    path.write_text(json.dumps(row | {"omq-store": REPLICA_FORMAT + 1}))
    with pytest.raises(StoreError, match=f"version {REPLICA_FORMAT + 1}, of a newer omq; this omq reads version 4"):
        again(cluster_id=CLUSTER)


def test_a_store_does_not_become_a_replica(directory: Path, again: Again) -> None:
    Opened.on_disk(directory).log.close()
    with pytest.raises(StoreError, match=f"{directory} is a store, and not a replica"):
        again(cluster_id=CLUSTER)
    Opened.on_disk(directory).log.close()


def test_a_replica_without_a_cluster_gets_an_id(again: Again) -> None:
    id = again().log.id
    assert len(id) == 32
    assert again().log.id == id


def test_a_snapshot_of_a_replica_continues_at_its_position(directory: Path, node: Opened) -> None:
    topic = make(node, "t", persistence="weak")
    apply(node, Append(topic, ONE, 1))
    snapshot, copy = directory.with_name("snapshot"), directory.with_name("copy")
    node.log.close()
    take_snapshot(directory, snapshot)
    restore_snapshot(snapshot, copy)
    with Opened.as_replica(copy, cluster_id=CLUSTER) as restored:
        assert restored.log.position == (2, 1)
        assert apply(restored, Append(topic, ONE, 1))[0].first == 2
    with Inspector(copy) as inspector:
        assert inspector.check(inspector.find("t"))[0] == 2
        assert inspector.check_rows() == []


# What is applied


def test_entries_are_applied_with_their_position(node: Opened, again: Again) -> None:
    assert node.log.position == (0, 0)
    node.do(ApplyEntry(3, 2, T0, [MakeTopic("t", "broadcast", "weak")]))
    node.do(ApplyEntry(7, 5, T0 + 1, []))
    assert (node.log.position, node.log.timestamp) == ((7, 5), T0 + 1)
    node = again()
    assert (node.log.position, node.log.timestamp) == ((7, 5), T0 + 1)
    assert [topic.name for topic in node.log.topics()] == ["t"]


def test_an_entry_is_not_applied_twice(node: Opened) -> None:
    topic = make(node, "t")
    append, again = ApplyEntry(2, 1, T0, [Append(topic, ONE, 1)]), ApplyEntry(2, 1, T0, [Append(topic, ONE, 1)])
    node.try_(append, again)
    assert append.error is None
    assert "entry 2 of the journal is not after 2" in str(again.error)
    assert node.log.topic(topic).last == 1
    assert node.log.broken is None


def test_an_older_term_stops_the_node(node: Opened) -> None:
    node.do(ApplyEntry(1, 3, T0, []))
    older, next = ApplyEntry(2, 2, T0, []), ApplyEntry(3, 3, T0, [])
    node.try_(older, next)
    assert isinstance(older.error, StoreFailed)
    assert isinstance(next.error, StoreFailed)
    assert "entry 2 of term 2 after one of 3" in str(node.log.broken)
    assert node.log.position == (1, 3)


def test_errors_of_single_writes_are_results(node: Opened) -> None:
    jobs, topic = make(node, "jobs", "round_robin"), make(node, "t")
    first, unknown, full, ack, commit, last = apply(
        node,
        Append(topic, ONE, 1),
        Append(99, ONE, 1),
        Append(topic, ONE, 1, b"p", 1, repeats_only=True),
        Acknowledge(jobs, [(1, 9)]),
        CommitStages(b"c", [b"missing"]),
        Append(topic, ONE, 1),
    )
    assert [type(one.error) for one in (unknown, full, ack, commit)] == [
        UnknownTopic,
        TopicFull,
        StoreError,
        StageError,
    ]
    assert str(commit.error) == "there is no stage 'missing'"
    assert (first.first, last.first) == (1, 2)
    assert apply(node, AbortStage(b"missing"))[0].error is None
    assert all(one.done for one in (first, unknown, commit))


def test_topics_of_all_persistences_are_in_one_environment(directory: Path, node: Opened, again: Again) -> None:
    topics = [make(node, name, persistence=name) for name in ("strong", "weak", "async")]
    apply(node, *(Append(topic, ONE, 1) for topic in topics))
    assert node.log.stats().engines["weak"].appended == 0
    # A process that dies leaves what is in its files. No id is skipped after that.
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    with Opened.as_replica(copy) as killed:
        assert [write.first for write in apply(killed, *(Append(topic, ONE, 1) for topic in topics))] == [2, 2, 2]
        assert [killed.log.topic(topic).jumped for topic in topics] == [(), (), ()]


def test_an_older_copy_continues_at_its_position(directory: Path, node: Opened, again: Again) -> None:
    topic = make(node, "t")
    apply(node, Append(topic, ONE, 1))
    node.log.close()
    copy = directory.with_name("copy")
    shutil.copytree(directory / "strong", copy)
    node = again()
    later = [ApplyEntry(3, 1, T0, [Append(topic, 5 * ONE, 5), MakeTopic("u", "broadcast", "strong")])]
    node.try_(*later)
    node.log.close()
    shutil.rmtree(directory / "strong")
    copy.rename(directory / "strong")
    node = again()
    assert node.log.position == (2, 1)
    (finding,) = [finding for finding in node.log.findings if "strong: it is not as it was left" in finding]
    assert finding.endswith("the entries that it lacks are applied again from the journal")
    append, made = apply(node, Append(topic, ONE, 1), MakeTopic("u", "broadcast", "strong"))
    assert (append.first, made.topic_id) == (2, 2)


def test_the_timestamp_of_the_entry_is_the_clock(node: Opened) -> None:
    topic, dead = make(node, "t"), make(node, "dead")
    append, group = apply(node, Append(topic, ONE, 1), SetGroup(topic, "g", 0), timestamp=T0 + 5)
    assert append.timestamp == T0 + 5
    assert group.generation == T0 + 5
    # A clock that was set back does not take the store back.
    (later,) = apply(node, Append(topic, ONE, 1), timestamp=T0)
    assert later.timestamp == T0 + 5
    apply(node, MoveToDeadLetter(topic, 1, dead, group="g", reason="overflow"), timestamp=T0 + 3 * HOUR_US)
    assert node.log.age(topic, 1) == (3 * HOUR_US - 5) / 1e6
    with node.log.read(dead) as reader:
        ((header, records),) = reader.blocks(1)
        (message,) = blocks.decode(header, records, "dead")
    assert message.headers["omq-dead-time"] == b"2023-11-15T01:13:20.000000Z"


def test_blocks_end_with_the_entry(node: Opened) -> None:
    topic = make(node, "t")
    node.try_(*entries(node, *[[Append(topic, ONE, 1), Append(topic, ONE, 1)]] * 1, [Append(topic, ONE, 1)]))
    with node.log.read(topic) as reader:
        assert [blocks.read_header(header)[:2] for header, _ in reader.blocks(1)] == [(1, 2), (3, 1)]


def test_retention_is_applied_for_each_entry(node: Opened) -> None:
    topic = make(node, "t", max_messages=2)
    node.try_(*entries(node, *([Append(topic, ONE, 1)] for _ in range(5)), [Trim(topic, 99)], [Append(topic, ONE, 1)]))
    assert (node.log.topic(topic).first, node.log.topic(topic).last) == (6, 6)


def test_records_become_too_old_by_entries_alone(node: Opened) -> None:
    topic, other = make(node, "t", max_age=3600), make(node, "other")
    assert node.log.needs_retention
    apply(node, Append(topic, ONE, 1))
    apply(node, Append(other, ONE, 1), timestamp=T0 + 2 * HOUR_US)
    node.log._tick(True)
    assert node.log.topic(topic).first == 1
    apply(node, ApplyRetention())
    assert node.log.topic(topic).first == 2


def test_the_time_of_messages_does_not_make_them_old(node: Opened) -> None:
    topic = make(node, "t", max_age=3600)
    at, _ = node.log.position
    future = T0 + 1000 * HOUR_US
    first, second = Append(topic, ONE, 1), Append(topic, ONE, 1)
    node.do(ApplyEntry(at + 1, 1, T0 + 1, [first], future))
    node.do(ApplyEntry(at + 2, 1, T0 + 2, [second, ApplyRetention()], T0))
    assert (first.timestamp, second.timestamp) == (future, T0)
    assert node.log.topic(topic).first == 1
    node.do(ApplyEntry(at + 3, 1, T0 + 2 * HOUR_US, [ApplyRetention()], T0))
    assert node.log.topic(topic).first == 3


def test_a_backlog_outlives_the_process(again: Again, monkeypatch) -> None:
    monkeypatch.setattr("omq.store.lmdb.replica.MAX_DELETIONS", 2)
    node = again()
    topic = make(node, "t", max_bytes=1)
    apply(node, AlterTopic(topic, {}))
    node.try_(*entries(node, *([Append(topic, ONE, 1)] for _ in range(7))))
    apply(node, AlterTopic(topic, {"max_bytes": 1}))
    assert node.log.topic(topic).first == 3
    node = again()
    seen = []
    while node.log.needs_retention:
        apply(node, ApplyRetention())
        seen.append(node.log.topic(topic).first)
    assert seen == [5, 7, 7]  # the last step finds nothing


def test_state_expires_from_the_proposed_key(node: Opened, monkeypatch) -> None:
    monkeypatch.setattr("omq.store.lmdb.applier.MAX_DELETIONS", 4)
    topic = make(node, "t")
    apply(node, *(Append(topic, ONE, 1, b"%d" % i, 1) for i in range(9)))
    steps, start = [], b""
    while start is not None:
        (step,) = apply(node, ExpireState(start), timestamp=T0 + 30 * HOUR_US)
        steps.append(start := step.next_start)
    assert len(steps) > 2
    assert steps[-1] is None
    assert not any(write.duplicate for write in apply(node, *(Append(topic, ONE, 1, b"%d" % i, 1) for i in range(9))))


def test_confirmed_sequences_stay_confirmed(again: Again) -> None:
    node = again()
    topic = make(node, "t")
    apply(node, Append(topic, ONE, 1, b"p", 1), Append(topic, ONE, 1, b"p", 9, 5))
    node = again()
    late, confirmed = apply(node, Append(topic, ONE, 1, b"p", 4), Append(topic, ONE, 1, b"p", 1))
    assert [(one.first, one.duplicate) for one in (late, confirmed)] == [(0, True), (0, True)]


def test_a_topic_may_be_deleted_in_the_commit_that_creates_it(node: Opened) -> None:
    node.try_(
        *(
            done := entries(
                node,
                [MakeTopic("t", "broadcast", "strong"), DeleteTopic(1), MakeTopic("t", "broadcast", "transient")],
                [DeleteTopic(2), Append(2, ONE, 1)],
                [MakeTopic("t", "broadcast", "weak")],
            )
        )
    )
    assert [one.error for one in done] == [None] * 3
    assert [(topic.id, topic.persistence) for topic in node.log.topics()] == [(3, "weak")]
    assert isinstance(done[1].writes[1].error, UnknownTopic)


def test_rows_of_deleted_topics_are_deleted_outside_of_entries(again: Again, monkeypatch) -> None:
    monkeypatch.setattr("omq.store.lmdb.replica.MAX_DELETIONS", 3)
    node = again()
    topic, other = make(node, "t"), make(node, "other")
    node.try_(*entries(node, *([Append(topic, ONE, 1, b"%d" % i, 1)] for i in range(20))))
    apply(node, DeleteTopic(topic))

    def left() -> list[bytes]:
        with node.log._strong.read() as reading:
            prefix = topic_key(b"b", topic)
            return [bytes(key) for key, _ in reading.cursor() if bytes(key[:5]) == prefix]

    until(lambda: not left())
    assert not node.log.needs_retention
    assert apply(node, Append(other, ONE, 1))[0].first == 1


# Power failures


def without_power(node: Opened, directory: Path) -> Path:
    """Returns a copy of the directory of an open node, without the pages that are not synced."""
    copy = directory.with_name("without power")
    shutil.copytree(directory, copy)
    lose_power(copy, "strong", Random(1))
    return copy


def test_after_a_power_failure_a_node_continues_at_the_last_sync(directory: Path, again: Again) -> None:
    node = again(cluster_id=CLUSTER, flush_interval=3600.0)
    topic = make(node, "t")
    apply(node, Append(topic, ONE, 1, b"p", 1))
    node.log._flusher.flush()
    lost = entries(node, [Append(topic, ONE, 1, b"p", 2), MakeTopic("u", "broadcast", "strong")])
    node.try_(*lost)
    assert node.log.position == (3, 1)
    with Opened.as_replica(without_power(node, directory)) as failed:
        assert failed.log.findings[1:] == [f"{failed.log._strong.directory}: {RESTORED}"]
        assert failed.log.position == (2, 1)
        again, made = apply(failed, Append(topic, ONE, 1, b"p", 2), MakeTopic("u", "broadcast", "strong"))
        assert (again.first, again.duplicate, made.topic_id) == (2, False, 2)
        assert dump(failed.log) == dump(node.log)


def test_a_node_syncs_by_itself(again: Again, monkeypatch) -> None:
    node = again(flush_interval=0.01)
    topic = make(node, "t")
    until(lambda: node.log._flusher._synced == node.log._strong.last_transaction())
    assert node.log.stats().engines["strong"].syncs > 0
    monkeypatch.setattr("omq.store.lmdb.flusher.MAX_UNSYNCED_COMMITS", 3)
    node = again(flush_interval=3600.0)
    for _ in range(3):
        apply(node, Append(topic, ONE, 1))
    until(lambda: node.log._flusher._synced == node.log._strong.last_transaction())


def test_a_node_that_was_closed_loses_nothing(directory: Path, again: Again) -> None:
    node = again(flush_interval=3600.0)
    make(node, "t")
    node.log.close()
    lose_power(directory, "strong", Random(1))
    node = again()
    assert node.log.findings == []
    assert node.log.position == (1, 1)


def test_a_snapshot_of_an_open_node_has_what_is_not_synced(directory: Path, again: Again) -> None:
    node = again(flush_interval=3600.0)
    make(node, "t")
    snapshot, copy = directory.with_name("snapshot"), directory.with_name("copy")
    assert copy_replica(directory, snapshot, "") == node.log.position[0] == 1
    restore_snapshot(snapshot, copy)
    with Opened.as_replica(copy) as restored:
        assert dump(restored.log) == dump(node.log)


def test_the_last_sync_is_not_restored_into_a_compacted_file(directory: Path, again: Again) -> None:
    node = again()
    topic = make(node, "t")
    apply(node, Append(topic, ONE, 1))
    node.log.close()
    assert (directory / "strong" / "synced").exists()
    compact(directory)
    assert not (directory / "strong" / "synced").exists()
    node = again()
    assert (node.log.position, node.read(topic)) == ((2, 1), [(1, b"x")])


def test_a_failed_sync_stops_the_node(node: Opened, monkeypatch) -> None:
    topic = make(node, "t")

    def fail() -> None:
        raise OSError(errno.EIO, "the disk has failed")

    monkeypatch.setattr(node.log._strong, "sync", fail)
    node.log._flusher.flush()
    (failing,) = entries(node, [Append(topic, ONE, 1)])
    node.try_(failing)
    assert isinstance(failing.error, StoreFailed)
    assert "the disk has failed" in str(node.log.broken)


def test_an_entry_without_space_waits_for_a_sync(again: Again, monkeypatch) -> None:
    node = again(flush_interval=3600.0)
    topic = make(node, "t")
    room = NoRoom(node.log._strong, monkeypatch)
    sync = node.log._strong.sync

    def free_pages() -> None:
        sync()
        room.full.clear()

    monkeypatch.setattr(node.log._strong, "sync", free_pages)
    room.full.set()
    apply(node, Append(topic, ONE, 1))
    assert node.log.topic(topic).last == 1


# Transient topics


def test_transient_topics_are_created_by_entries_and_written_directly(node: Opened, again: Again) -> None:
    topic = make(node, "t", persistence="transient")
    jobs = make(node, "jobs", "round_robin", "transient")
    for write in (Append(topic, ONE, 1), SetCursor(topic, "c", 1), SetGroup(topic, "g", 0), Append(jobs, ONE, 1)):
        assert node.log.is_local(write)
        node.do(write)
    assert node.do(Acknowledge(jobs, [(1, 1)])).floor == 1
    node.do(Stage(topic, ONE, 1, b"s"))
    assert node.log.is_local(commit := CommitStages(b"c", [b"s"]))
    assert node.do(commit).published == [(b"s", topic, 2, 1)]
    apply(node, AlterTopic(topic, {"max_messages": 1}))
    assert node.log.topic(topic).first == 2
    apply(node, DeleteTopic(jobs))
    with pytest.raises(UnknownTopic):
        node.append(jobs, b"x")
    node = again()
    assert [topic.name for topic in node.log.topics()] == ["t"]
    node.log.restart_transient(5)  # a leader does it, since ids are not reserved
    assert node.append(topic, b"x").first == 6


def test_aborting_a_prefix_reaches_transient_stages(node: Opened) -> None:
    topic = make(node, "t", persistence="transient")
    node.do(Stage(topic, ONE, 1, b"user/s"))
    abort = AbortStage(b"user/", prefix=True)
    assert not node.log.is_local(abort)
    apply(node, abort)
    with pytest.raises(StoreError):
        node.do(CommitStages(b"c", [b"user/s"]))
    assert node.done == []  # no result but those of the test's own writes


def test_local_and_refused_writes_may_come_together(node: Opened) -> None:
    topic, other = make(node, "t", persistence="transient"), make(node, "other")
    writes = [
        Append(topic, ONE, 1),
        Append(other, ONE, 1),
        Append(topic, ONE, 1),
        Stage(topic, ONE, 1, b"s"),
        CommitStages(b"c", [b"s"]),
        CommitStages(b"d", [b"missing"]),
        Append(topic, ONE, 1),
    ]
    node.try_(*writes)
    assert [write.error is None for write in writes] == [True, False, True, True, True, False, True]
    assert [writes[i].first for i in (0, 2, 6)] == [1, 2, 4]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "write",
    [
        Append(1, ONE, 1),
        MakeTopic("new", "broadcast", "strong"),
        MakeTopic("new", "broadcast", "transient"),
        AlterTopic(2, {}),
        DeleteTopic(2),
        Acknowledge(1, [(1, 1)]),
        SetCursor(1, "c", 1),
        DeleteCursor(1, "c"),
        SetGroup(1, "g", 0),
        DeleteGroup(1, "g"),
        Stage(1, ONE, 1, b"s"),
        CommitStages(b"c", [b"s"]),
        AbortStage(b"s"),
        Trim(1, 1),
        ApplyRetention(),
        ExpireState(),
    ],
    ids=lambda write: type(write).__name__,
)
def test_replicated_topics_change_by_entries_alone(node: Opened, write: Write) -> None:
    make(node, "t")
    make(node, "transient", persistence="transient")
    assert not node.log.is_local(write)
    with pytest.raises(StoreError, match="submit an `ApplyEntry`"):
        node.do(write)
    assert not node.log.write_at_once([write])
    assert [topic.last for topic in node.log.topics()] == [0, 0]


@pytest.mark.parametrize("source", [1, 2])
def test_records_do_not_move_between_transient_and_replicated_topics(node: Opened, source: int) -> None:
    make(node, "t")
    make(node, "transient", persistence="transient")
    node.append(2, b"x")
    apply(node, Append(1, ONE, 1))
    for move in (MoveToDeadLetter(source, 1, 3 - source), Requeue(source, [(1, 3 - source)])):
        assert not node.log.is_local(move)
        with pytest.raises(StoreError, match="cannot be moved between a transient topic"):
            node.do(move)
        assert "cannot be moved between a transient topic" in str(apply(node, move)[0].error)
    assert [topic.last for topic in node.log.topics()] == [1, 1]


# Trouble of this node


def test_entries_wait_for_space_in_their_order(node: Opened, monkeypatch, caplog) -> None:
    topic = make(node, "t")
    room = NoRoom(node.log._strong, monkeypatch)
    room.full.set()
    asked = threading.Semaphore(0)
    room.refused = asked.release
    waiting = entries(node, [Append(topic, ONE, 1)], [SetCursor(topic, "c", 1)], [Append(topic, ONE, 1)])
    node.log.submit_many(waiting)
    for _ in range(3):
        assert asked.acquire(timeout=20)
    assert "the disk is full" in node.log.shortage
    assert node.log.full
    assert node.log.position == (1, 1)
    assert not any(one.done for one in waiting)
    room.full.clear()
    node.wait(waiting)
    assert [one.error for one in waiting] == [None] * 3
    assert [one.writes[0].first for one in waiting[::2]] == [1, 2]  # type: ignore[attr-defined]
    assert node.log.position == (4, 1)
    until(lambda: not node.log.shortage)
    assert (node.log.full, node.log.broken) == (False, None)
    assert "no entry of the journal is applied until there is space" in caplog.text


def test_a_node_without_space_can_be_closed(node: Opened, again: Again, monkeypatch) -> None:
    topic = make(node, "t")
    room = NoRoom(node.log._strong, monkeypatch)
    room.full.set()
    asked = threading.Event()
    room.refused = asked.set
    waiting = entries(node, [Append(topic, ONE, 1)], [SetCursor(topic, "c", 1)])
    node.log.submit_many(waiting)
    assert asked.wait(20)
    node.log.close()
    assert [type(one.error) for one in waiting] == [StoreClosed] * 2
    node = again()
    assert node.log.findings == []
    assert node.log.position == (1, 1)
    node.try_(*(ApplyEntry(one.position, 1, T0, one.writes) for one in waiting))
    assert node.log.cursors(topic) == {"c": 1}


def test_damage_stops_the_node_before_the_entry(directory: Path, again: Again) -> None:
    node = again()
    topic, dead = make(node, "t"), make(node, "dead")
    apply(node, Append(topic, ONE, 1), SetGroup(topic, "g", 0))
    node.log.close()
    spoil(directory, topic_key(b"W", topic) + b"\1g")
    node = again()
    failing, next = entries(
        node,
        [Append(dead, ONE, 1), Acknowledge(topic, [(1, 1)], group="g"), Append(dead, ONE, 1)],
        [Append(dead, ONE, 1)],
    )
    node.try_(failing, next)
    assert isinstance(failing.error, StoreFailed)
    assert isinstance(next.error, StoreFailed)
    assert isinstance(node.log.broken, DamagedError)
    assert (node.log.position[0], node.log.topic(dead).last) == (3, 0)
    assert node.read(topic) == [(1, b"x")]


def test_a_failed_transaction_stops_the_node(node: Opened, monkeypatch) -> None:
    topic = make(node, "t")
    begin = node.log._strong.begin

    def fail() -> Any:
        monkeypatch.setattr(node.log._strong, "begin", begin)
        raise lmdb.CorruptedError("page 7")

    monkeypatch.setattr(node.log._strong, "begin", fail)
    failing, next = entries(node, [Append(topic, ONE, 1)], [Append(topic, ONE, 1)])
    node.log.submit(failing)
    node.log.submit(next)
    node.wait([failing, next])
    assert isinstance(next.error, StoreFailed)
    assert "page 7" in str(node.log.broken)
    assert node.log.position == (1, 1)


def test_a_node_with_a_damaged_topic_takes_no_entries(directory: Path, again: Again) -> None:
    node = again()
    topic, other = make(node, "t"), make(node, "other")
    apply(node, Append(topic, ONE, 1), Append(other, ONE, 1))
    node.log.close()
    spoil(directory, topic_key(b"n", topic))
    node = again()
    assert "needs a snapshot" in str(node.log.broken)
    (failing,) = entries(node, [Append(other, ONE, 1)])
    node.try_(failing)
    assert isinstance(failing.error, StoreFailed)
    assert node.read(other) == [(1, b"x")]


def test_a_damaged_position_is_reported(directory: Path, again: Again) -> None:
    node = again()
    node.do(ApplyEntry(0x1122334455667788, 1, T0, []))
    node.log.close()
    for path in directory.glob("strong/data.mdb"):
        data = path.read_bytes()
        path.write_bytes(data.replace(bytes.fromhex("1122334455667788"), bytes.fromhex("1122334455667789")))
    with pytest.raises(DamagedError, match=r"strong/data\.mdb: the position of the last applied entry is damaged"):
        again()


def test_a_write_without_space_holds_its_entry(node: Opened, monkeypatch) -> None:
    topic = make(node, "t")

    def full(write: Write) -> None:
        monkeypatch.undo()
        raise OutOfSpace("the disk is full")

    monkeypatch.setitem(node.log._entries._entry_handlers, Append, full)
    first, second = apply(node, Append(topic, ONE, 1), Append(topic, ONE, 1))
    assert (first.first, second.first) == (1, 2)
    until(lambda: not node.log.full)
