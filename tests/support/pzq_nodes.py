"""Nodes of a cluster as processes of one machine, at 127.0.0.1, .2 and .3."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from omq.errors import ReceiveTimeout
from omq.pzq import Consumer, Producer
from tests.support.fork_server import ForkedProcess
from tests.support.libzmq_pzq_clients import figures
from tests.support.optional_packages import require
from tests.support.ports import held
from tests.support.waits import until

require("lmdb")  # each node has its store on disk

ROOT = Path(__file__).parents[2]
MAIN = "from omq.cli.main import main; main()"
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
TIMEOUT_S = 1.0  # after which a node counts as silent


class Node:
    """One node.

    Args:
        number: Which one.
        ports: Of its receive, send, monitor and broadcast endpoints, and that of dead letters if it has one.
        directory: Where it keeps things.
        options: More of the command's.
        hosts: The addresses of all.
        inside: What the directory is called by the node.
        wrap: What makes the command one that runs on the node's host.
    """

    def __init__(
        self,
        number: int,
        ports: list[int],
        directory: Path,
        options: list[str],
        hosts: tuple[str, ...] = HOSTS,
        inside: Path | None = None,
        wrap: Callable[..., list[str]] | None = None,
    ) -> None:
        self.host = hosts[number]
        self.wrap = wrap
        endpoints = [f"tcp://{self.host}:{port}" for port in ports]
        self.receive, self.send, self.monitor, self.broadcast, *rest = endpoints
        self.dead_letter = rest[0] if rest else ""
        options = [*options, *(f"--dead-letter-dsn={endpoint}" for endpoint in rest)]
        self.database = directory / f"node{number}"
        self.log = directory / f"node{number}.log"
        others = ",".join(f"tcp://{host}:{ports[0]}" for host in hosts if host != self.host)
        self._ready = directory / f"ready{number}"
        inside = directory if inside is None else inside
        self._arguments = (
            *("pzq", "--database", str(inside / self.database.name)),
            *("--receive-dsn", self.receive, "--send-dsn", self.send, "--monitor-dsn", self.monitor),
            *("--broadcast-dsn", self.broadcast, "--nodes", others, "--ready-file", str(inside / self._ready.name)),
            *("--timeout-nodes", str(int(TIMEOUT_S * 1e6)), "--timeout-replication", "2000000"),
            *("--reaper-frequency", "100000", *options),
        )
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def unwrap(self) -> None:
        """From its next start on it runs by itself."""
        self.wrap = None

    def start(self, wait: bool = True) -> None:
        with self.log.open("ab") as log:
            if self.wrap is None:
                self.process = ForkedProcess("-c", MAIN, *self._arguments, stderr=log, stdout=log)
            else:
                command = self.wrap(sys.executable, "-c", MAIN, *self._arguments)
                self.process = subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=log)
        if wait:
            self.serves()

    def serves(self) -> None:
        process = self.process
        assert process is not None
        until(lambda: self._ready.exists() or process.poll() is not None, "the node serves")
        assert process.poll() is None, self.log.read_text()

    def kill(self, number: int = signal.SIGKILL) -> None:
        process = self.process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            process.wait(20)
        self.process = None
        self._ready.unlink(missing_ok=True)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def figures(self) -> dict[str, Any]:
        return figures(self.monitor)


@contextmanager
def cluster(directory: Path, *options: str, dead_letters: bool = False) -> Iterator[list[Node]]:
    """Three nodes that reach each other."""
    with ExitStack() as kept:
        ports = [kept.enter_context(held(*HOSTS)) for _ in range(4 + dead_letters)]
        nodes = [Node(number, ports, directory, list(options)) for number in range(3)]
        kept.enter_context(running(nodes))
        whole(nodes)
        yield nodes


@contextmanager
def running(nodes: list[Node]) -> Iterator[None]:
    """Starts nodes, and ends them."""
    try:
        for node in nodes:
            node.start(wait=False)
        for node in nodes:
            node.serves()
        yield
    except BaseException:
        for node in nodes:
            sys.stderr.write(f"--- {node.host}\n{node.log.read_text() if node.log.exists() else ''}\n")
        raise
    finally:
        for node in nodes:
            node.kill()


def whole(nodes: list[Node]) -> None:
    """Waits until all are alive."""
    until(lambda: all(node.figures()["nodes_alive"] == 3 for node in nodes), "all nodes are alive")


def have(nodes: list[Node], replicas: int) -> None:
    """Waits until each node has a number of replicas."""
    until(lambda: all(node.figures()["replicas"] == replicas for node in nodes), f"{replicas} replicas each")


def produce(node: Node, *bodies: bytes) -> None:
    with Producer(node.receive, timeout=15) as producer:
        producer.send_many(bodies)


def consume(node: Node, count: int) -> list[bytes]:
    """Takes a number of messages, and acknowledges them."""
    found = []
    with Consumer(node.send) as consumer:
        for _ in range(count):
            delivery = consumer.recv(timeout=20)
            found.append(delivery.body)
            delivery.ack()
    return found


def take(nodes: list[Node], ended: Callable[[list[bytes]], bool]) -> list[bytes]:
    """Takes and acknowledges what any node delivers, until that is all."""
    found: list[bytes] = []
    with ExitStack() as kept:
        consumers = [kept.enter_context(Consumer(node.send)) for node in nodes]
        while not ended(found):
            for consumer in consumers:
                with suppress(ReceiveTimeout):
                    delivery = consumer.recv(timeout=0.1)
                    found.append(delivery.body)
                    delivery.ack()
    return sorted(found)


def empty(nodes: list[Node], seconds: float = 20.0) -> None:
    """Waits until nothing is left anywhere."""

    def holds() -> bool:
        return all(node.figures()["messages"] == 0 for node in nodes)

    try:
        until(holds, "all is acknowledged everywhere", seconds)
    except AssertionError:
        raise AssertionError(json.dumps([node.figures() for node in nodes])) from None
