"""`omq broker restore` with the options of a cluster: after a deleted stream, and after servers from a backup."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from omq.broker import Client
from omq.cli.main import main
from omq.store.interface import MakeTopic
from omq.store.lmdb.replica import LmdbReplica
from omq.store.lmdb.store_directory import REPLICA
from omq.store.replication.nats_connection import NatsConnection, NatsOptions
from tests.support.broker_cluster import LEASE_S, BrokerCluster, Node, broker_cluster
from tests.support.nats_servers import NatsServers, nats_servers
from tests.support.open_store import Opened
from tests.support.replicas import apply
from tests.support.waits import until

pytestmark = [pytest.mark.xdist_group("nats"), pytest.mark.timeout(180)]

ADVICE: Final = (
    "keep the directories of all brokers, stop them, and begin a new journal: `omq broker restore` with the directory "
    "that has the highest position by `omq store stats`"
)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsServers]:
    (tmp_path / "nats").mkdir()
    with nats_servers(tmp_path / "nats", 1) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, servers: NatsServers) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, servers, replicas=1) as brokers:
        yield brokers


def call(servers: NatsServers, name: str) -> Any:
    """Calls the API of JetStream, as the command `nats` does."""

    async def request() -> Any:
        connection = NatsConnection(NatsOptions(servers=servers.urls))
        await connection.open()
        try:
            return await connection.call(name)
        finally:
            await connection.close()

    return asyncio.run(request())


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), catch_exceptions=False)


def restore(servers: NatsServers, source: Path, config: Path, cluster: str = "test") -> Result:
    options = ("--replicated", ",".join(servers.urls), "--cluster", cluster, "--config", config)
    return run("broker", "restore", source, *options)


def position(node: Node) -> int:
    """Returns what `omq store stats` prints."""
    return int(json.loads(run("store", "stats", node.data / REPLICA, "--json").stdout)["position"])


def publish(client: Client, number: int) -> int:
    return client.publish("t", b"%d" % number, message_id=f"m{number}")


def check_messages(cluster: BrokerCluster, count: int) -> None:
    """Checks that all brokers have these messages, and that repeated ones are not stored again."""
    with Client(cluster.leader().endpoint) as client:
        ids = [publish(client, number) for number in range(count)]
        assert ids == list(range(1, count + 1))
        assert publish(client, count) == count + 1
    for node in cluster.nodes:
        with Client(node.endpoint, role="any") as reader:
            until(
                lambda reader=reader: [one.last for one in reader.topics() if one.name == "t"] == [count + 1],  # type: ignore[misc]
                cluster.logs,
            )
            assert [message.body for message in reader.read("t")] == [b"%d" % number for number in range(count + 1)]


def reasons(node: Node) -> list[str]:
    """Returns the reasons for which a broker took no part in the cluster, in its log."""
    log = (node.folder / "broker.log").read_text()
    return [line for line in log.splitlines() if "takes no part in the cluster" in line]


def end_with_advice(cluster: BrokerCluster, text: str) -> None:
    """Waits until all brokers report what is wrong and what to do; stops them, and starts them twice in vain."""
    for starts in range(3):
        if starts:
            for node in cluster.nodes:
                node.start()
        until(lambda starts=starts: all(len(reasons(node)) > starts for node in cluster.nodes), cluster.logs)  # type: ignore[misc]
        assert starts or text in cluster.logs()
        for node in cluster.nodes:
            assert ADVICE in reasons(node)[-1]
            node.kill()


def start_again(cluster: BrokerCluster) -> None:
    for node in cluster.nodes:
        node.start()
    for node in cluster.nodes:
        node.serving()
    cluster.leader()


def test_a_deleted_stream_is_replaced_by_what_a_broker_has(cluster: BrokerCluster, servers: NatsServers) -> None:
    leader = cluster.leader()
    with Client(leader.endpoint) as client:
        client.create("t", persistence="weak")
        client.create("jobs", delivery="round-robin", persistence="weak")
        client.create("passing", persistence="transient")
        client.publish_many("jobs", [b"1", b"2"])
        for number in range(100):
            publish(client, number)
        first = (consumer := client.consume("jobs")).recv()
        first.ack()
        client.flush()
        consumer.close()
        passing = client.publish("passing", b"x")
        call(servers, "STREAM.DELETE.OMQ_test")
        end_with_advice(cluster, "the stream 'OMQ_test' was deleted")
    source = max(cluster.nodes, key=position)
    config = source.folder / "broker.toml"

    done = restore(servers, source.data, config)
    assert done.exit_code == 0, done.output
    assert f"the cluster 'test' begins with {source.data}, after the entry {position(source)}" in done.stdout
    assert f"or with a position below {position(source)}, load this state" in done.stdout
    assert done.stderr == ""
    again = restore(servers, source.data, config)
    assert again.exit_code == 1
    assert "the stream 'OMQ_test' exists, with the sequences" in again.output
    assert "`nats stream rm OMQ_test`" in again.output

    next(node for node in cluster.nodes if node is not source).wipe()
    start_again(cluster)
    check_messages(cluster, 100)
    with Client(cluster.leader().endpoint) as client:
        assert client.consume("jobs").recv(timeout=10).body == b"2"
        assert client.publish("passing", b"y") > passing
    assert not list(source.data.glob("snapshot-*"))


@pytest.mark.slow
def test_servers_from_a_backup_are_replaced_by_what_a_broker_has(
    tmp_path: Path, cluster: BrokerCluster, servers: NatsServers
) -> None:
    server = servers[0]
    with Client(cluster.leader().endpoint) as client:
        client.create("t", persistence="weak")
        for number in range(5):
            publish(client, number)
    server.kill()
    shutil.copytree(server.store, tmp_path / "backup")
    server.start()
    with Client([node.endpoint for node in cluster.nodes], timeout=30) as client:
        for number in range(5, 15):
            publish(client, number)
    server.kill()
    shutil.rmtree(server.store)
    (tmp_path / "backup").rename(server.store)
    server.start()
    end_with_advice(cluster, "restored from a backup")

    # Each start appends to the journal, until it is longer than what the brokers have applied.
    source = max(cluster.nodes, key=position)
    last = position(source)
    while "the journal has another entry" not in reasons(source)[-1]:
        starts = len(reasons(source))
        source.start()
        until(lambda starts=starts: len(reasons(source)) > starts, cluster.logs)  # type: ignore[misc]
        assert ADVICE in reasons(source)[-1]
        source.kill()
    assert position(source) == last

    call(servers, "STREAM.DELETE.OMQ_test")
    done = restore(servers, source.data, source.folder / "broker.toml")
    assert done.exit_code == 0, done.output
    start_again(cluster)
    check_messages(cluster, 15)


def test_a_snapshot_begins_a_cluster_with_another_name(cluster: BrokerCluster, servers: NatsServers) -> None:
    node = cluster.leader()
    with Client(node.endpoint) as client:
        client.create("t", persistence="weak")
        publish(client, 0)
        broker = client.broker
    copy = node.folder / "copy"
    taken = run("broker", "snapshot", node.data / REPLICA, copy)
    assert taken.exit_code == 0, taken.output
    files = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    config = node.folder / "broker.toml"
    refused = restore(servers, node.data, config, "other")
    assert refused.exit_code == 1
    assert "replica: in use by process" in refused.output
    refused = restore(servers, copy, config)
    assert refused.exit_code == 1
    assert f"{copy} is a snapshot of the cluster 'test'" in refused.output
    assert "give another name" in refused.output
    done = restore(servers, copy, config, "other")
    assert done.exit_code == 0, done.output
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == files

    other = Node("o", node.folder.parent / "o", servers, ("--cluster", "other"), replicas=1)
    try:
        other.start()
        other.serving()
        check_messages(BrokerCluster([other]), 1)
        with Client(other.endpoint) as client:
            assert client.broker != broker
    finally:
        other.kill()


def test_the_journal_of_devices_is_restored_too(tmp_path: Path, servers: NatsServers) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("[cluster]\nreplicas = 1\n")
    with Opened(lambda **calls: LmdbReplica(tmp_path / "device" / REPLICA, kind="pzq", **calls)) as device:
        apply(device, MakeTopic("t", "round_robin", "weak"))
    done = restore(servers, tmp_path / "device", config)
    assert done.exit_code == 0, done.output
    assert call(servers, "STREAM.INFO.OMQ_pzq-test")["state"]["first_seq"] == 2


def test_without_a_state_nothing_is_restored(tmp_path: Path, servers: NatsServers) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f"[cluster]\nreplicas = 1\nlease = {LEASE_S}\n")
    LmdbReplica(tmp_path / "empty", notify=lambda writes: None, kind="broker").close()
    refused = restore(servers, tmp_path / "empty", config)
    assert refused.exit_code == 1
    assert "it has applied no entry of a journal" in refused.output
    assert not call(servers, "STREAM.NAMES")["streams"]
