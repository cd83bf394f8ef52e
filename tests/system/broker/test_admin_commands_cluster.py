"""`omq topic`, `omq durable` and `omq group` on a cluster, at the endpoint of any of its brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from omq.broker import Client
from omq.cli.main import main
from tests.support.cluster_servers import ClusterServers, cluster_servers
from tests.support.waits import until
from tests.system.broker.test_admin_commands import Commands, bodies

pytestmark = pytest.mark.timeout(120)

#: The endpoints that a command gets.
GIVEN: dict[str, Callable[[str, str], str]] = {
    "leader": lambda leader, follower: leader,
    "follower": lambda leader, follower: follower,
    "unreachable and follower": lambda leader, follower: f"tcp://127.0.0.1:1, {follower}",
}


class Running:
    """A cluster in a loop of its own, as commands need the main thread.

    Args:
        directory: Where the directories of the brokers are.
    """

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._servers = cluster_servers(directory)
        self.cluster: ClusterServers = self.run(self._servers.__aenter__())
        self.leader = self.run(self.cluster.leader())
        (self.follower,) = (node for node in self.cluster.nodes if node is not self.leader)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(60)

    @property
    def endpoints(self) -> tuple[str, str]:
        """The endpoints of the leader and of the follower."""
        return self.leader.endpoint, self.follower.endpoint

    def close(self) -> None:
        try:
            self.run(self._servers.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    try:
        yield running
    finally:
        running.close()


def use(commands: Commands, leader: str) -> None:
    """Runs commands of each kind on a cluster, and asserts what they do."""
    with Client(leader, timeout=20.0) as client:
        use_topics(commands)
        use_readers(commands, client)
        use_dead_letters(commands, client)
        assert commands.json("topic", "delete", "t", "--yes")["deleted"]
        assert "'t'" in commands.fails("topic", "info", "t")


def use_topics(commands: Commands) -> None:
    created = commands.json("topic", "create", "t", "max_age=60", "--persistence", "weak")
    assert (created["persistence"], created["settings"]) == ("weak", {"max_age": 60})
    altered = commands.json("topic", "alter", "t", "max_age=none", "max_messages=100")
    assert altered["settings"] == {"max_messages": 100}
    assert commands.json("topic", "info", "t") == altered
    assert [one["name"] for one in commands.json("topic", "ls")] == ["t"]
    assert "'t'" in commands.fails("topic", "create", "t", "--delivery", "round-robin", "--persistence", "weak")

    assert commands.json("topic", "publish", "t", "--lines", input=b"a\nb\nc\n")["last"] == 3
    assert bodies(commands.rows("topic", "peek", "t", "--start", "2")) == ["b", "c"]
    assert bodies(commands.rows("topic", "tail", "t", "--from", "earliest", "--limit", "3")) == ["a", "b", "c"]
    assert commands.json("topic", "purge", "t", "--up-to", "1", "--yes")["dropped"] == 1


def use_readers(commands: Commands, client: Client) -> None:
    client.subscribe("t", name="d", replay="earliest").close()
    assert [(one["name"], one["lag"]) for one in commands.json("durable", "ls", "t")] == [("d", 2)]
    assert commands.json("durable", "seek", "t", "d", "2")["position"] == 2
    assert commands.json("durable", "delete", "t", "d", "--yes")["deleted"]
    assert client.durables("t") == []

    client.consume("t", group="g", replay="earliest").close()
    assert [(one["name"], one["lag"]) for one in commands.json("group", "ls", "t")] == [("g", 2)]
    assert commands.json("group", "seek", "t", "g", "2")["lag"] == 1
    assert commands.json("group", "delete", "t", "g", "--yes")["deleted"]
    assert client.groups("t") == []


def use_dead_letters(commands: Commands, client: Client) -> None:
    client.create("jobs", delivery="round-robin", persistence="weak", max_deliveries=1, retry_delay=0)
    client.publish("jobs", b"job")
    with client.consume("jobs") as consumer:
        consumer.recv(timeout=20).nack()
        client.flush()
        while not commands.json("topic", "requeue", "jobs.dead", "--yes")["moved"]:
            pass
        assert consumer.recv(timeout=20).body == b"job"


@pytest.mark.parametrize("given", GIVEN)
def test_commands_of_each_kind_are_executed_by_the_leader(running: Running, given: str) -> None:
    use(Commands(GIVEN[given](*running.endpoints)), running.leader.endpoint)


def test_a_tail_goes_on_at_the_next_leader(running: Running) -> None:
    commands = Commands(",".join(running.endpoints))
    commands.run("topic", "create", "t", "--persistence", "weak")
    commands.run("topic", "publish", "t", "before")

    def change() -> None:
        with Client(running.endpoints, timeout=60.0) as client:
            until(lambda: client.topics("t")[0].subscribers > 0)
            running.run(running.leader.server.close())
            client.publish("t", b"after")

    changing = threading.Thread(target=change)
    changing.start()
    rows = commands.rows("topic", "tail", "t", "--from", "earliest", "--limit", "2")
    changing.join()
    assert bodies(rows) == ["before", "after"]


def test_without_a_leader_the_error_names_the_endpoints(running: Running) -> None:
    for node in running.cluster.nodes:
        node.journal.faults.part()
    words = ["topic", "create", "t", "--timeout", "2", "--broker", ",".join(running.endpoints)]
    result = CliRunner().invoke(main, words)
    (line,) = result.output.splitlines()
    assert result.exit_code == 1
    for endpoint in running.endpoints:
        assert f"{endpoint}: a follower of the cluster 'test', which has no leader now" in line
