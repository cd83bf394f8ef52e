"""Devices of a cluster, on a journal in memory: the leader serves, and the next one has all messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from omq.asyncio.pzq import Consumer, Device, Producer, ProduceTimeout
from omq.errors import UsageError
from omq.serving import cluster_member
from omq.serving.cluster import Cluster
from omq.store.errors import StoreError
from tests.support.async_waits import until
from tests.support.memory_journal import JournalThread, RemoteJournal
from tests.support.ports import held

pytestmark = pytest.mark.timeout(60)

LEASE_S = 0.6


class Node:
    """A device of a cluster.

    Args:
        servers: The servers of the journal.
        directory: Its directory.
        ports: The ports of its endpoints for producers, consumers and consumers of dead letters.
        options: More arguments of the device.
    """

    def __init__(self, servers: JournalThread, directory: Path, ports: list[int], options: dict[str, Any]) -> None:
        self.journal: RemoteJournal = servers.node()
        self.journal.faults.timeout = 0.2
        self.receive, self.send, self.dead_letter = (f"tcp://127.0.0.1:{port}" for port in ports)
        cluster = Cluster(name="test", servers="nats://memory", servers_sync=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster_member, "_nats", lambda *_: self._connect)
            self.device = Device(
                directory,
                receive=self.receive,
                send=self.send,
                dead_letter=self.dead_letter,
                cluster=cluster,
                **options,
            )
        self.leads = False
        self.device.on_role = self._take_role

    async def _connect(self, create: bool) -> RemoteJournal:
        return self.journal

    def _take_role(self, leads: bool) -> None:
        self.leads = leads


class Nodes:
    """The devices of a cluster.

    Args:
        nodes: The devices.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    async def leader(self, *others: Node) -> Node:
        """Waits until a device serves that is not one of these, and returns it."""
        await until(lambda: any(node.leads for node in self.nodes if node not in others))
        return next(node for node in self.nodes if node.leads and node not in others)

    def producer(self, **options: Any) -> Producer:
        return Producer([node.receive for node in self.nodes], **{"timeout": 30.0, **options})

    def consumer(self) -> Consumer:
        return Consumer([node.send for node in self.nodes], recv_timeout=30.0)

    def dead_letters(self) -> Consumer:
        return Consumer([node.dead_letter for node in self.nodes], recv_timeout=30.0)


@asynccontextmanager
async def devices(directory: Path, count: int = 2, **options: Any) -> AsyncIterator[Nodes]:
    """Runs devices of a cluster in this loop until the end of the block."""
    servers = JournalThread()
    servers.servers.lease = LEASE_S
    with ExitStack() as kept:
        ports = [[kept.enter_context(held()) for _ in range(3)] for _ in range(count)]
        nodes = [Node(servers, directory / f"d{number}", ports[number], options) for number in range(count)]
        try:
            await asyncio.gather(*(node.device.start() for node in nodes))
            yield Nodes(nodes)
        finally:
            await asyncio.gather(*(node.device.close() for node in nodes))
            servers.close()


async def is_open(endpoint: str) -> bool:
    """Returns whether an endpoint accepts connections."""
    host, _, port = endpoint.removeprefix("tcp://").partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@pytest.mark.parametrize("hard_sync", [False, True])
@pytest.mark.parametrize("end", ["closed", "parted"])
def test_the_next_leader_delivers_what_was_acknowledged_to_producers(tmp_path: Path, hard_sync: bool, end: str) -> None:
    async def run() -> None:
        async with (
            devices(tmp_path, hard_sync=hard_sync) as cluster,
            cluster.producer() as producer,
            cluster.consumer() as consumer,
        ):
            leader = await cluster.leader()
            (follower,) = (node for node in cluster.nodes if node is not leader)
            assert await is_open(leader.receive)
            assert not await is_open(follower.receive)
            assert not await is_open(follower.send)
            await producer.send_many([b"%d" % number for number in range(10)])
            first = [await consumer.recv() for _ in range(4)]
            for delivery in first[:3]:
                delivery.ack()
            await until(lambda: leader.device.stats()["messages"] == 7)

            if end == "closed":
                await leader.device.close()
            else:
                leader.journal.faults.part()
            assert await cluster.leader(leader) is follower
            assert not await is_open(leader.receive)
            await producer.send(b"10")
            # Messages that the former leader has sent come first. None comes twice.
            rest = {}
            for _ in range(8):
                delivery = await consumer.recv()
                delivery.ack()
                rest[int(delivery.body)] = delivery.key
            assert sorted(rest) == list(range(3, 11))
            assert rest[3] == first[3].key
            await until(lambda: follower.device.stats()["messages"] == 0)

            if end == "parted":
                leader.journal.faults.heal()
                await follower.device.close()
                assert await cluster.leader(follower) is leader
                assert leader.device.stats()["messages"] == 0

    asyncio.run(run())


def test_a_message_is_stored_once_though_its_answer_is_lost(tmp_path: Path) -> None:
    async def run() -> None:
        async with devices(tmp_path) as cluster, cluster.producer() as producer, cluster.consumer() as consumer:
            leader = await cluster.leader()
            leader.journal.faults.answers_pass = False  # it is in the journal, and the leader does not know
            sent = asyncio.create_task(producer.send(b"once"))
            await cluster.leader(leader)
            await sent
            await producer.send(b"next")
            assert [(await consumer.recv()).body for _ in range(2)] == [b"once", b"next"]
            leader.journal.faults.heal()

    asyncio.run(run())


def test_dead_letters_are_those_of_the_cluster(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            devices(tmp_path, max_deliveries=1) as cluster,
            cluster.producer() as producer,
            cluster.consumer() as consumer,
        ):
            leader = await cluster.leader()
            await producer.send(b"bad")
            (await consumer.recv()).nack()
            await until(lambda: leader.device.stats()["dead_letters"] == 1)
            await leader.device.close()
            follower = await cluster.leader(leader)
            async with cluster.dead_letters() as dead_letters:
                delivery = await dead_letters.recv()
                assert delivery.body == b"bad"
                delivery.ack()
                await until(lambda: follower.device.stats()["dead_letters"] == 0)

    asyncio.run(run())


def test_without_a_leader_nothing_is_acknowledged(tmp_path: Path) -> None:
    async def run() -> None:
        async with devices(tmp_path) as cluster, cluster.producer(timeout=2.0) as producer:
            await cluster.leader()
            for node in cluster.nodes:
                node.journal.faults.part()
            with pytest.raises(ProduceTimeout):
                await producer.send(b"lost")
            assert not any(node.leads for node in cluster.nodes)
            assert [node.device.stats()["leader"] for node in cluster.nodes] == [False, False]
            for node in cluster.nodes:
                node.journal.faults.heal()
            await producer.send(b"kept", timeout=30)

    asyncio.run(run())


def test_a_directory_belongs_to_a_device_with_or_without_a_cluster(tmp_path: Path) -> None:
    async def run() -> None:
        async with Device(tmp_path / "d0"):
            pass
        with pytest.raises(StoreError, match="cluster"):
            async with devices(tmp_path, count=1):
                pass
        async with devices(tmp_path / "others", count=1):
            pass
        with pytest.raises(StoreError, match="cluster"):
            await Device(tmp_path / "others" / "d0").start()

    asyncio.run(run())


def test_a_leader_whose_port_is_in_use_tries_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with devices(tmp_path, count=1) as cluster:
            (node,) = cluster.nodes
            await cluster.leader()
            node.journal.faults.part()
            await until(lambda: not node.leads)
            occupied = await asyncio.start_server(lambda *_: None, "127.0.0.1", int(node.send.rpartition(":")[2]))
            node.journal.faults.heal()
            await until(lambda: "cannot serve as the leader" in caplog.text)
            assert not node.leads
            assert not await is_open(node.receive)
            occupied.close()
            await occupied.wait_closed()
            await cluster.leader()
            assert await is_open(node.receive)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"receive": "tcp://127.0.0.1:*"}, "receive"),
        ({"send": "tcp://127.0.0.1:0"}, "send"),
        ({"dead_letter": "tcp://127.0.0.1:*"}, "dead_letter"),
        ({"hard_sync": True}, "hard_sync"),
        ({"nodes": ["tcp://127.0.0.1:3"], "broadcast": "tcp://127.0.0.2:3"}, "nodes"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: dict[str, Any], argument: str) -> None:
    given = {"receive": "tcp://127.0.0.1:1", "send": "tcp://127.0.0.1:2", **options}
    with pytest.raises(UsageError, match=f"^{argument}") as raised:
        Device(tmp_path, cluster=Cluster(name="test", servers="nats://127.0.0.1:1"), **given)
    assert raised.value.argument == argument


def test_the_name_of_a_cluster_leaves_room_for_that_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="60 characters"):
        Device(
            tmp_path,
            receive="tcp://127.0.0.1:1",
            send="tcp://127.0.0.1:2",
            cluster=Cluster(name="n" * 61, servers="nats://127.0.0.1:1"),
        )
