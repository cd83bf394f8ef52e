"""Clusters of brokers on servers of NATS: the leader, its followers, and the takeover after the leader is killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from omq.broker import Client, NotLeader
from omq.cli.broker import broker as command
from omq.store.replication.journal import JournalUnavailable
from tests.support.broker_cluster import LEASE_S, BrokerCluster, Node, broker_cluster
from tests.support.nats_servers import NatsServers, nats_servers
from tests.support.waits import until
from tests.system.replication.nats_journals import info, opened

pytestmark = [pytest.mark.xdist_group("nats"), pytest.mark.timeout(180)]

SNAPSHOT_BYTES = 1 << 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    (tmp_path / "nats").mkdir()
    with nats_servers(tmp_path / "nats") as servers, broker_cluster(tmp_path, servers) as brokers:
        yield brokers


def test_another_broker_takes_over_what_was_acknowledged(cluster: BrokerCluster) -> None:
    leader = cluster.leader()
    follower, other = cluster.followers()
    with Client(leader.endpoint) as client, Client(follower.endpoint, role="any") as reader:
        client.create("t", persistence="weak")
        client.create("jobs", delivery="round-robin", persistence="weak")
        ids = client.publish_many("t", [b"%d" % number for number in range(1000)])
        client.publish_many("jobs", [b"%d" % number for number in range(10)])
        consumer = client.consume("jobs", credit=10)
        first, second = (consumer.recv() for _ in range(2))
        first.ack()
        client.flush()
        assert first.body == b"0"
        assert second.body == b"1"

        # A follower serves reads and subscriptions.
        until(lambda: [topic.last for topic in reader.topics() if topic.name == "t"] == [1000])
        assert [message.body for message in reader.read("t")] == [b"%d" % number for number in range(1000)]
        subscription = reader.subscribe("t", replay="earliest")
        assert [subscription.recv().id for _ in range(1000)] == list(ids)
        client.publish("t", b"live")
        assert subscription.recv().body == b"live"
        for refused in (
            lambda: reader.publish("t", b"x"),
            lambda: reader.create("other"),
            lambda: reader.consume("jobs").recv(timeout=5),
            lambda: reader.subscribe("t", name="durable"),
        ):
            with pytest.raises(NotLeader, match=leader.endpoint):
                refused()

        leader.kill()
        heir = cluster.leader()
        assert heir in (follower, other)
        # The subscription at the broker goes on, whether it leads now or not.
        with Client(heir.endpoint) as publisher:
            publisher.publish("t", b"after")
            assert subscription.recv(timeout=30).body == b"after"
            assert [message.body for message in publisher.read("t")][-2:] == [b"live", b"after"]
            rest = publisher.consume("jobs")
            assert [rest.recv(timeout=10).body for _ in range(9)] == [b"%d" % number for number in range(1, 10)]


@pytest.mark.slow
def test_a_reload_changes_the_topics_of_the_leader(cluster: BrokerCluster) -> None:
    leader = cluster.leader()
    follower, other = cluster.followers()
    for node, name in ((follower, "of-follower"), (leader, "of-leader")):
        config = node.folder / "broker.toml"
        config.write_text(f'{config.read_text()}[[topic]]\nname = "{name}"\npersistence = "weak"\n')
        assert node.command is not None
        node.command.process.send_signal(signal.SIGHUP)
        until(lambda node=node: "topics are read again" in node.log, node.log)  # type: ignore[misc]
    with Client(other.endpoint, role="any") as client:
        until(lambda: [topic.name for topic in client.topics()] == ["of-leader"])
        other.end()
        leader.end()
    with Client(follower.endpoint) as client:
        until(lambda: sorted(topic.name for topic in client.topics()) == ["of-follower", "of-leader"])


@pytest.mark.slow
def test_a_snapshot_of_a_broker_comes_back(tmp_path: Path, cluster: BrokerCluster) -> None:
    leader = cluster.leader()
    follower, _ = cluster.followers()
    with Client(leader.endpoint) as client:
        client.create("t", persistence="weak")
        client.publish_many("t", [b"x"] * 10)
        with Client(follower.endpoint, role="any") as reader:
            until(lambda: [topic.last for topic in reader.topics()] == [10])
        run = CliRunner().invoke(command, ["snapshot", str(follower.data / "replica"), str(tmp_path / "copy")])
        assert run.exit_code == 0, run.output
        follower.kill()
        follower.wipe()
        follower.data.mkdir()
        client.publish("t", b"y")
        run = CliRunner().invoke(command, ["restore", str(tmp_path / "copy"), str(follower.data / "replica")])
        assert run.exit_code == 0, run.output
        follower.start()
        follower.serving()
        with Client(follower.endpoint, role="any") as reader:
            until(lambda: [topic.last for topic in reader.topics()] == [11])
            assert [message.body for message in reader.read("t")] == [b"x"] * 10 + [b"y"]


def journal_state(servers: NatsServers) -> tuple[int, int, int]:
    """Returns the bytes that the journal of a cluster keeps, its first sequence, and the position of its snapshot."""

    async def main() -> tuple[int, int, int]:
        async with opened(servers, "test", lease=LEASE_S) as journal:
            position = None
            with contextlib.suppress(JournalUnavailable):  # the stream of snapshots has no leader yet
                position = await journal._snapshots.position()
            return await journal.size(), (await info(journal))["state"]["first_seq"], position or 0

    return asyncio.run(main())


@pytest.mark.slow
def test_brokers_that_restart_often_keep_the_journal_short(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    with (
        nats_servers(tmp_path / "nats") as servers,
        broker_cluster(tmp_path, servers, count=2, snapshot_bytes=SNAPSHOT_BYTES) as brokers,
    ):
        led: set[Node] = set()
        bodies: list[bytes] = []
        snapshot = 0

        def is_short() -> bool:
            """Returns whether the journal needs no snapshot, or this leader has made one."""
            size, _, position = journal_state(servers)
            return size < 2.5 * SNAPSHOT_BYTES or position > snapshot

        for turn in range(12):
            leader = brokers.leader()
            led.add(leader)
            with Client(leader.endpoint) as client:
                if not turn:
                    client.create("t", persistence="weak")
                # A broker follows for one turn and leads for the next: less than a snapshot needs.
                batch = [b"%d" % number + bytes(10_000) for number in range(len(bodies), len(bodies) + 45)]
                client.publish_many("t", batch)
                bodies += batch
            until(is_short, brokers.logs)
            *_, snapshot = journal_state(servers)
            leader.end()
            brokers.leader()
            leader.start()
            leader.serving()
        assert len(led) == 2
        until(lambda: journal_state(servers)[0] < 3 * SNAPSHOT_BYTES, brokers.logs)
        assert journal_state(servers)[1] > 1

        (empty,) = brokers.followers()
        empty.kill()
        empty.wipe()
        empty.start()
        empty.serving()
        with Client(empty.endpoint, role="any") as reader:
            until(lambda: [topic.last for topic in reader.topics()] == [len(bodies)], brokers.logs)
            assert [message.body for message in reader.read("t")] == bodies
        assert "loaded a snapshot" in empty.log
