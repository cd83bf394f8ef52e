"""Three nodes on hosts of their own, whose network is cut."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.network_namespaces import Hosts, Unavailable
from tests.support.pzq_nodes import ROOT, Node, running

pytestmark = pytest.mark.timeout(120)
NAMES = ("one", "two", "three")
PORTS = [11131, 11132, 11134, 11133]


class Net:
    """Nodes, a client on the host of each, and the network between them."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        addresses = tuple(hosts.addresses[name] for name in NAMES)
        self.nodes = [
            Node(
                number,
                PORTS,
                hosts.folder / name / "tmp",
                ["--replicas", "1"],
                addresses,
                Path("/tmp"),
                lambda *command, name=name: hosts.command(name, *command),  # type: ignore[misc]
            )
            for number, name in enumerate(NAMES)
        ]
        self._clients: dict[int, subprocess.Popen[str]] = {}

    def close(self) -> None:
        """Ends the clients."""
        for client in self._clients.values():
            client.kill()
            client.communicate()

    def ask(self, number: int, *what: Any) -> Any:
        """Has a client do something on a node's host."""
        if number not in self._clients:
            command = self.hosts.command(NAMES[number], sys.executable, "-m", "tests.system.pzq.remote_client")
            self._clients[number] = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        client = self._clients[number]
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(json.dumps(what) + "\n")
        client.stdin.flush()
        answer = client.stdout.readline()
        assert answer, "the client has ended"
        return json.loads(answer)

    def produce(self, number: int, *bodies: str) -> str:
        result: str = self.ask(number, "produce", self.nodes[number].receive, bodies, 10)
        return result

    def consume(self, number: int, count: int, timeout: float = 10) -> list[str]:
        found: list[str] = self.ask(number, "consume", self.nodes[number].send, count, timeout)
        return found

    def wait(self, number: int, name: str, value: int) -> None:
        """Waits until a counter of a node has a value."""
        self.ask(number, "wait", self.nodes[number].monitor, name, value)

    def cut(self, one: int, other: int, *, back: bool = False) -> None:
        """Nothing gets from one host to another any more, or it does again."""
        namespace, address = self.hosts.namespaces[NAMES[one]], self.hosts.addresses[NAMES[other]]
        verb = "del" if back else "add"
        subprocess.run(["ip", "-n", namespace, "route", verb, "blackhole", f"{address}/32"], check=True, timeout=10)

    def whole(self) -> None:
        """Waits until all nodes are alive."""
        for number in range(3):
            self.wait(number, "nodes_alive", 3)

    def empty(self) -> None:
        """Waits until nothing is left."""
        for number in range(3):
            self.wait(number, "messages", 0)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    try:
        hosts = Hosts(tmp_path, *NAMES)
    except Unavailable as error:
        pytest.skip(str(error))
    with hosts, closing(Net(hosts)) as made, running(made.nodes):
        made.whole()
        yield made


@pytest.mark.slow
def test_two_against_one(net: Net) -> None:
    assert net.produce(0, "a", "b", "c") == "stored"
    for other in (1, 2):
        net.cut(0, other)
        net.cut(other, 0)
    assert net.consume(1, 1) == ["a"]  # by the majority
    assert net.consume(0, 1, timeout=1) == []
    assert net.produce(0, "alone") == "not replicated"
    assert net.produce(2, "together") == "stored"
    for other in (1, 2):
        net.cut(0, other, back=True)
        net.cut(other, 0, back=True)
    net.whole()
    assert net.consume(0, 3) == ["b", "c", "alone"]
    assert net.consume(2, 1) == ["together"]
    net.empty()


@pytest.mark.slow
def test_a_node_that_receives_nothing_from_the_owner_does_not_take_over(net: Net) -> None:
    assert net.produce(0, "a", "b") == "stored"
    net.cut(0, 1)
    net.wait(1, "nodes_alive", 2)  # the second does not receive from the first
    assert net.consume(1, 1, timeout=2) == []
    assert net.consume(0, 1) == ["a"]
    assert net.produce(0, "c") == "stored"
    net.cut(0, 1, back=True)
    net.whole()
    assert net.consume(0, 2) == ["b", "c"]
    net.empty()


@pytest.mark.slow
def test_an_owner_that_receives_from_all_and_reaches_no_node_delivers_nothing(net: Net) -> None:
    assert net.produce(0, "a", "b") == "stored"
    net.cut(0, 1)
    net.cut(0, 2)
    assert net.consume(1, 1) == ["a"]
    assert net.consume(0, 1, timeout=1) == []
    net.cut(0, 1, back=True)
    net.cut(0, 2, back=True)
    net.whole()
    assert net.consume(0, 1) == ["b"]
    net.empty()
