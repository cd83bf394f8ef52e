"""Sends files through three nodes of a cluster, and kills the one that receives them: `make demo-pzq`."""

import hashlib
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

import omq
from child_processes import OmqServer, free_ports
from demo_commands import SETTINGS, choose_files, directory_option, reporter, scratch_folder
from file_blocks import FileSet, read_blocks
from omq.cli.parameters import FiniteFloat
from omq.errors import OmqError, Timeout
from omq.pzq import Consumer, NotReplicated, Producer

HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
NODE_TIMEOUT_S: Final = 1.5  # without a heartbeat, until a node is dead to the others
CONSUME_SHARE: Final = 0.3  # of the messages, until the consumers start
KILL_SHARE: Final = 0.5  # of the messages, until the owner is killed
WORK_SHARE: Final = 0.75  # of the sending time: the consumers' work on all messages, so that some are left at the kill
RESTART_DELAY_S: Final = 4.0
DEMO_TIMEOUT_S: Final = 50.0
BATCH_MESSAGES: Final = 100
NUMBER: Final = struct.Struct(">Q")


class ClusterNode:
    """A node of the cluster, which may be killed and started again.

    Args:
        folder: The directory of its data and its log.
        host: Its address.
        ports: Of its receive, send, monitor and broadcast endpoints.
    """

    def __init__(self, folder: Path, host: str, ports: list[int]) -> None:
        self.host = host
        self.receive, self.send, self.monitor, broadcast = (f"tcp://{host}:{port}" for port in ports)
        self._folder = folder
        others = ",".join(f"tcp://{other}:{ports[0]}" for other in HOSTS if other != host)
        self._arguments: list[str | Path] = [
            *("pzq", "--database", folder / host, "--replicas", "1"),
            *("--receive-dsn", self.receive, "--send-dsn", self.send, "--monitor-dsn", self.monitor),
            *("--broadcast-dsn", broadcast, "--nodes", others, "--timeout-nodes", f"{NODE_TIMEOUT_S * 1e6:.0f}"),
            *("--timeout-replication", "2000000"),
        ]

    def start(self) -> OmqServer:
        """Starts it."""
        return OmqServer(f"node {self.host}", self._folder, *self._arguments)

    def stats(self) -> dict[str, int]:
        """Returns its counters; nothing if it does not answer."""
        with omq.DEALER(connect=self.monitor, linger=0) as monitor:
            try:
                monitor.send_multipart([b"MONITOR"], timeout=1.0)
                lines = monitor.recv_multipart(timeout=1.0)[-1].decode().splitlines()
            except Timeout:
                return {}
        return {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}


class FileTransfer:
    """The producer, which sends files to one node, and the consumers of all nodes.

    Args:
        file_set: The files.
        seconds: The time for sending them; it may take longer.

    Attributes:
        total: The number of messages.
        acknowledged: Numbers of those that are stored and replicated.
        unreplicated: The number of those that are stored, and were not replicated in time.
        delivered: Messages that came for the first time.
        twice: Messages that came again.
        wrong: Messages whose bytes are not those that were sent.
        by_node: Deliveries of each node.
        error: The error that has ended a thread.
        sent: True once all messages are sent.
    """

    def __init__(self, file_set: FileSet, seconds: float) -> None:
        self.total = len(file_set.digests)
        self.acknowledged: set[int] = set()
        self.unreplicated = self.twice = self.wrong = 0
        self.delivered: set[int] = set()
        self.by_node: dict[str, int] = {}
        self._stock = file_set
        self._pause = seconds * BATCH_MESSAGES / max(self.total, 1)
        self._work = seconds * WORK_SHARE / max(self.total, 1)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self.error: Exception | None = None
        self.sent = False

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Calls a method in a thread."""

        def run() -> None:
            try:
                work(*arguments)
            except (OmqError, OSError) as error:
                self.error = error

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Ends the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(2.0)

    def produce(self, endpoint: str) -> None:
        """Sends all blocks; after a restart of the node the producer itself sends again what is not acknowledged."""
        with Producer(endpoint, timeout=DEMO_TIMEOUT_S) as producer:
            for first, bodies in self._batches():
                refused: tuple[int, ...] = ()
                try:
                    producer.send_many(bodies)
                except NotReplicated as error:
                    refused = error.indexes
                self.unreplicated += len(refused)
                self.acknowledged.update(first + index for index in range(len(bodies)) if index not in refused)
                if self._stopped.wait(self._pause):
                    return
        self.sent = True

    def _batches(self) -> Iterator[tuple[int, list[bytes]]]:
        first, bodies = 0, []
        for number, data in enumerate(self._blocks()):
            bodies.append(NUMBER.pack(number) + data)
            if len(bodies) == BATCH_MESSAGES:
                yield first, bodies
                first, bodies = number + 1, []
        if bodies:
            yield first, bodies

    def _blocks(self) -> Iterator[bytes]:
        for file in self._stock.files:
            for data in read_blocks(file, self._stock.block):
                if data is None:
                    raise OSError(f"{file.path} has changed while it was read")
                yield data

    def consume(self, node: ClusterNode) -> None:
        """Consumes what a node delivers, and checks it."""
        with Consumer(node.send, prefetch=50) as consumer:
            while not self._stopped.is_set():
                try:
                    delivery = consumer.recv(timeout=0.2)
                except Timeout:
                    continue
                number = NUMBER.unpack_from(delivery.body)[0]
                digest = hashlib.sha256(delivery.body[NUMBER.size :]).digest()
                with self._lock:
                    self.by_node[node.host] = self.by_node.get(node.host, 0) + 1
                    self.wrong += number >= self.total or digest != self._stock.digests[number]
                    self.twice += number in self.delivered
                    self.delivered.add(number)
                delivery.ack()
                time.sleep(self._work)

    @property
    def lost(self) -> int:
        """The number of messages that were acknowledged to the producer, and came to no consumer."""
        return len(self.acknowledged - self.delivered)


def run(file_set: FileSet, folder: Path, seconds: float, report: Callable[[str], None]) -> FileTransfer:
    """Runs the nodes, the producer and the consumers, and kills the node that the producer sends to.

    Raises:
        ChildError: A node does not serve in time, or ends early.
        OmqError: The producer or a consumer has failed.
        TimeoutError: The producer does not come to its end in time.
    """
    end = time.monotonic() + DEMO_TIMEOUT_S
    stream = FileTransfer(file_set, seconds)

    def until(condition: Callable[[], bool]) -> None:
        while not condition() and time.monotonic() < end:
            if stream.error is not None:
                raise stream.error
            time.sleep(0.05)

    ports = free_ports(HOSTS, 4)
    nodes = [ClusterNode(folder, host, ports) for host in HOSTS]
    owner = nodes[0]
    with ExitStack() as servers, closing(stream):
        first = [servers.enter_context(node.start()) for node in nodes]
        for server in first:
            server.endpoints()
        until(lambda: all(node.stats().get("nodes_alive") == len(nodes) for node in nodes))
        report(f"three nodes are connected; a producer sends to {owner.host}, one replica is asked for")
        stream.start(stream.produce, owner.receive)
        until(lambda: len(stream.acknowledged) >= CONSUME_SHARE * stream.total)
        for node in nodes:
            stream.start(stream.consume, node)
        until(lambda: len(stream.acknowledged) >= KILL_SHARE * stream.total)
        first[0].kill()
        killed = time.monotonic()
        before = dict(stream.by_node)
        report(f"{owner.host} is killed (SIGKILL): {len(stream.acknowledged):,} acknowledged, {progress(stream)}")
        until(lambda: time.monotonic() > killed + RESTART_DELAY_S)
        gained = {host: count - before.get(host, 0) for host, count in stream.by_node.items()}
        by = ", ".join(f"{count:,} by {host}" for host, count in sorted(gained.items()) if count and host != owner.host)
        report(f"meanwhile the others have delivered {by or 'nothing, as nothing was left'}")
        servers.enter_context(owner.start()).endpoints()
        report(f"{owner.host} serves again, {time.monotonic() - killed:.1f} s after its death")
        until(lambda: stream.sent)
        until(lambda: not stream.lost and all(node.stats().get("messages") == 0 for node in nodes))
        report(f"all is sent: {progress(stream)}")
        if not stream.sent:
            raise TimeoutError(f"the producer has not come to its end within {DEMO_TIMEOUT_S:.0f} s")
    return stream


def progress(stream: FileTransfer) -> str:
    """Returns the progress as text."""
    return f"{len(stream.delivered):,} of {stream.total:,} delivered"


def table(stream: FileTransfer, block: int) -> Table:
    """Returns the result as a table."""
    out = Table(title=f"{block // 1024} KiB, three nodes, one killed")
    out.add_column("")
    out.add_column("messages", justify="right")
    out.add_row("acknowledged", f"{len(stream.acknowledged):,}")
    if stream.unreplicated:
        out.add_row("stored, not replicated in time", f"{stream.unreplicated:,}")
    out.add_row("delivered", f"{len(stream.delivered):,}")
    for host, count in sorted(stream.by_node.items()):
        out.add_row(f"  by {host}", f"{count:,}")
    out.add_row("delivered twice", f"{stream.twice:,}")
    out.add_row("wrong bytes", f"{stream.wrong:,}")
    out.add_row("lost", f"{stream.lost:,}")
    return out


@click.command(context_settings=SETTINGS)
@directory_option
@click.option("--seconds", type=FiniteFloat(1, 20), default=8.0, show_default=True, help="What sending takes at least.")
@click.option("--limit", type=click.IntRange(1, 200), default=40, show_default=True, help="MB to send at most.")
@click.option("--block", type=click.IntRange(1, 1024), default=8, show_default=True, help="KiB in a message.")
def demo_pzq(directory: Path | None, seconds: float, limit: int, block: int) -> None:
    """Stream files through three nodes that replicate, and kill the node that receives them in the middle.

    The owner is killed with SIGKILL; another node delivers what it has left until it is back. Nothing that was
    acknowledged may be missing. It ends by itself within a minute.
    """
    console = Console()
    with scratch_folder() as folder:
        file_set = choose_files(directory, block, limit, console)
        stream = run(file_set, folder, seconds, reporter(console))
    console.print(table(stream, block * 1024))
    if stream.lost or stream.wrong:
        raise click.ClickException("what was delivered is not what was acknowledged")
    console.print("all that was acknowledged was delivered, and every digest is right", highlight=False)


if __name__ == "__main__":
    demo_pzq()
