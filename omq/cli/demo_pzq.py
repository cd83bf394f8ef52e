"""`omq demo-pzq`: files through three nodes of a cluster, the one that takes them killed in the middle."""

import contextlib
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Final, Self

import click
from rich.console import Console
from rich.table import Table

import omq
from omq.cli.blocks import Stock, read_blocks
from omq.cli.demo import chosen
from omq.cli.number import Finite
from omq.errors import OmqError, Timeout
from omq.pzq import Consumer, NotReplicated, Producer

HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SILENCE: Final = 1.5  # seconds after which a node is silent
CONSUME_AT: Final = 0.3  # of the messages: the consumers come
KILL_AT: Final = 0.5  # of the messages: the owner is killed
WORK: Final = 0.75  # of the time of the sending: what consumers would take for all messages, so that some are left
AWAY: Final = 4.0  # seconds that it stays dead
ALL: Final = 50.0  # seconds after which the demo ends in any case
BATCH: Final = 100  # messages that are sent at a time
LOG_SHOWN: Final = 2000  # characters
NUMBER: Final = struct.Struct(">Q")


def node(arguments: list[str]) -> None:
    """A child: a node that ends when its standard input does, so that it does not outlive the demo."""
    from omq.cli.pzq import pzq

    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    pzq(arguments)


class NodeProcess:
    """A node, which may be killed and started again.

    Args:
        folder: Where its things are.
        host: Its address.
        ports: Of its receive, send, monitor and broadcast endpoints.
    """

    def __init__(self, folder: Path, host: str, ports: list[int]) -> None:
        self.host = host
        self.receive, self.send, self.monitor, broadcast = (f"tcp://{host}:{port}" for port in ports)
        self._ready, self._log = folder / f"{host}.ready", folder / f"{host}.log"
        others = ",".join(f"tcp://{other}:{ports[0]}" for other in HOSTS if other != host)
        self._arguments = [
            *("--database", str(folder / host), "--ready-file", str(self._ready), "--replicas", "1"),
            *("--receive-dsn", self.receive, "--send-dsn", self.send, "--monitor-dsn", self.monitor),
            *("--broadcast-dsn", broadcast, "--nodes", others, "--timeout-nodes", f"{SILENCE * 1e6:.0f}"),
            *("--timeout-replication", "2000000"),
        ]
        self._process: Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it."""
        code = f"import sys; sys.path[:] = {sys.path!r}; from omq.cli import demo_pzq; demo_pzq.node(sys.argv[1:])"
        with self._log.open("ab") as log:
            self._process = Popen(
                [sys.executable, "-c", code, *self._arguments],
                stdin=PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the parent's affair alone
            )

    @property
    def serves(self) -> bool:
        """Whether it serves.

        Raises:
            ClickException: It has ended.
        """
        assert self._process is not None
        if self._process.poll() is not None:
            raise click.ClickException(f"node {self.host} has ended:\n{self._log.read_text()[-LOG_SHOWN:]}")
        return self._ready.exists()

    def kill(self) -> None:
        """Kills it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._ready.unlink(missing_ok=True)

    def figures(self) -> dict[str, int]:
        """What it tells of itself; nothing if it is dead."""
        with omq.DEALER(connect=self.monitor, linger=0) as asking:
            try:
                asking.send_multipart([b"MONITOR"], timeout=1.0)
                lines = asking.recv_multipart(timeout=1.0)[-1].decode().splitlines()
            except Timeout:
                return {}
        return {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


class Stream:
    """Files to one node, and out of all of them.

    Args:
        stock: The files.
        seconds: What sending them takes at least.

    Attributes:
        total: Messages that there are.
        acknowledged: Numbers of those that are stored and replicated.
        doubtful: How many were stored, and not replicated in time.
        delivered: Messages that came for the first time.
        twice: Messages that came again.
        wrong: Messages whose bytes are not what was sent.
        by_node: Deliveries of each node.
    """

    def __init__(self, stock: Stock, seconds: float) -> None:
        self.total = len(stock.digests)
        self.acknowledged: set[int] = set()
        self.doubtful = self.twice = self.wrong = 0
        self.delivered: set[int] = set()
        self.by_node: dict[str, int] = {}
        self._stock = stock
        self._pause = seconds * BATCH / max(self.total, 1)
        self._work = seconds * WORK / max(self.total, 1)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self.error: BaseException | None = None
        self.sent = False  # all is

    def begin(self, work: Callable[..., None], *arguments: Any) -> None:
        """Has a thread do something."""

        def run() -> None:
            try:
                work(*arguments)
            except (OmqError, OSError) as error:
                self.error = error

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        """Ends the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(2.0)

    def produce(self, endpoint: str) -> None:
        """Sends all blocks; whatever waits while the node is dead is sent again by the producer itself."""
        with Producer(endpoint, timeout=ALL) as producer:
            for first, bodies in self._batches():
                refused: tuple[int, ...] = ()
                try:
                    producer.send_many(bodies)
                except NotReplicated as error:
                    refused = error.indexes
                self.doubtful += len(refused)
                self.acknowledged.update(first + index for index in range(len(bodies)) if index not in refused)
                if self._stopped.wait(self._pause):
                    return
        self.sent = True

    def _batches(self) -> Iterator[tuple[int, list[bytes]]]:
        first, bodies = 0, []
        for number, data in enumerate(self._blocks()):
            bodies.append(NUMBER.pack(number) + data)
            if len(bodies) == BATCH:
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

    def consume(self, node: NodeProcess) -> None:
        """Takes what a node delivers, and checks it."""
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
        """Messages that were acknowledged to the producer, and came to no consumer."""
        return len(self.acknowledged - self.delivered)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at on any of the hosts."""
    found: list[int] = []
    while len(found) < count:
        with ExitStack() as kept, contextlib.suppress(OSError):
            port = 0
            for host in HOSTS:
                one = kept.enter_context(socket.socket())
                one.bind((host, port))
                port = one.getsockname()[1]
            if port not in found:
                found.append(port)
    return found


def play(stock: Stock, folder: Path, seconds: float, say: Callable[[str], None]) -> Stream:
    """Plays it.

    Raises:
        ClickException: Something does not come in time, or ends that should not.
    """
    end = time.monotonic() + ALL
    stream = Stream(stock, seconds)

    def until(holds: Callable[[], bool]) -> None:
        while not holds() and time.monotonic() < end:
            if stream.error is not None:
                raise click.ClickException(str(stream.error))
            time.sleep(0.05)

    ports = free_ports(4)
    with ExitStack() as stack:
        nodes = [stack.enter_context(NodeProcess(folder, host, ports)) for host in HOSTS]
        stack.callback(stream.end)
        owner = nodes[0]
        for each in nodes:
            each.start()
        until(lambda: all(each.serves for each in nodes))
        until(lambda: all(each.figures().get("nodes_alive") == len(nodes) for each in nodes))
        say(f"three nodes hear each other; a producer sends to {owner.host}, one replica is asked for")
        stream.begin(stream.produce, owner.receive)
        until(lambda: len(stream.acknowledged) >= CONSUME_AT * stream.total)
        for each in nodes:
            stream.begin(stream.consume, each)
        until(lambda: len(stream.acknowledged) >= KILL_AT * stream.total)
        owner.kill()
        died = time.monotonic()
        before = dict(stream.by_node)
        say(f"{owner.host} is killed (SIGKILL): {len(stream.acknowledged):,} acknowledged, {told(stream)}")
        until(lambda: time.monotonic() > died + AWAY)
        gained = {host: count - before.get(host, 0) for host, count in stream.by_node.items()}
        by = ", ".join(f"{count:,} by {host}" for host, count in sorted(gained.items()) if count and host != owner.host)
        say(f"meanwhile the others have delivered {by or 'nothing, as nothing was left'}")
        owner.start()
        until(lambda: owner.serves)
        say(f"{owner.host} serves again, {time.monotonic() - died:.1f} s after its death")
        until(lambda: stream.sent)
        until(lambda: not stream.lost and all(each.figures().get("messages") == 0 for each in nodes))
        say(f"all is sent: {told(stream)}")
        if not stream.sent:
            raise click.ClickException(f"the producer has not come to its end within {ALL:.0f} s")
    return stream


def told(stream: Stream) -> str:
    """How far it is."""
    return f"{len(stream.delivered):,} of {stream.total:,} delivered"


def table(stream: Stream, block: int) -> Table:
    """The result."""
    out = Table(title=f"{block // 1024} KiB, three nodes, one killed")
    out.add_column("")
    out.add_column("messages", justify="right")
    out.add_row("acknowledged", f"{len(stream.acknowledged):,}")
    if stream.doubtful:
        out.add_row("stored, not replicated in time", f"{stream.doubtful:,}")
    out.add_row("delivered", f"{len(stream.delivered):,}")
    for host, count in sorted(stream.by_node.items()):
        out.add_row(f"  by {host}", f"{count:,}")
    out.add_row("delivered twice", f"{stream.twice:,}")
    out.add_row("wrong bytes", f"{stream.wrong:,}")
    out.add_row("lost", f"{stream.lost:,}")
    return out


@click.command("demo-pzq")
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory whose files are sent; the standard library if left out.",
)
@click.option("--seconds", type=Finite(1, 20), default=8.0, show_default=True, help="What sending takes at least.")
@click.option("--limit", type=click.IntRange(1, 200), default=40, show_default=True, help="MB to send at most.")
@click.option("--block", type=click.IntRange(1, 1024), default=8, show_default=True, help="KiB in a message.")
def demo_pzq(directory: Path | None, seconds: float, limit: int, block: int) -> None:
    """Stream files through three nodes that replicate, and kill the one that takes them in the middle.

    The owner is killed with SIGKILL; another node delivers what it has left until it is back. Nothing that was
    acknowledged may be missing. It ends by itself within a minute.
    """
    console = Console()
    stock = chosen(directory, block * 1024, limit * 1_000_000, console)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:5.1f} s  {text}", highlight=False, soft_wrap=True)

    try:
        with tempfile.TemporaryDirectory(prefix="omq-demo-") as folder:
            stream = play(stock, Path(folder), seconds, say)
    except KeyboardInterrupt:
        click.echo("interrupted; every process has ended", err=True)
        sys.exit(130)
    except (OmqError, OSError) as fault:
        raise click.ClickException(str(fault)) from None
    console.print(table(stream, block * 1024))
    if stream.lost or stream.wrong:
        raise click.ClickException("what was delivered is not what was acknowledged")
    console.print("all that was acknowledged was delivered, and every digest is right", highlight=False)
