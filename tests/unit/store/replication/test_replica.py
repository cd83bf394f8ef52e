"""Replicated stores with real replicas on a journal in memory: takeover, repetition, transient topics, snapshots."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest

from omq._core import blocks
from omq.store.errors import (
    InDoubt,
    NotAllowed,
    NotLeader,
    StoreClosed,
    StoreError,
    StoreLocked,
    TopicFull,
    UnknownTopic,
)
from omq.store.interface import AlterTopic, Append, CommitStages, DeleteTopic, MakeTopic, Stage, Write
from omq.store.lmdb.snapshot import take_snapshot
from omq.store.replication.journal import JournalUnavailable, JournalUnusable
from omq.store.replication.replica import ReplicatedStore
from omq.store.replication.role_machine import ReplicaSettings, Role
from tests.support.memory_journal import JournalThread, RemoteJournal
from tests.support.open_store import Opened
from tests.support.power import lose_power
from tests.support.replicas import dump
from tests.support.waits import until
from tests.unit.store.conftest import QUICK

CLUSTER = "c0" * 16
LEASE_S = 0.6
RECORD = blocks.encode([b"x"])


class Node:
    """A node of the cluster, with its store."""

    def __init__(self, cluster: Cluster, name: str, **settings: Any) -> None:
        self.name = name
        self.journal: RemoteJournal = cluster.journal.node()
        self.journal.faults.timeout = 0.2
        self.roles: list[Role] = []
        self.changes = 0  # of the catalog
        self.loads = 0  # of snapshots
        given = ReplicaSettings(name, (f"tcp://{name}",), **{"snapshot_bytes": 0, **settings})

        async def connect(create: bool) -> RemoteJournal:
            return self.journal

        self.opened = Opened(
            lambda **calls: ReplicatedStore(
                cluster.directory / name,
                connect,
                given,
                cluster_id=CLUSTER,
                servers_sync=cluster.servers_sync,
                flush_interval=cluster.flush_interval,
                role_changed=lambda role, lease: self.roles.append(role),
                catalog_changed=self._catalog_changed,
                loaded=self._loaded,
                **calls,
            )
        )
        self.store: ReplicatedStore = self.opened.log

    def _catalog_changed(self) -> None:
        self.changes += 1

    def _loaded(self) -> None:
        self.loads += 1

    @property
    def position(self) -> int:
        return self.store._local.position[0]

    def records(self, topic_id: int) -> list[bytes]:
        with self.store.read(topic_id) as reader:
            return [bytes(records) for _, records in reader.blocks(reader.first)]


class Cluster:
    """The journal and the directories of some nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers_sync = True
        self.flush_interval = 1.0
        self.journal = JournalThread()
        self.nodes: dict[str, Node] = {}

    def start(self, *names: str, lease: float = LEASE_S, **settings: Any) -> list[Node]:
        self.journal.servers.lease = lease
        for name in names:
            self.nodes[name] = Node(self, name, **settings)
        return [self.nodes[name] for name in names]

    def leader(self) -> Node:
        """Waits for a leader, and returns it."""
        until(lambda: any(node.store.is_leader_now() for node in self.nodes.values()))
        return next(node for node in self.nodes.values() if node.store.is_leader_now())

    def stop(self, node: Node) -> None:
        del self.nodes[node.name]
        node.store.close()

    def check_equal(self) -> None:
        """Waits until all nodes have applied the journal, and compares their stores."""
        nodes = list(self.nodes.values())
        until(lambda: len({(node.position, self.journal.servers.last) for node in nodes}) == 1)
        states = [dump(node.store._local.store) for node in nodes]
        for state in states:  # the nodes stand at different renewals of the lease
            state.pop(b"a", None)
        assert all(state == states[0] for state in states)

    def sync(self) -> None:
        """Syncs the stores of all nodes."""
        for node in self.nodes.values():
            node.store._local.store._flusher.flush()

    def lose_power(self, *names: str) -> None:
        """Ends nodes as a power failure does; their stores lose what is not synced."""
        nodes = [self.nodes.pop(name) for name in names]
        for node in nodes:
            node.journal.faults.part()
            shutil.copytree(self.directory / node.name, self.directory / "copy" / node.name)
        for node in nodes:
            node.store.close()
            shutil.rmtree(self.directory / node.name)
            (self.directory / "copy" / node.name).rename(self.directory / node.name)
            lose_power(self.directory / node.name / "replica", "strong", Random(node.name))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(dir=QUICK) as directory:
        made = Cluster(Path(directory))
        try:
            yield made
        finally:
            for node in made.nodes.values():
                node.journal.faults.heal()
                node.store.close()
            made.journal.close()


def make_topic(node: Node, name: str = "t", persistence: Any = "strong", **settings: Any) -> int:
    return int(node.opened.do(MakeTopic(name, "broadcast", persistence, settings)).topic_id)


@pytest.mark.parametrize("persistence", ["strong", "weak", "async"])
def test_a_follower_has_what_the_leader_has_answered(cluster: Cluster, persistence: str) -> None:
    cluster.start("a", "b")
    leader = cluster.leader()
    (follower,) = [node for node in cluster.nodes.values() if node is not leader]
    topic = make_topic(leader, persistence=persistence)
    write = leader.opened.do(Append(topic, RECORD, 1))
    assert (write.first, leader.opened.log.topic(topic).last) == (1, 1)
    follower.opened.wait_grown(topic, 1)
    assert follower.records(topic) == leader.records(topic) == [RECORD]
    assert (leader.store.leading, follower.store.leading) == (True, False)
    assert leader.store.id == follower.store.id == CLUSTER
    until(lambda: leader.store.members == follower.store.members == {name: [f"tcp://{name}"] for name in "ab"})
    cluster.check_equal()


def test_a_follower_refuses_writes_and_names_the_leader(cluster: Cluster) -> None:
    cluster.start("a", "b")
    leader = cluster.leader()
    (follower,) = [node for node in cluster.nodes.values() if node is not leader]
    until(lambda: follower.store.lease is not None)
    with pytest.raises(NotLeader) as refusal:
        make_topic(follower)
    assert (refusal.value.node, refusal.value.endpoints) == (leader.name, (f"tcp://{leader.name}",))
    assert follower.store.write_at_once([Append(1, RECORD, 1)]) is False


def test_a_follower_learns_of_changes_of_the_catalog(cluster: Cluster) -> None:
    cluster.start("a", "b")
    leader = cluster.leader()
    (follower,) = [node for node in cluster.nodes.values() if node is not leader]
    topic = make_topic(leader)
    until(lambda: follower.changes == 1)
    assert [(one.id, one.name) for one in follower.store.topics()] == [(topic, "t")]
    leader.opened.do(Append(topic, RECORD, 1))
    follower.opened.wait_grown(topic, 1)
    until(lambda: (leader.changes, follower.changes) == (1, 1))
    leader.opened.do(AlterTopic(topic, {"max_age": 60}))
    until(lambda: follower.changes == 2)
    assert follower.store.topic(topic).settings == {"max_age": 60}
    with pytest.raises(UnknownTopic):
        leader.opened.do(DeleteTopic(topic + 1))
    leader.opened.do(DeleteTopic(topic))
    until(lambda: follower.changes == 3)
    assert follower.store.topics() == []
    cluster.check_equal()
    until(lambda: (leader.changes, follower.changes) == (3, 3))


def test_writes_at_the_loss_of_a_leader_are_stored_once(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    first = cluster.leader()
    topic = make_topic(first)
    answers: dict[int, int] = {}

    def publish(node: Node, sequences: list[int]) -> list[Append]:
        writes = [Append(topic, RECORD, 1, b"p", sequence) for sequence in sequences]
        node.store.submit_many(writes)
        return writes

    writes = publish(first, [*range(1, 150)])
    until(lambda: any(write.done for write in writes))
    first.journal.faults.part()
    for sequence in range(150, 301):
        writes += publish(first, [sequence])
    first.opened.wait(writes)
    assert {type(write.error) for write in writes} <= {type(None), InDoubt, NotLeader}
    assert any(write.error is not None for write in writes)
    answers.update({write.sequence: write.first for write in writes if write.error is None})
    until(lambda: any(node.store.is_leader_now() for node in cluster.nodes.values() if node is not first))
    second = cluster.leader()
    assert second is not first
    again = publish(second, [write.sequence for write in writes])  # also those that were answered
    second.opened.wait(again)
    assert all(write.error is None for write in again)
    assert all(write.first == answers[write.sequence] for write in again if write.sequence in answers)
    assert sorted(write.first for write in again) == list(range(1, 301))
    first.journal.faults.heal()
    cluster.check_equal()
    assert first.store.topic(topic).last == 300


def test_a_leader_that_is_closed_hands_over_before_its_lease_is_over(cluster: Cluster) -> None:
    cluster.start("a", lease=0.2)
    first = cluster.leader()
    topic = make_topic(first)
    cluster.stop(first)
    cluster.start("a", "b", lease=5.0)
    first = cluster.leader()
    writes: list[Write] = [Append(topic, RECORD, 1) for _ in range(10)]
    first.store.submit_many(writes)
    began = time.monotonic()
    cluster.stop(first)
    assert all(write.error is None for write in writes)  # closing applies the submitted writes
    second = cluster.leader()
    assert time.monotonic() - began < 4.0
    assert second.store.topic(topic).last == 10


def test_a_store_opened_again_continues(cluster: Cluster) -> None:
    cluster.start("a", lease=0.2)
    node = cluster.leader()
    topic = make_topic(node)
    node.opened.do(Append(topic, RECORD, 1))
    cluster.stop(node)
    with pytest.raises(StoreClosed):
        node.store.submit(Append(topic, RECORD, 1))
    cluster.start("a", lease=0.2)
    assert cluster.leader().opened.do(Append(topic, RECORD, 1)).first == 2


def test_the_directory_of_a_node_is_not_one_of_another_store(cluster: Cluster, tmp_path: Path) -> None:
    (node,) = cluster.start("a")
    directory = cluster.directory / "a"
    with pytest.raises(StoreLocked):
        cluster.start("a")
    cluster.stop(node)
    with pytest.raises(StoreError, match=f"{directory} is a replica of the cluster {CLUSTER}, and can only be opened"):
        Opened.on_disk(directory)
    with pytest.raises(StoreError, match=f"{directory} is the directory of a node .* its store is {directory}/replica"):
        take_snapshot(directory, tmp_path / "snapshot")
    take_snapshot(directory / "replica", tmp_path / "snapshot")
    Opened.on_disk(cluster.directory / "b").log.close()
    with pytest.raises(StoreError, match=f"{cluster.directory}/b is a store, and not a replica of a cluster"):
        cluster.start("b")
    cluster.start("a")


def test_strong_topics_need_servers_that_sync(cluster: Cluster) -> None:
    cluster.start("a", lease=0.2)
    topic = make_topic(cluster.leader(), "before")
    cluster.stop(cluster.leader())
    cluster.servers_sync = False
    cluster.start("a", lease=0.2)
    node = cluster.leader()
    with pytest.raises(StoreError, match="sync_interval: always"):
        make_topic(node, "strong")
    assert make_topic(node, "before") == topic
    assert make_topic(node, "weak", "weak") != topic


def test_each_node_has_its_own_messages_of_a_transient_topic(cluster: Cluster) -> None:
    cluster.start("a", "b")
    leader = cluster.leader()
    (follower,) = [node for node in cluster.nodes.values() if node is not leader]
    topic = make_topic(leader, persistence="transient")
    until(lambda: any(one.id == topic for one in follower.store.topics()))
    before = cluster.journal.servers.last
    assert [follower.opened.do(Append(topic, RECORD, 1)).first for _ in range(2)] == [1, 2]
    assert leader.store.topic(topic).last == 0
    assert cluster.journal.servers.last - before < 5  # renewals of the lease only


def test_a_leader_gives_no_transient_id_of_another_one(cluster: Cluster) -> None:
    cluster.start("a", "b")
    leader = cluster.leader()
    (follower,) = [node for node in cluster.nodes.values() if node is not leader]
    topic = make_topic(leader, persistence="transient")
    last = leader.opened.do(Append(topic, RECORD, 3)).first + 2
    until(lambda: any(one.id == topic for one in follower.store.topics()))
    for other, former in ((follower, leader), (leader, follower)):
        former.journal.faults.part()
        until(other.store.is_leader_now)
        until(lambda other=other: other.roles[-1] is Role.LEADER)
        former.journal.faults.heal()
        assert other.store.topic(topic).first > last
        assert other.records(topic) == []
        first = other.opened.do(Append(topic, RECORD, 3)).first
        assert first > last
        last = first + 2


def test_a_leader_that_leads_again_keeps_transient_messages(cluster: Cluster) -> None:
    (leader,) = cluster.start("a")
    cluster.leader()
    topic = make_topic(leader, persistence="transient")
    first = leader.opened.do(Append(topic, RECORD, 1)).first
    leader.journal.faults.part()
    until(lambda: leader.roles[-1] is not Role.LEADER)
    leader.journal.faults.heal()
    until(lambda: leader.roles[-1] is Role.LEADER)
    assert len(leader.records(topic)) == 1
    assert leader.opened.do(Append(topic, RECORD, 1)).first == first + 1


def test_a_commit_is_checked_before_it_is_proposed(cluster: Cluster) -> None:
    cluster.start("a", "b")
    leader = cluster.leader()
    topic = make_topic(leader)
    asked: list[tuple[int, int, int]] = []

    def has_room(topic_id: int, count: int, size: int) -> bool:
        asked.append((topic_id, count, size))
        return len(asked) > 1

    def commit(**functions: Callable[..., bool]) -> CommitStages:
        return CommitStages(b"commit", [b"stage"], **functions)  # type: ignore[arg-type]

    stage, refused = Stage(topic, RECORD, 1, b"stage"), commit(may=lambda id: False)
    leader.opened.try_(stage, refused)
    assert isinstance(refused.error, NotAllowed)
    full, stored = commit(has_room=has_room), commit(may=lambda id: True, has_room=has_room)
    leader.opened.try_(full, stored)
    assert isinstance(full.error, TopicFull)
    assert (stored.error, stored.published) == (None, [(b"stage", topic, 1, 1)])
    assert stored.has_room is has_room
    assert asked == [(topic, 1, len(RECORD))] * 2
    repeated = leader.opened.do(commit(has_room=lambda *room: False))
    assert (repeated.repeated, repeated.published) == (True, stored.published)
    with pytest.raises(StoreError, match="there is no stage"):
        leader.opened.do(CommitStages(b"other", [b"no such stage"], may=lambda id: True))
    cluster.check_equal()


def test_a_leader_drops_what_is_too_old_on_all_nodes(cluster: Cluster) -> None:
    cluster.start("a", "b", upkeep_interval=0.1)
    leader = cluster.leader()
    topic = make_topic(leader, max_age=0.2)
    leader.opened.do(Append(topic, RECORD, 1))
    for node in cluster.nodes.values():
        until(lambda node=node: node.store.topic(topic).first == 2)
    assert all(write.context is None for write in leader.opened.done)  # its own writes are not returned


def test_a_new_node_loads_a_snapshot(cluster: Cluster) -> None:
    cluster.start("a", snapshot_bytes=2000, lease=3.0)
    leader = cluster.leader()
    topic = make_topic(leader)
    servers = cluster.journal.servers
    while servers.first == 1:
        leader.opened.do(Append(topic, RECORD, 1, b"p", leader.store.topic(topic).last + 1))
    cluster.start("b", lease=3.0)
    until(lambda: cluster.nodes["b"].position > servers.first)
    cluster.check_equal()
    assert cluster.nodes["b"].opened.grown[topic] > 0
    assert (leader.loads, cluster.nodes["b"].loads) == (0, 1)


@pytest.mark.parametrize("lost", ["leader", "follower", "both"])
def test_a_node_that_has_lost_power_continues_from_the_journal(cluster: Cluster, lost: str) -> None:
    cluster.flush_interval = 3600.0
    cluster.start("a", "b")
    leader = cluster.leader()
    (follower,) = [node for node in cluster.nodes.values() if node is not leader]
    topic = make_topic(leader)
    leader.opened.do(Append(topic, RECORD, 1, b"p", 1))
    follower.opened.wait_grown(topic, 1)
    cluster.sync()
    for sequence in range(2, 9):
        leader.opened.do(Append(topic, RECORD, 1, b"p", sequence))
    follower.opened.wait_grown(topic, 8)
    failed = {"leader": [leader.name], "follower": [follower.name], "both": [leader.name, follower.name]}[lost]
    cluster.lose_power(*failed)
    for name in failed:
        with Opened.as_replica(cluster.directory / name / "replica") as replica:
            assert replica.log.topic(topic).last == 1
    cluster.start(*failed)
    for name in failed:
        cluster.nodes[name].opened.wait_grown(topic, 8)
    cluster.check_equal()
    until(lambda: any(node.store.is_leader_now() for node in cluster.nodes.values()))
    repeated, new = (cluster.leader().opened.do(Append(topic, RECORD, 1, b"p", sequence)) for sequence in (8, 9))
    assert (repeated.first, repeated.duplicate, new.first) == (8, True, 9)
    assert all(node.loads == 0 for node in cluster.nodes.values())


@pytest.mark.parametrize("lost", ["leader", "follower"])
def test_a_node_that_has_lost_what_the_journal_dropped_loads_a_snapshot(cluster: Cluster, lost: str) -> None:
    cluster.flush_interval = 3600.0
    cluster.start("a", "b", snapshot_bytes=2000, lease=3.0)
    leader = cluster.leader()
    (follower,) = [node for node in cluster.nodes.values() if node is not leader]
    topic = make_topic(leader)
    until(lambda: bool(follower.store.topics()))
    cluster.sync()
    position = leader.position
    servers = cluster.journal.servers
    while servers.first <= position + 1:
        leader.opened.do(Append(topic, RECORD, 1, b"p", leader.store.topic(topic).last + 1))
        time.sleep(0.02)  # too many commits before the snapshot would be synced
    last = leader.store.topic(topic).last
    name = leader.name if lost == "leader" else follower.name
    cluster.lose_power(name)
    cluster.start(name, snapshot_bytes=2000, lease=3.0)
    until(lambda: cluster.nodes[name].loads == 1)
    cluster.nodes[name].opened.wait_grown(topic, last)
    cluster.leader()
    cluster.check_equal()


def test_a_node_starts_without_the_journal(cluster: Cluster) -> None:
    attempts: list[int] = []
    errors: list[Exception] = [JournalUnusable("another cluster"), JournalUnavailable("no server answers")]

    async def connect(create: bool) -> RemoteJournal:
        attempts.append(1)
        raise errors[-1] if len(errors) == 1 else errors.pop()

    settings = ReplicaSettings("a")
    opened = Opened(lambda **calls: ReplicatedStore(cluster.directory / "a", connect, settings, **calls))
    write = Append(1, RECORD, 1)
    opened.try_(make := MakeTopic("t", "broadcast", "strong", {}))
    assert isinstance(make.error, NotLeader)
    until(lambda: opened.log.broken is not None)
    assert (len(attempts), str(opened.log.broken)) == (2, "another cluster")
    assert opened.log.trouble == "another cluster"
    opened.try_(make := MakeTopic("t", "broadcast", "strong", {}))
    assert isinstance(make.error, JournalUnusable)
    opened.try_(write)  # of no known topic: it is local
    assert write.error is not None
    opened.log.close()


def test_a_journal_that_stays_away_is_reported_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    texts = iter(["no server answers", "no server answers", "no server answers", "the user is refused"])

    async def connect(create: bool) -> RemoteJournal:
        raise JournalUnavailable(next(texts, "the user is refused"))

    settings = ReplicaSettings("a")
    opened = Opened(lambda **calls: ReplicatedStore(cluster.directory / "a", connect, settings, **calls))
    until(lambda: opened.log.trouble == "the journal is not connected: no server answers")
    until(lambda: opened.log.trouble == "the journal is not connected: the user is refused")
    opened.log.close()
    found = [record.getMessage() for record in caplog.records]
    assert found == ["node a: no server answers", "node a: the user is refused"]


def test_a_leader_without_space_leaves_the_lease_to_another_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start("a", "b")
    leader = cluster.leader()
    topic = make_topic(leader)

    def fail(*given: Any) -> None:
        raise lmdb.MapFullError("no space")

    writer = leader.store._local.store._entry_writer
    monkeypatch.setattr(writer, "_try", fail)
    monkeypatch.setattr(writer.environment, "grow", fail)
    stuck = Append(topic, RECORD, 1, b"p", 1)
    leader.store.submit(stuck)
    until(lambda: any(node.store.is_leader_now() for node in cluster.nodes.values() if node is not leader))
    assert "no space" in leader.store.trouble
    assert not stuck.done
    other = cluster.leader()
    again = other.opened.do(Append(topic, RECORD, 1, b"p", 1))
    assert (again.duplicate, again.first) == (True, 1)  # it was replicated
    cluster.stop(leader)  # it does not wait for space
    assert isinstance(stuck.error, InDoubt)


@pytest.mark.slow
def test_a_node_that_was_away_loads_a_snapshot(cluster: Cluster) -> None:
    cluster.start("a", "b", snapshot_bytes=1500, lease=3.0)
    leader = cluster.leader()
    (follower,) = [node for node in cluster.nodes.values() if node is not leader]
    topic = make_topic(leader)
    follower.opened.grown.clear()
    follower.journal.faults.part()
    while cluster.journal.servers.first <= follower.position:
        leader.opened.do(Append(topic, RECORD, 1))
    leader.opened.do(Append(topic, RECORD, 1))
    follower.journal.faults.heal()
    cluster.check_equal()
    assert follower.records(topic) == leader.records(topic)
    assert follower.opened.grown[topic] == leader.store.topic(topic).last
    assert follower.loads == 1


@pytest.mark.parametrize("stage", ["restored in part", "moved away", "replaced"])
def test_a_node_that_was_killed_while_it_loaded_a_snapshot_returns(cluster: Cluster, stage: str) -> None:
    cluster.start("a", snapshot_bytes=1500, lease=3.0)
    leader = cluster.leader()
    cluster.start("b", snapshot_bytes=1500, lease=3.0)
    follower = cluster.nodes["b"]
    topic = make_topic(leader)
    cluster.check_equal()
    cluster.stop(follower)
    while cluster.journal.servers.first <= follower.position:
        leader.opened.do(Append(topic, RECORD, 1))
    # What it leaves: a copy of a snapshot, then a store that becomes its own.
    directory = cluster.directory / "b"
    replica, new, old = directory / "replica", directory / "replica.new", directory / "replica.old"
    (directory / "snapshot-x" / "snapshot" / "strong").mkdir(parents=True)
    if stage == "restored in part":
        (directory / "replica.new.partial" / "strong").mkdir(parents=True)
    if stage == "moved away":
        shutil.copytree(replica, new)
        replica.rename(old)
    if stage == "replaced":
        shutil.copytree(replica, old)
    cluster.start("b", snapshot_bytes=1500, lease=3.0)
    cluster.check_equal()
    assert cluster.nodes["b"].loads == 1
    assert cluster.nodes["b"].records(topic) == leader.records(topic)
    assert sorted(path.name for path in directory.iterdir() if path.is_dir()) == ["replica"]
