"""Faults of a cluster of brokers: a leader that stands still, and servers that are gone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from omq.broker import BrokerTimeout, Client, NotLeader
from tests.support.broker_cluster import LEASE_S, BrokerCluster, broker_cluster
from tests.support.nats_servers import NatsServers, nats_servers
from tests.support.waits import until
from tests.system.broker.server_process import get

pytestmark = [pytest.mark.xdist_group("nats"), pytest.mark.timeout(180)]
#: Seconds of a call that outlives a takeover.
PATIENT_S = 60.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsServers]:
    (tmp_path / "nats").mkdir()
    with nats_servers(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, servers: NatsServers) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, servers, "--http", "127.0.0.1:*") as brokers:
        yield brokers


def refusal(client: Client) -> str:
    """Returns the error of a publication."""
    with pytest.raises(NotLeader) as raised:
        client.publish("t", b"x")
    return str(raised.value)


def test_a_publisher_goes_on_at_the_next_leader(cluster: BrokerCluster) -> None:
    bodies = [b"%d" % number for number in range(20_000)]
    with Client([node.endpoint for node in cluster.nodes], timeout=PATIENT_S) as client:
        client.create("t", persistence="weak")
        subscription = client.subscribe("t", name="reader")
        begun = threading.Event()

        def published() -> Iterator[bytes]:
            for number, body in enumerate(bodies):
                if number == 5000:
                    begun.set()
                yield body

        def kill() -> None:
            begun.wait(PATIENT_S)
            cluster.leader().kill()

        killer = threading.Thread(target=kill)
        killer.start()
        ids = client.publish_many("t", published(), in_flight=500)
        killer.join()
        assert ids == sorted(ids)
        assert [message.body for message in client.read("t")] == bodies
        assert [subscription.recv(timeout=PATIENT_S).body for _ in bodies] == bodies


@pytest.mark.slow
def test_a_leader_that_stood_still_answers_nothing_of_the_past(cluster: BrokerCluster) -> None:
    leader = cluster.leader()
    with Client(leader.endpoint, role="any", timeout=PATIENT_S) as former:
        former.create("t", persistence="weak")
        former.create("jobs", delivery="round-robin", persistence="weak")
        former.publish("t", b"before")
        former.publish("jobs", b"job")
        consumer = former.consume("jobs")
        delivery = consumer.recv()
        leader.pause()
        answers: list[list[bytes] | Exception] = []

        def read() -> None:
            try:
                answers.append([message.body for message in former.read("t")])
            except Exception as error:
                answers.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        heir = cluster.leader(leader)
        with Client(heir.endpoint, timeout=PATIENT_S) as client:
            client.publish("t", b"after")
            (job,) = (client.consume("jobs").recv(timeout=PATIENT_S) for _ in range(1))
            assert (job.body, job.deliveries) == (b"job", delivery.deliveries)
            job.ack()
            client.flush()
            leader.resume()
            reading.join(PATIENT_S)
            # As a follower it may lag; as the leader that it was it must not answer.
            (answer,) = answers
            assert isinstance(answer, NotLeader) or answer in ([b"before"], [b"before", b"after"])
            until(lambda: not leader.leads, leader.log)
            with contextlib.suppress(NotLeader):
                delivery.ack()
            with contextlib.suppress(NotLeader):
                former.flush()
            until(lambda: [message.body for message in former.read("t")] == [b"before", b"after"])
            with pytest.raises(NotLeader):
                former.publish("t", b"x")
            assert list(client.read("t"))[-1].body == b"after"


@pytest.mark.slow
def test_a_leader_whose_other_threads_stand_still_answers_nothing(cluster: BrokerCluster) -> None:
    leader = cluster.leader()
    with Client(leader.endpoint, timeout=5.0) as former:
        former.create("t", persistence="weak")
        former.publish("t", b"before")
        leader.stall()  # its lease ends, and it does not learn that
        try:
            with Client(cluster.leader(leader).endpoint, timeout=PATIENT_S) as client:
                client.publish("t", b"after")
            assert leader.leads  # by its ready file: it still has the role
            with pytest.raises(BrokerTimeout):
                list(former.read("t"))
        finally:
            leader.resume()
        assert [message.body for message in former.read("t")] == [b"before", b"after"]


@pytest.mark.slow
def test_without_a_journal_nodes_serve_reads(cluster: BrokerCluster, servers: NatsServers) -> None:
    leader = cluster.leader()
    with (
        Client(leader.endpoint, timeout=PATIENT_S) as client,
        Client(leader.endpoint, role="any", timeout=PATIENT_S) as any_role,
    ):
        client.create("t", persistence="weak")
        client.publish("t", b"before")
        for node in cluster.nodes:
            with Client(node.endpoint, role="any", timeout=PATIENT_S) as reader:
                until(lambda reader=reader: [topic.last for topic in reader.topics()] == [1])  # type: ignore[misc]
                assert reader.subscribe("t", replay="earliest").recv(timeout=PATIENT_S).body == b"before"
        servers[0].kill()
        servers[1].kill()
        until(lambda: not any(node.leads for node in cluster.nodes), cluster.logs)
        for node in cluster.nodes:
            with Client(node.endpoint, role="any", timeout=PATIENT_S) as reader:
                assert [message.body for message in reader.read("t")] == [b"before"]
                assert reader.subscribe("t", replay="earliest").recv(timeout=PATIENT_S).body == b"before"
                until(lambda reader=reader: "no leader of 'test' is known" in refusal(reader))  # type: ignore[misc]
            http = node.endpoints["http"]
            metrics = get(f"{http}/metrics").decode()
            assert "\nomq_broker_leader 0.0\n" in metrics
            assert b'"role":"follower"' in get(f"{http}/topics.json")
            assert get(f"{http}/healthz")
        with Client(leader.endpoint, timeout=LEASE_S) as impatient, pytest.raises(BrokerTimeout):
            impatient.publish("t", b"x")
        servers[0].start()
        client.publish("t", b"after")
        assert [message.body for message in client.read("t")][-1] == b"after"
        until(lambda: [message.body for message in any_role.read("t")][-1] == b"after")
        metrics = get(f"{cluster.leader().endpoints['http']}/metrics").decode()
        assert "\nomq_broker_leader 1.0\n" in metrics


@pytest.mark.slow
def test_full_servers_are_named_to_publishers_and_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    with (
        nats_servers(tmp_path / "nats", limits="max_file_store: 8MB") as servers,
        broker_cluster(tmp_path, servers, "--http", "127.0.0.1:*") as cluster,
        Client([node.endpoint for node in cluster.nodes], timeout=4 * LEASE_S) as client,
    ):
        client.create("t", persistence="weak")
        leader = cluster.leader()
        with contextlib.suppress(BrokerTimeout):
            client.publish_many("t", [bytes(500_000)] * 100)
        with pytest.raises(BrokerTimeout, match="raise max_file_store"):
            client.publish("t", b"x")
        until(lambda: "free space on the disks of the servers, or raise max_file_store" in leader.log, cluster.logs)
        for node in cluster.nodes:
            http = node.endpoints["http"]
            until(lambda http=http: "max_file_store" in get(f"{http}/healthz").decode())  # type: ignore[misc]
            assert "\nomq_broker_cluster_trouble 1.0\n" in get(f"{http}/metrics").decode()


@pytest.mark.slow
def test_a_node_that_returns_empty_has_everything(cluster: BrokerCluster) -> None:
    with Client([node.endpoint for node in cluster.nodes], timeout=PATIENT_S) as client:
        client.create("t", persistence="weak")
        ids = client.publish_many("t", [b"x"] * 1000)
        leader = cluster.leader()
        leader.kill()
        leader.wipe()
        client.publish("t", b"last")
        leader.start()
        leader.serving()
        with Client(leader.endpoint, role="any", timeout=PATIENT_S) as reader:
            until(lambda: [topic.last for topic in reader.topics()] == [len(ids) + 1])
            assert [message.body for message in reader.read("t")] == [b"x"] * 1000 + [b"last"]


@pytest.mark.slow
def test_brokers_that_lose_power_at_once_continue_from_the_journal(cluster: BrokerCluster) -> None:
    bodies = [b"%d" % number for number in range(20_000)]
    with Client([node.endpoint for node in cluster.nodes], timeout=PATIENT_S) as client:
        client.create("t", persistence="weak")
        begun = threading.Event()

        def published() -> Iterator[bytes]:
            for number, body in enumerate(bodies):
                if number == 15_000:
                    begun.set()
                yield body

        def lose_power() -> None:
            begun.wait(PATIENT_S)
            for node in cluster.nodes:
                node.kill()
            for node in cluster.nodes:
                node.lose_power()
                node.start()

        failing = threading.Thread(target=lose_power)
        failing.start()
        ids = client.publish_many("t", published(), in_flight=500)
        failing.join()
        assert ids == list(range(1, len(bodies) + 1))
        for node in cluster.nodes:
            assert "replica/strong: the power was lost" in node.log
            with Client(node.endpoint, role="any", timeout=PATIENT_S) as reader:
                until(lambda reader=reader: [topic.last for topic in reader.topics()] == [len(bodies)])  # type: ignore[misc]
                assert [message.body for message in reader.read("t")] == bodies


@pytest.mark.slow
def test_an_orderly_end_hands_over(cluster: BrokerCluster) -> None:
    with Client([node.endpoint for node in cluster.nodes], timeout=PATIENT_S) as client:
        client.create("t", persistence="weak")
        for number in range(2):
            leader = cluster.leader()
            assert client.publish("t", b"%d" % number) == number + 1
            assert leader.end() == 0
        assert client.publish("t", b"2") == 3
