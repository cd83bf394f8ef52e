"""Replicated stores on servers of NATS: what the leader answers, its followers, and its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from omq._core import blocks
from omq.store.errors import NotLeader
from omq.store.interface import Append, MakeTopic
from omq.store.replication.journal import JournalUnavailable
from omq.store.replication.nats_connection import NatsOptions
from omq.store.replication.nats_journal import NatsJournal
from omq.store.replication.replica import ReplicatedStore
from omq.store.replication.role_machine import ReplicaSettings
from tests.support.nats_servers import NatsServers, nats_servers
from tests.support.open_store import Opened
from tests.support.replicas import dump
from tests.support.waits import until
from tests.system.replication.nats_journals import info, opened

pytestmark = [pytest.mark.xdist_group("nats")]

RECORD = blocks.encode([b"x"])
LEASE_S = 2.0


def start(
    servers: NatsServers, directory: Path, name: str, *, cluster: str = "store", snapshot_bytes: int = 0
) -> Opened:
    async def connect(create: bool) -> NatsJournal:
        options = NatsOptions(servers=servers.urls)
        return await NatsJournal.connect(options, cluster, sync_always=True, lease=LEASE_S, create=create)

    settings = ReplicaSettings(name, (f"tcp://{name}",), snapshot_bytes=snapshot_bytes)
    return Opened(lambda **calls: ReplicatedStore(directory / name, connect, settings, servers_sync=True, **calls))


async def create(servers: NatsServers, cluster: str = "store") -> None:
    async with opened(servers, cluster, sync_always=True, lease=LEASE_S):
        pass


async def first_sequence(servers: NatsServers, cluster: str) -> int:
    async with opened(servers, cluster, sync_always=True, lease=LEASE_S) as journal:
        return int((await info(journal))["state"]["first_seq"])


def test_nodes_have_the_same_state_and_hand_over(servers: NatsServers, tmp_path: Path) -> None:
    asyncio.run(create(servers))
    nodes = [start(servers, tmp_path, name) for name in "ab"]
    try:
        until(lambda: any(node.log.is_leader_now() for node in nodes))
        leader, follower = sorted(nodes, key=lambda node: not node.log.is_leader_now())
        until(lambda: all(node.log.members == {name: [f"tcp://{name}"] for name in "ab"} for node in nodes))
        topic = leader.do(MakeTopic("t", "broadcast", "strong")).topic_id
        writes = [Append(topic, RECORD, 1, b"p", sequence) for sequence in range(1, 2001)]
        leader.log.submit_many(writes)
        until(lambda: all(write.done for write in writes))
        assert [write.first for write in writes] == list(range(1, 2001))
        follower.wait_grown(topic, 2000)
        states = [dump(node.log._local.store) for node in nodes]
        for state in states:
            state.pop(b"a", None)  # the position: a node may stand at another renewal of the lease
        assert states[0] == states[1]
        with pytest.raises(NotLeader):
            follower.do(Append(topic, RECORD, 1))
        leader.log.close()
        until(follower.log.is_leader_now, bound=LEASE_S)
        repeated = follower.do(Append(topic, RECORD, 1, b"p", 2000))
        assert (repeated.duplicate, repeated.first) == (True, 2000)
        assert follower.do(Append(topic, RECORD, 1, b"p", 2001)).first == 2001
    finally:
        for node in nodes:
            node.log.close()


@pytest.mark.slow
def test_leaders_in_turn_truncate_the_journal(servers: NatsServers, tmp_path: Path) -> None:
    asyncio.run(create(servers, "turns"))
    nodes = [start(servers, tmp_path, name, cluster="turns", snapshot_bytes=100_000) for name in "ab"]
    try:
        until(lambda: any(node.log.is_leader_now() for node in nodes))
        first, second = sorted(nodes, key=lambda node: not node.log.is_leader_now())
        topic = first.do(MakeTopic("t", "broadcast", "weak")).topic_id
        record = blocks.encode([bytes(20_000)])

        def fill(node: Opened, finished: Callable[[], object]) -> None:
            while not finished():
                node.do(Append(topic, record, 1))

        async def snapshot() -> int:
            async with opened(servers, "turns", sync_always=True, lease=LEASE_S) as journal:
                with contextlib.suppress(JournalUnavailable):  # its stream has no leader yet
                    return await journal._snapshots.position() or 0
            return 0

        fill(first, lambda: asyncio.run(snapshot()))
        first.log.close()
        position, begin = asyncio.run(snapshot()), asyncio.run(first_sequence(servers, "turns"))
        assert begin <= position
        until(second.log.is_leader_now)
        found = [begin]
        fill(second, lambda: found.append(asyncio.run(first_sequence(servers, "turns"))) or found[-1] > begin)
        assert found[-1] == position + 1
        nodes.append(start(servers, tmp_path, "c", cluster="turns"))
        until(lambda: nodes[-1].grown.get(topic) == second.log.topic(topic).last)
    finally:
        for node in nodes:
            node.log.close()


def test_a_new_node_joins_after_a_purge(servers: NatsServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.store.replication.role_machine.CHECK_INTERVAL_S", 0.5)
    asyncio.run(create(servers, "purged"))

    async def purge() -> None:
        async with opened(servers, "purged", sync_always=True, lease=LEASE_S) as journal:
            await journal._connection.call(f"STREAM.PURGE.{journal._stream}")

    nodes = [start(servers, tmp_path, "a", cluster="purged", snapshot_bytes=1 << 30)]
    try:
        until(nodes[0].log.is_leader_now)
        topic = nodes[0].do(MakeTopic("t", "broadcast", "weak")).topic_id
        nodes[0].do(Append(topic, RECORD, 1))
        asyncio.run(purge())
        nodes.append(start(servers, tmp_path, "b", cluster="purged"))
        nodes[1].wait_grown(topic, 1)
        until(lambda: not nodes[1].log.trouble)
    finally:
        for node in nodes:
            node.log.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("round", range(20))
def test_nodes_start_at_once_with_their_servers(round: int, tmp_path: Path) -> None:
    with nats_servers(tmp_path) as servers:
        nodes = [start(servers, tmp_path, name, cluster="new") for name in "abc"]
        try:
            until(lambda: any(node.log.is_leader_now() for node in nodes), lambda: [node.log.trouble for node in nodes])
            leader = next(node for node in nodes if node.log.is_leader_now())
            topic = leader.do(MakeTopic("t", "broadcast", "strong")).topic_id
            leader.do(Append(topic, RECORD, 1))
            for node in nodes:
                node.wait_grown(topic, 1)
            assert [node.log.broken for node in nodes] == [None] * 3
        finally:
            for node in nodes:
                node.log.close()
