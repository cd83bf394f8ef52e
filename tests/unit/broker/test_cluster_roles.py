"""Brokers of a cluster: what the leader and its followers answer, and what ends with a role."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import lmdb
import pytest

import omq.asyncio
from omq._core import blocks
from omq.broker import protocol as p
from omq.broker.errors import BrokerError
from omq.broker.sexp import Client as SexpClient
from omq.broker.zmtp.session import ClientSession
from omq.store.replication.replica import ReplicatedStore
from tests.support.async_waits import until
from tests.support.cluster_servers import ClusterServer, ClusterServers, cluster_servers
from tests.support.waits import until as until_blocking

RECORDS = blocks.encode([b"one"])
TIMEOUT_S = 20.0
#: The commands that a follower executes for all topics but transient ones.
OF_FOLLOWERS = {"HELLO", "BYE", "PING", "FLUSH", "READ", "OFFSET_AFTER", "OFFSET_AT", "TOPICS", "SUBSCRIBE"}
#: Those without an answer, of readers that a follower does not have.
OF_READERS = {"CREDIT", "POSITION", "CANCEL", "ACK", "NACK", "PROGRESS", "RETURN"}


class RawClient:
    """A client that sends and receives single messages.

    Args:
        node: The broker.
    """

    def __init__(self, node: ClusterServer) -> None:
        self._socket = omq.asyncio.DEALER(connect=node.endpoint, linger=0)
        self._tags = 0
        self._id = secrets.token_hex(16)

    async def hello(self) -> dict[str, Any]:
        """Returns the content of WELCOME."""
        command, _, about = await self.ask(b"HELLO", j(version=1, client=self._id))
        assert command == p.WELCOME
        found: dict[str, Any] = json.loads(about)
        return found

    async def send(self, command: bytes, *parts: bytes, tag: bytes = b"") -> bytes:
        """Sends a request; returns its tag."""
        self._tags += 1
        tag = tag or b"%d" % self._tags
        await self._socket.send_multipart([command, tag, *parts])
        return tag

    async def recv(self) -> list[bytes]:
        async with asyncio.timeout(TIMEOUT_S):
            found: list[bytes] = await self._socket.recv_multipart()
        return found

    async def ask(self, command: bytes, *parts: bytes) -> list[bytes]:
        """Sends a request, and returns the next message."""
        await self.send(command, *parts)
        return await self.recv()

    async def close(self) -> None:
        await self._socket.close()


@asynccontextmanager
async def client(node: ClusterServer) -> AsyncIterator[RawClient]:
    raw = RawClient(node)
    await raw.hello()
    try:
        yield raw
    finally:
        await raw.close()


@asynccontextmanager
async def leader_and_follower(
    directory: Path, **options: Any
) -> AsyncIterator[tuple[ClusterServers, ClusterServer, ClusterServer]]:
    async with cluster_servers(directory, **options) as cluster:
        leader = await cluster.leader()
        (follower,) = [node for node in cluster.nodes if node is not leader]
        await until(lambda: follower.server._member is not None and follower.server._member.leader())
        yield cluster, leader, follower


def j(**what: Any) -> bytes:
    return json.dumps(what).encode()


async def create(raw: RawClient, name: str, **arguments: Any) -> None:
    answer = await raw.ask(p.CREATE, j(name=name, **{"persistence": "weak", **arguments}))
    assert answer[0] == p.CREATED, answer


async def followed(node: ClusterServer, name: str, last: int = 0) -> None:
    """Waits until a follower has a topic with this newest id."""
    await until(lambda: (topic := node.server.broker.topics.get(name)) is not None and topic.readable == last)


def test_a_follower_serves_reads(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            leader_and_follower(tmp_path) as (_, leader, follower),
            client(leader) as first,
            client(follower) as second,
        ):
            expected = {"name": "test", "leader": [leader.endpoint], "members": [leader.endpoint, follower.endpoint]}
            for raw, node, role in ((first, leader, "leader"), (second, follower, "follower")):
                about = (await raw.hello())["cluster"]
                about["members"].sort(key=[leader.endpoint, follower.endpoint].index)
                assert about == {**expected, "node": node.name, "role": role, "trouble": ""}
            await create(first, "t")
            await create(first, "jobs", delivery="round-robin")
            assert (await first.ask(p.APPEND, b"t", RECORDS))[0] == p.PUBLISHED
            await followed(follower, "t", 1)
            await second.send(p.SUBSCRIBE, b"t", j(replay="earliest"), tag=b"s")
            assert (await second.recv())[:2] == [p.SUBSCRIBED, b"s"]
            assert (await second.recv())[:2] == [p.BLOCK, b"s"]
            assert (await second.ask(p.READ, b"t", *map(p.u64, (1, 0)), p.u32(1000)))[0] == p.RANGE
            assert (await second.ask(p.OFFSET_AT, b"t", p.u64(0)))[0] == p.OFFSET
            assert (await second.ask(p.OFFSET_AFTER, b"t", *map(p.u64, (1, 0, 1))))[0] == p.OFFSET
            listed = json.loads((await second.ask(p.TOPICS))[2])
            assert [(topic["name"], topic["last"]) for topic in listed] == [("jobs", 0), ("t", 1)]
            assert (await second.ask(p.PING))[0] == p.PONG
            assert (await second.ask(p.FLUSH))[0] == p.FLUSHED
            stats = follower.server.broker.stats()
            assert stats["cluster"] is not None
            assert stats["cluster"]["role"] == "follower"
            assert stats["journal_position"] > 0

    asyncio.run(run())


def test_a_follower_refuses_all_else(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            leader_and_follower(tmp_path) as (_, leader, follower),
            client(leader) as first,
            client(follower) as second,
        ):
            await create(first, "t")
            await create(first, "volatile", persistence="transient")
            await followed(follower, "volatile")
            commands = {command.decode() for command in ClientSession._HANDLERS}
            for command in sorted(commands - OF_FOLLOWERS - OF_READERS):
                answer = await second.ask(command.encode(), b"t", b"{}")
                assert answer[2] == b"not-leader", (command, answer)
                assert leader.endpoint.encode() in answer[3]
            for command, parts in (
                (p.SUBSCRIBE, (b"t", j(name="durable"))),
                (p.SUBSCRIBE, (b"volatile", j())),
                (p.READ, (b"volatile", *map(p.u64, (1, 0)), p.u32(1000))),
                (p.OFFSET_AT, (b"volatile", p.u64(0))),
            ):
                answer = await second.ask(command, *parts)
                assert answer[2] == b"not-leader", (command, answer)
            assert follower.server.broker.refused["not-leader"] > 10

    asyncio.run(run())


def test_a_follower_has_the_topics_of_the_leader(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            leader_and_follower(tmp_path) as (_, leader, follower),
            client(leader) as first,
            client(follower) as second,
        ):
            await create(first, "t")
            await followed(follower, "t")
            assert (await second.ask(p.SUBSCRIBE, b"t", b"{}"))[0] == p.SUBSCRIBED
            assert (await first.ask(p.ALTER, j(name="t", settings={"max_age": 60})))[0] == p.ALTERED
            await until(lambda: follower.server.broker.topics["t"].settings == {"max_age": 60})
            assert (await first.ask(p.DELETE, b"t"))[0] == p.DELETED
            command, _, code, text = await second.recv()
            assert (command, code, text) == (p.ERROR, b"topic", b"topic 't' was deleted")
            assert follower.server.broker.topics == {}
            await create(first, "t")
            assert (await first.ask(p.APPEND, b"t", RECORDS))[0] == p.PUBLISHED
            await followed(follower, "t", 1)

    asyncio.run(run())


def test_a_leader_whose_clock_was_stopped_answers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with leader_and_follower(tmp_path) as (_, leader, _), client(leader) as raw:
            await create(raw, "t")
            await create(raw, "jobs", delivery="round-robin")
            assert (await raw.ask(p.APPEND, b"t", RECORDS))[0] == p.PUBLISHED
            assert (await raw.ask(p.CONSUME, b"jobs", j(credit=10)))[0] == p.CONSUMING
            member = leader.server._member
            assert member is not None
            store = member._store
            assert store is not None
            # It has still the role, as its thread does not know that time has passed.
            monkeypatch.setattr(store, "is_leader_now", lambda: False)
            for command, parts, code in (
                (p.READ, (b"t", *map(p.u64, (1, 0)), p.u32(1000)), b"busy"),
                (p.OFFSET_AT, (b"t", p.u64(0)), b"busy"),
                (p.TOPICS, (), b"busy"),
                (p.TOPICS, (b"missing",), b"not-leader"),
                (p.SUBSCRIBE, (b"t", j(replay="earliest")), b"not-leader"),
                (p.CREATE, (j(name="t"),), b"not-leader"),
            ):
                answer = await raw.ask(command, *parts)
                assert answer[2] == code, (command, answer)
            about = (await raw.hello())["cluster"]
            assert (about["role"], about["leader"]) == ("follower", [])
            assert leader.server.broker.summary()["cluster"] == about
            # What the journal has acknowledged is true, and is answered; nothing is delivered.
            assert (await raw.ask(p.APPEND, b"jobs", RECORDS))[0] == p.PUBLISHED
            assert (await raw.ask(p.PING))[0] == p.PONG
            monkeypatch.undo()
            assert (await raw.recv())[0] == p.JOBS

    asyncio.run(run())


def test_everything_of_a_leader_ends_with_its_lease(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            leader_and_follower(tmp_path) as (cluster, leader, follower),
            client(leader) as raw,
            client(leader) as other,
        ):
            await create(raw, "t")
            await create(raw, "jobs", delivery="round-robin")
            await create(raw, "full", settings={"max_messages": 1, "overflow": "block", "retention": "read"})
            for name in (b"jobs", b"full"):
                assert (await raw.ask(p.APPEND, name, RECORDS))[0] == p.PUBLISHED
            await raw.send(p.CONSUME, b"jobs", j(credit=10), tag=b"c")
            assert [(await raw.recv())[0] for _ in range(2)] == [p.CONSUMING, p.JOBS]
            durable = await raw.send(p.SUBSCRIBE, b"t", j(name="durable"))
            assert (await raw.recv())[0] == p.SUBSCRIBED
            await raw.send(p.SUBSCRIBE, b"t", j(), tag=b"s")
            assert (await raw.recv())[0] == p.SUBSCRIBED
            leader.journal.faults.part()
            waiting = await other.send(p.APPEND, b"full", RECORDS)  # for room
            publishing = await other.send(p.APPEND, b"t", RECORDS)  # for the journal
            creating = await other.send(p.CREATE, j(name="new"))
            await raw.send(p.ACK, p.u64(1) + p.u64(1), tag=b"c")
            # The subscriptions that are not durable continue.
            ended = [await raw.recv() for _ in range(3)]
            assert {answer[1] for answer in ended} == {b"c", durable, b""}
            assert all(answer[0] == p.ERROR and answer[2] == b"not-leader" for answer in ended)
            answers = [await other.recv() for _ in range(4)]
            assert {answer[1] for answer in answers} == {waiting, publishing, creating, b""}
            assert all(answer[0] == p.ERROR and answer[2] == b"not-leader" for answer in answers)
            # The ack was lost: a flush must not confirm it. It concerns this client alone.
            assert (await raw.ask(p.FLUSH))[2] == b"not-leader"
            assert (await raw.ask(p.FLUSH))[0] == p.FLUSHED
            assert await cluster.leader(leader) is follower
            async with client(follower) as heir:
                await heir.send(p.CONSUME, b"jobs", j(credit=10), tag=b"c")
                assert [(await heir.recv())[0] for _ in range(2)] == [p.CONSUMING, p.JOBS]
                # It still reads what it has.
                assert (await raw.ask(p.READ, b"jobs", *map(p.u64, (1, 0)), p.u32(1000)))[0] == p.RANGE
                leader.journal.faults.heal()
                assert (await heir.ask(p.APPEND, b"t", RECORDS))[0] == p.PUBLISHED
                assert (await raw.recv())[:2] == [p.BLOCK, b"s"]
                await followed(leader, "t", follower.server.broker.topics["t"].last)
            assert {topic.name for topic in leader.server.broker.topics.values()} == {"t", "jobs", "full"}

    asyncio.run(run())


def test_a_subscription_outlives_the_promotion_of_its_broker(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            leader_and_follower(tmp_path) as (cluster, leader, follower),
            client(leader) as first,
            client(follower) as second,
        ):
            await create(first, "t")
            await followed(follower, "t")
            await second.send(p.SUBSCRIBE, b"t", j(), tag=b"s")
            assert (await second.recv())[0] == p.SUBSCRIBED
            leader.journal.faults.part()
            assert await cluster.leader(leader) is follower
            tag = await second.send(p.APPEND, b"t", RECORDS)
            answers = [await second.recv() for _ in range(2)]
            assert sorted(answer[:2] for answer in answers) == [[p.BLOCK, b"s"], [p.PUBLISHED, tag]]
            (subscription,) = follower.server.broker.topics["t"].subscriptions()
            assert subscription["position"] == 1

    asyncio.run(run())


def test_the_leader_makes_the_declared_topics(tmp_path: Path) -> None:
    async def run() -> None:
        topics = ["t:broadcast:strong", "jobs:round-robin:weak:max_deliveries=3"]
        async with leader_and_follower(tmp_path, topics=topics) as (_, leader, follower):
            for node in (leader, follower):
                await followed(node, "t")
                await followed(node, "jobs")
                assert node.server.broker.topics["jobs"].settings == {"max_deliveries": 3}

    asyncio.run(run())


def test_strong_topics_need_servers_that_sync(tmp_path: Path) -> None:
    async def run() -> None:
        async with leader_and_follower(tmp_path, servers_sync=False) as (_, leader, _), client(leader) as raw:
            answer = await raw.ask(p.CREATE, j(name="t", persistence="strong"))
            assert answer[2] == b"topic"
            assert b"sync_interval: always" in answer[3]
            await create(raw, "t")

    asyncio.run(run())


def test_a_durable_subscription_and_a_group_move_to_the_next_leader(tmp_path: Path) -> None:
    async def run() -> None:
        async with leader_and_follower(tmp_path) as (cluster, leader, follower):
            async with client(leader) as raw:
                await create(raw, "t")
                assert (await raw.ask(p.APPEND, b"t", blocks.encode([b"1", b"2", b"3"])))[0] == p.PUBLISHED
                await raw.send(p.SUBSCRIBE, b"t", j(name="durable", replay="earliest"), tag=b"s")
                assert {(await raw.recv())[0] for _ in range(2)} == {p.SUBSCRIBED, p.BLOCK}
                await raw.send(p.CONSUME, b"t", j(group="workers", replay="earliest", credit=10), tag=b"g")
                assert [(await raw.recv())[0] for _ in range(2)] == [p.CONSUMING, p.JOBS]
                await raw.send(p.POSITION, p.u64(1), tag=b"s")
                await raw.send(p.ACK, p.u64(1) + p.u64(2), tag=b"g")
                assert (await raw.ask(p.FLUSH))[0] == p.FLUSHED
                leader.journal.faults.part()
                assert await cluster.leader(leader) is follower
            async with client(follower) as raw:
                assert json.loads((await raw.ask(p.DURABLES, b"t"))[2])[0]["position"] == 1
                assert json.loads((await raw.ask(p.GROUPS, b"t"))[2])[0]["lag"] == 1
                await raw.send(p.CONSUME, b"t", j(group="workers", credit=10), tag=b"g")
                assert (await raw.recv())[0] == p.CONSUMING
                _, _, header, _, _ = await raw.recv()
                assert blocks.read_header(header)[:2] == (3, 1)

    asyncio.run(run())


def test_a_follower_that_loads_a_snapshot_keeps_its_subscriptions(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            leader_and_follower(tmp_path) as (_, leader, follower),
            client(leader) as first,
            client(follower) as second,
        ):
            await create(first, "t")
            await followed(follower, "t")
            await second.send(p.SUBSCRIBE, b"t", j(), tag=b"s")
            assert (await second.recv())[0] == p.SUBSCRIBED
            core = follower.server.broker
            member = follower.server._member
            assert member is not None
            member.loaded()  # as the store calls it
            assert follower.server.broker is not core
            assert (await first.ask(p.APPEND, b"t", RECORDS))[0] == p.PUBLISHED
            assert (await second.recv())[:2] == [p.BLOCK, b"s"]

    asyncio.run(run())


def test_s_expressions_know_the_roles(tmp_path: Path) -> None:
    async def run() -> None:
        async with leader_and_follower(tmp_path, sexp="tcp://127.0.0.1:*") as (_, leader, follower):

            def talk() -> None:
                with (
                    SexpClient(leader.server.endpoints["sexp"]) as first,
                    SexpClient(follower.server.endpoints["sexp"]) as second,
                ):
                    first.create("t", persistence="weak")
                    first.publish("t", b"1")
                    until_blocking(lambda: "t" in follower.server.broker.topics)
                    subscription = second.subscribe("t", replay="earliest")
                    assert subscription.recv(timeout=TIMEOUT_S).body == b"1"
                    for refused in (
                        lambda: second.publish("t", b"2"),
                        lambda: second.create("other", persistence="weak"),
                    ):
                        with pytest.raises(BrokerError) as refusal:
                            refused()
                        assert str(refusal.value).endswith(
                            f"; connect to the --sexp endpoint of the broker {leader.name!r} ({leader.endpoint})"
                        )
                    held = first.subscribe("t")
                    leader.journal.faults.part()
                    with pytest.raises(BrokerError, match="this node has lost its lease"):
                        first.publish("t", b"unknown")
                    until_blocking(lambda: follower.leads)
                    second.publish("t", b"2")
                    leader.journal.faults.heal()
                    for one in (subscription, held):
                        assert one.recv(timeout=TIMEOUT_S).body == b"2"

            await asyncio.to_thread(talk)

    asyncio.run(run())


def test_brokers_that_advertise_the_same_endpoint_are_not_ready(tmp_path: Path) -> None:
    async def run() -> None:
        same = {"advertise": "tcp://broker-1:5565", "http": "127.0.0.1:0"}
        async with cluster_servers(tmp_path, **same) as servers:
            for node, other in (servers.nodes, servers.nodes[::-1]):
                member = node.server.broker.member
                assert member is not None
                await until(lambda member=member: bool(member.trouble))  # type: ignore[misc]
                with pytest.raises(HTTPError) as answer:
                    await asyncio.to_thread(urlopen, f"{node.server.endpoints['http']}/readyz")
                text = answer.value.read().decode()
                assert text.startswith(f"other brokers of the cluster ({other.name}) advertise tcp://broker-1:5565 too")

    asyncio.run(run())


def test_dead_letters_stay_replicated_or_local(tmp_path: Path) -> None:
    async def run() -> None:
        async with leader_and_follower(tmp_path) as (_, leader, _), client(leader) as raw:
            await create(raw, "dead")
            jobs = {"delivery": "round-robin", "settings": {"max_deliveries": 1, "dead_letter": "dead"}}
            answer = await raw.ask(p.CREATE, j(name="local", persistence="transient", **jobs))
            assert answer[2] == b"topic"
            assert b"dead_letter='dead' has persistence='weak'" in answer[3]
            await create(raw, "jobs", **jobs)

    asyncio.run(run())


def test_a_broker_without_space_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise lmdb.MapFullError("no space")

    async def run() -> None:
        async with cluster_servers(tmp_path, count=1) as cluster:
            leader = await cluster.leader()
            async with client(leader) as raw:
                await create(raw, "t")
                store = leader.server.broker.store.store
                assert isinstance(store, ReplicatedStore)
                monkeypatch.setattr(store._local.store._entry_writer, "_try", fail)
                monkeypatch.setattr(store._local.store._entry_writer.environment, "grow", fail)
                await raw.send(p.CREATE, j(name="other", persistence="weak"))
                await until(lambda: store.stalled)
                async with asyncio.timeout(TIMEOUT_S):
                    await leader.server.close()

    asyncio.run(run())
