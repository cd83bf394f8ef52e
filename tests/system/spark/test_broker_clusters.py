"""Topics of a cluster of brokers, in and out, whose leader is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from omq.broker import Client
from tests.support.broker_cluster import BrokerCluster, Node, broker_cluster
from tests.support.nats_servers import NatsServers, nats_servers
from tests.support.waits import until
from tests.system.spark.topic_io import bodies, read, sink, stream, written

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(420)]

#: Seconds that a query has for the rows of one takeover.
BOUND_S: Final = 90.0
#: Seconds of a call that outlives a takeover.
PATIENT_S: Final = 60.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsServers]:
    (tmp_path / "nats").mkdir()
    with nats_servers(tmp_path / "nats", sync_always=True) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, servers: NatsServers) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, servers, "--servers-sync") as brokers:
        yield brokers


@pytest.fixture
def client(cluster: BrokerCluster) -> Iterator[Client]:
    with Client([node.endpoint for node in cluster.nodes], timeout=PATIENT_S) as client:
        yield client


def url_of(cluster: BrokerCluster) -> str:
    return ",".join(node.endpoint for node in cluster.nodes)


class Feed:
    """Publishes numbers until it is stopped.

    Args:
        cluster: The brokers.
        topic: The topic.
    """

    def __init__(self, cluster: BrokerCluster, topic: str) -> None:
        self.count = 0
        self._endpoints = [node.endpoint for node in cluster.nodes]
        self._topic = topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Client(self._endpoints, timeout=PATIENT_S) as client:
            while not self._stopped.wait(0.02):
                client.publish_many(self._topic, [b"%d" % n for n in range(self.count, self.count + 20)])
                self.count += 20

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def kill_leader(cluster: BrokerCluster, client: Client, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Kills the leader, waits until another broker has published rows of the query, and starts the former again."""
    former = cluster.leader()
    former.kill()
    meanwhile()
    cluster.leader(former)
    (before,) = client.topics("out")
    grows(client, before.last)
    restart(former)


def grows(client: Client, last: int) -> None:
    """Waits until the query has published rows."""
    until(lambda: client.topics("out")[0].last > last, bound=BOUND_S)


def restart(node: Node) -> None:
    node.start()
    node.serving()


@pytest.mark.parametrize("persistence", ["strong", "weak"])
def test_a_query_copies_each_row_once_while_leaders_are_killed(
    spark: Any,
    cluster: BrokerCluster,
    servers: NatsServers,
    client: Client,
    started: list[Any],
    tmp_path: Path,
    persistence: Any,
) -> None:
    client.create("in", persistence=persistence)
    client.create("out", persistence=persistence)
    url = url_of(cluster)

    def start(connect: str) -> Any:
        frame = stream(
            spark, connect, topic="in", startingOffsets="earliest", subscription="copy", minPartitions=2, timeout=60
        )
        query = sink(frame.select("value"), url, tmp_path / "checkpoint", topic="out", timeout=60).start()
        started.append(query)
        return query

    feed = Feed(cluster, "in")
    try:
        query = start(url)
        grows(client, 0)
        kill_leader(cluster, client)
        kill_leader(cluster, client, servers[0].kill)  # a machine with both
        servers[0].start()
        kill_leader(cluster, client)
        query.stop()

        # The query continues from its checkpoint at another broker, which has the same topics.
        former = cluster.leader()
        former.kill()
        heir = cluster.leader(former)
        query = start(heir.endpoint)
        grows(client, client.topics("out")[0].last)
    finally:
        feed.stop()
    until(lambda: client.topics("out")[0].last >= feed.count, bound=BOUND_S)
    query.processAllAvailable()
    assert query.exception() is None
    query.stop()
    assert [int(body) for body in bodies(client, "in")] == list(range(feed.count))
    assert sorted(map(int, bodies(client, "out"))) == list(range(feed.count))
    (durable,) = client.durables("in")
    assert (durable.name, durable.lag) == ("copy", 0)


def test_a_batch_is_read_at_the_endpoint_of_any_broker(spark: Any, cluster: BrokerCluster, client: Client) -> None:
    client.create("in")
    client.publish_many("in", [b"%d" % number for number in range(1000)])
    for node in cluster.nodes:
        frame = read(spark, node.endpoint, topic="in", minPartitions=2)
        assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(1000))


def test_a_batch_is_written_once_though_the_leader_is_killed(
    spark: Any, cluster: BrokerCluster, client: Client
) -> None:
    client.create("in")
    client.create("out")
    client.publish_many("in", [b"%d" % number for number in range(1000)])
    rows = read(spark, url_of(cluster), topic="in", minPartitions=40, timeout=60).select("value")

    def kill() -> None:
        until(lambda: finished_tasks(spark) >= 4, bound=BOUND_S)
        (out,) = client.topics("out")
        assert out.last == 0
        cluster.leader().kill()

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill)
        written(rows, url_of(cluster), topic="out", timeout=60)
        killed.result()
    assert sorted(map(int, bodies(client, "out"))) == list(range(1000))


class Gate:
    """A stage that keeps the task of the first partition at one of its batches, until a file exists.

    Args:
        reached: The path of a file that it makes there.
        opened: The path of the file that it waits for.
        at_end: It waits after the last batch, not after the first one.
    """

    def __init__(self, reached: str, opened: str, *, at_end: bool) -> None:
        self._reached = reached
        self._opened = opened
        self._at_end = at_end

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        held = context is not None and context.partitionId() == 0
        for batch in batches:
            yield batch
            if held and not self._at_end:
                self._wait()
                held = False
        if held:
            self._wait()

    def _wait(self) -> None:
        Path(self._reached).touch()
        end = time.monotonic() + BOUND_S
        while not Path(self._opened).exists() and time.monotonic() < end:
            time.sleep(0.02)


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("moment", ["before the start", "while tasks read", "after a task has staged"])
def test_a_first_microbatch_outlives_the_machine_of_the_leader(
    spark: Any,
    cluster: BrokerCluster,
    servers: NatsServers,
    client: Client,
    started: list[Any],
    tmp_path: Path,
    moment: str,
) -> None:
    client.create("in")
    client.create("out")
    client.publish_many("in", [b"%d" % number for number in range(1000)])
    reached, opened, checkpoint = (tmp_path / name for name in ("reached", "opened", "checkpoint"))
    gate = Gate(str(reached), str(opened), at_end=moment == "after a task has staged")
    options = {"startingOffsets": "earliest", "minPartitions": 2, "batchBytes": "1k", "timeout": 60}
    frame = stream(spark, url_of(cluster), topic="in", **options).select("value")
    writer = sink(frame.mapInArrow(gate, frame.schema), url_of(cluster), checkpoint, topic="out", timeout=60)

    def kill() -> None:
        former = cluster.leader()
        former.kill()
        servers[cluster.nodes.index(former)].kill()

    if moment == "before the start":
        kill()
        opened.touch()
    query = writer.start()
    started.append(query)
    if moment != "before the start":
        until(reached.exists, bound=BOUND_S)
        if moment == "after a task has staged":
            until(lambda: finished_tasks(spark) >= 1, bound=BOUND_S)
        kill()
        assert not (checkpoint / "commits" / "0").exists()
        opened.touch()
    until(lambda: client.topics("out")[0].last >= 1000 or not query.isActive, bound=BOUND_S)
    query.processAllAvailable()
    assert query.exception() is None
    assert sorted(map(int, bodies(client, "out"))) == list(range(1000))


def finished_tasks(spark: Any) -> int:
    """Returns the number of tasks that have finished in running jobs."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
