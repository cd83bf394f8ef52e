"""Large messages in a cluster of brokers: they take longer than the lease, and the leader keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omq.broker import Client
from tests.fault.history_brokers import BROKER_PORT, CLIENTS, host_context
from tests.support.broker_cluster import BrokerCluster, Node, broker_cluster
from tests.support.nats_servers import NatsServers, nats_servers
from tests.support.network_namespaces import Hosts, Unavailable, enter
from tests.support.waits import until
from tests.system.broker.server_process import MAIN
from tests.system.replication.nats_journals import info, opened

pytestmark = [pytest.mark.xdist_group("nats"), pytest.mark.timeout(300), pytest.mark.slow]

LEASE_S = 1.0
MIB = 1 << 20
TIMEOUT_S = 60.0


def terms(brokers: BrokerCluster) -> int:
    """Returns the last term of a cluster."""
    return max(int(found) for found in re.findall(r" in term (\d+)", brokers.logs()))


class SmallPublisher:
    """Publishes small messages one after the other.

    Args:
        endpoints: The brokers.

    Attributes:
        seconds: The times that they took.
    """

    def __init__(self, endpoints: list[str]) -> None:
        self.seconds: list[float] = []
        self._endpoints = endpoints
        self._ended = threading.Event()

    def run(self) -> None:
        with Client(self._endpoints, timeout=TIMEOUT_S) as client:
            for number in itertools.count():
                begin = time.monotonic()
                client.publish("small", b"%d" % number)
                self.seconds.append(time.monotonic() - begin)
                if self._ended.wait(0.02):
                    return

    def end(self) -> None:
        self._ended.set()


@contextlib.contextmanager
def small_publisher(endpoints: list[str]) -> Iterator[SmallPublisher]:
    """Publishes small messages until the end of the block; all of them must succeed."""
    publisher = SmallPublisher(endpoints)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(publisher.run)
        try:
            yield publisher
        finally:
            publisher.end()
        running.result()


def journal_bytes(servers: NatsServers) -> int:
    async def main() -> int:
        async with opened(servers, "test", lease=LEASE_S) as journal:
            return int((await info(journal))["state"]["bytes"])

    return asyncio.run(main())


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsServers]:
    (tmp_path / "nats").mkdir()
    with nats_servers(tmp_path / "nats", sync_always=True) as servers:
        yield servers


@pytest.fixture
def lease() -> float:
    return LEASE_S


@pytest.fixture
def brokers(tmp_path: Path, servers: NatsServers, lease: float) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, servers, "--servers-sync", lease=lease) as brokers:
        yield brokers


def test_a_leader_keeps_its_lease_over_large_messages(brokers: BrokerCluster) -> None:
    brokers.leader()
    endpoints = [node.endpoint for node in brokers.nodes]
    bodies = [os.urandom(size * MIB) for size in (1, 8, 32, 60)]
    with Client(endpoints, timeout=TIMEOUT_S) as client:
        for topic in ("large", "small"):
            client.create(topic)
        client.create("local", persistence="transient")
        client.publish("local", b"here")
        term = terms(brokers)
        with small_publisher(endpoints) as small:
            until(lambda: len(small.seconds) > 5)
            for body in bodies:
                del small.seconds[:-1]
                begin = time.monotonic()
                client.publish("large", body)
                took = time.monotonic() - begin
                count = len(small.seconds)
                until(lambda count=count: len(small.seconds) > count)  # type: ignore[misc]
                print(f"{len(body) // MIB} MiB in {took:.2f} s, small ones in {max(small.seconds):.2f} s at most")
                assert max(small.seconds) < took + LEASE_S
        assert terms(brokers) == term, brokers.logs()
        assert [message.body for message in client.read("local")] == [b"here"]
    for node in brokers.nodes:
        with Client(node.endpoint, role="any", timeout=TIMEOUT_S) as reader:
            until(lambda reader=reader: [topic.last for topic in reader.topics("large")] == [4])  # type: ignore[misc]
            assert [message.body for message in reader.read("large")] == bodies


def test_a_large_message_whose_leader_is_killed_is_stored_once(servers: NatsServers, brokers: BrokerCluster) -> None:
    leader = brokers.leader()
    body = os.urandom(60 * MIB)
    with (
        Client([node.endpoint for node in brokers.nodes], timeout=TIMEOUT_S) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        client.create("large")
        before = journal_bytes(servers)
        publishing = threads.submit(client.publish, "large", body)
        until(lambda: journal_bytes(servers) > before + 8 * MIB)
        leader.kill()
        stored = journal_bytes(servers)
        assert not publishing.done()
        assert publishing.result(TIMEOUT_S) == 1
        assert stored < before + 60 * MIB  # it was in the middle
    heir = brokers.leader(leader)
    with Client(heir.endpoint, timeout=TIMEOUT_S) as client:
        assert [message.body for message in client.read("large")] == [body]


@pytest.mark.parametrize("lease", [2.0])
def test_a_large_message_that_is_interrupted_is_stored_once(servers: NatsServers, brokers: BrokerCluster) -> None:
    leader = brokers.leader()
    body = os.urandom(60 * MIB)

    async def interrupt() -> None:
        """Asks for the last sequence, as a broker does that starts."""
        async with opened(servers, "test", lease=LEASE_S) as journal:
            for _ in range(2):
                begin = await journal.size()
                while await journal.size() < begin + 8 * MIB:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await journal.last()

    with Client(leader.endpoint, timeout=TIMEOUT_S) as client, ThreadPoolExecutor(1) as threads:
        client.create("large")
        term, before = terms(brokers), journal_bytes(servers)
        publishing = threads.submit(client.publish, "large", body)
        asyncio.run(asyncio.wait_for(interrupt(), TIMEOUT_S))
        assert publishing.result(TIMEOUT_S) == 1
        assert journal_bytes(servers) > before + 76 * MIB  # twice a beginning, and the message
        assert terms(brokers) == term, brokers.logs()
        assert [message.body for message in client.read("large")] == [body]


def throttle(hosts: Hosts, rate: str) -> None:
    """Limits what each host sends."""
    if not shutil.which("tc"):
        pytest.skip("no tc: apt-get install iproute2")
    for namespace in [*hosts.namespaces.values()][1:]:
        command = ["ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", "wire", "root"]
        shaped = subprocess.run(
            [*command, "tbf", "rate", rate, "burst", "512kb", "latency", "1s"], capture_output=True, check=False
        )
        if shaped.returncode:
            pytest.skip(f"no shaper: {shaped.stderr.decode()}")


@pytest.fixture
def slow_hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Hosts for the clients and three machines, whose networks are slow."""
    try:
        hosts = Hosts(tmp_path, CLIENTS, "m0", "m1", "m2")
    except Unavailable as error:
        pytest.skip(str(error))
    with hosts:
        throttle(hosts, "160mbit")
        yield hosts


def test_a_leader_keeps_its_lease_on_a_slow_network(tmp_path: Path, slow_hosts: Hosts) -> None:
    (tmp_path / "nats").mkdir()
    with nats_servers(tmp_path / "nats", hosts=slow_hosts) as servers, contextlib.ExitStack() as kept:
        nodes = []
        for number in range(3):
            host = f"m{number}"
            program = f"from {enter.__module__} import enter; enter({slow_hosts.namespaces[host]!r}); {MAIN}"
            endpoint = f"tcp://{slow_hosts.addresses[host]}:{BROKER_PORT}"
            folder = tmp_path / f"b{number}"
            nodes.append(Node(f"b{number}", folder, servers, endpoint=endpoint, program=program, lease=LEASE_S))
            kept.callback(nodes[-1].kill)
            nodes[-1].start()
        for node in nodes:
            node.serving()
        brokers = BrokerCluster(nodes)
        leader = brokers.leader()
        context = slow_hosts.call(CLIENTS, host_context)
        kept.callback(context.term, linger=0)
        with Client(leader.endpoint, timeout=TIMEOUT_S, context=context) as client:
            client.create("large", persistence="weak")
            term = terms(brokers)
            begin = time.monotonic()
            client.publish("large", os.urandom(32 * MIB))
            took = time.monotonic() - begin
            client.publish("large", b"after")
        print(f"32 MiB in {took:.2f} s")
        assert took > 2 * LEASE_S
        assert terms(brokers) == term, brokers.logs()
