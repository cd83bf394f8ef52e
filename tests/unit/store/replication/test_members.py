"""The knowledge of the nodes of a cluster about each other, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from omq.store.replication.members import ANNOUNCE_INTERVAL_S, MAX_MEMBERS, MAX_SILENT_INTERVALS, Members
from tests.model.virtual_loop import VirtualLoop
from tests.support.memory_journal import MemoryJournal, NodeJournal

FORGOTTEN_S = (MAX_SILENT_INTERVALS + 2) * ANNOUNCE_INTERVAL_S


class Node:
    """A node that announces itself."""

    def __init__(self, servers: MemoryJournal, name: str) -> None:
        self.journal: NodeJournal = servers.node()
        self.members = Members(name, (f"tcp://{name}:1", f"ipc://{name}"))
        self.task = asyncio.ensure_future(self.members.run(self.journal))

    @property
    def known(self) -> list[str]:
        return sorted(self.members.endpoints)


def run(test: Callable[[MemoryJournal], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await test(MemoryJournal())

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()


def test_nodes_know_each_other_at_once() -> None:
    async def test(servers: MemoryJournal) -> None:
        first = Node(servers, "a")
        assert first.members.endpoints == {"a": ["tcp://a:1", "ipc://a"]}
        await asyncio.sleep(1.0)
        second = Node(servers, "b")
        await asyncio.sleep(0.01)
        assert first.members.endpoints == second.members.endpoints
        assert first.members.endpoints == {node: [f"tcp://{node}:1", f"ipc://{node}"] for node in "ab"}

    run(test)


def test_a_silent_node_is_forgotten_until_it_announces_itself_again() -> None:
    async def test(servers: MemoryJournal) -> None:
        first, second = Node(servers, "a"), Node(servers, "b")
        await asyncio.sleep(FORGOTTEN_S)
        assert first.known == second.known == ["a", "b"]
        second.journal.faults.part()
        await asyncio.sleep((MAX_SILENT_INTERVALS - 2) * ANNOUNCE_INTERVAL_S)
        assert first.known == ["a", "b"]
        await asyncio.sleep(4 * ANNOUNCE_INTERVAL_S)
        assert first.known == ["a"]
        assert second.known == ["b"]
        second.journal.faults.heal()
        await asyncio.sleep(ANNOUNCE_INTERVAL_S)
        assert first.known == second.known == ["a", "b"]

    run(test)


def test_new_endpoints_of_a_node_replace_the_old_ones() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers, "a")
        for port in (1, 2):
            await servers.node().announce(json.dumps({"node": "b", "endpoints": [f"tcp://b:{port}"]}).encode())
            await asyncio.sleep(0.01)
        assert node.members.endpoints["b"] == ["tcp://b:2"]

    run(test)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[" * 4000,
        b"[]",
        b"1",
        b'{"node": "b"}',
        b'{"node": "b", "endpoints": 1}',
        b'{"node": "a", "endpoints": ["tcp://other:1"]}',
        json.dumps({"node": "b", "endpoints": ["tcp://" + "x" * 5000]}).encode(),
    ],
)
def test_an_invalid_announcement_is_ignored(payload: bytes) -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers, "a")
        await asyncio.sleep(0.01)
        await servers.node().announce(payload)
        await asyncio.sleep(0.01)
        assert node.members.endpoints == {"a": ["tcp://a:1", "ipc://a"]}
        Node(servers, "c")
        await asyncio.sleep(0.01)
        assert node.known == ["a", "c"]

    run(test)


def test_the_number_of_nodes_is_bounded() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers, "a")
        await asyncio.sleep(0.01)
        for number in range(2 * MAX_MEMBERS):
            await servers.node().announce(json.dumps({"node": f"n{number}", "endpoints": []}).encode())
        await asyncio.sleep(0.01)
        assert len(node.known) == MAX_MEMBERS + 1
        await asyncio.sleep(FORGOTTEN_S)
        assert node.known == ["a"]

    run(test)


def test_nodes_with_the_same_endpoint_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def test(servers: MemoryJournal) -> None:
        first = Node(servers, "a")
        others = [Members(name, ("tcp://a:1",), exclusive=name != "c") for name in "bc"]
        running = [asyncio.ensure_future(other.run(servers.node())) for other in others]
        await asyncio.sleep(2 * ANNOUNCE_INTERVAL_S)
        advice = "so that clients do not find the leader: give each broker endpoints of its own (--advertise)"
        assert first.members.conflict == f"other brokers of the cluster (b, c) advertise tcp://a:1 too, {advice}"
        assert others[0].conflict == f"other brokers of the cluster (a, c) advertise tcp://a:1 too, {advice}"
        assert others[1].conflict == ""
        for task in running:
            task.cancel()
        await asyncio.sleep(FORGOTTEN_S)
        assert first.members.conflict == ""

    run(test)
    texts = [record.getMessage() for record in caplog.records]
    assert any(text.startswith("node a: other brokers of the cluster (b) advertise tcp://a:1") for text in texts)
    assert len(texts) == len(set(texts))


def test_another_node_with_the_same_id_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def test(servers: MemoryJournal) -> None:
        first = Node(servers, "a")
        namesake = Members("a", ("tcp://other:1",))
        running = asyncio.ensure_future(namesake.run(servers.node()))
        await asyncio.sleep(3 * ANNOUNCE_INTERVAL_S)
        assert first.members.endpoints == {"a": ["tcp://a:1", "ipc://a"]}
        running.cancel()

    run(test)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2  # one of each
    assert any("at tcp://other:1, has the id a of this one" in text for text in texts)
