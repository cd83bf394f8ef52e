"""Clusters of brokers on servers of NATS: the leader, its followers, and the takeover after the leader is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omq.broker import Client, NotLeader
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.nats_servers import nats_servers
from tests.support.waits import until

pytestmark = [pytest.mark.xdist_group("nats"), pytest.mark.timeout(180)]


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
        until(lambda: [topic.last for topic in reader.topics("t")] == [1000])
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
