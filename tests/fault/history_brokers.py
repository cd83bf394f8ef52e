"""The brokers of a run with faults: one, or three of a cluster, which may have machines and a network of their own."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import omq
from omq.broker import Client
from tests.fault.cluster_histories import FILLER, PATIENT_S, QUICK_S, filling
from tests.fault.history_faults import BRIEF, Member, Target
from tests.support.fork_server import ForkedProcess
from tests.support.network_namespaces import Hosts, enter
from tests.support.ports import held
from tests.support.waits import until
from tests.system.broker.server_process import MAIN

CURRENT_S: Final = 60.0
SNAPSHOT_BYTES: Final = 1 << 20
LOADED: Final = ": loaded a snapshot up to the entry "  # in the log of a broker
CUTS: Final = ("isolate", "mute", "deafen", "hide")  # of a `Machine`
CLIENTS: Final = "clients"  # the host of the clients
BROKER_PORT: Final = 5565

_T = TypeVar("_T")
#: The longest time between two attempts to send what was not received, so that a cut ends when it is healed.
RESEND_MS: Final = "1000"


class PlainBroker:
    """One broker without a cluster. Implements `Brokers`, and `Member`.

    Args:
        folder: Where its directory and its log are.
        port: Its port.
        persistence: The persistence of the topics.
    """

    def __init__(self, folder: Path, port: int, persistence: str) -> None:
        self.name = "broker"
        self.persistence = persistence
        self.fills = False
        self.targets = [Target([self], dict.fromkeys(("kill", "pause"), BRIEF))]
        self._endpoint = f"tcp://127.0.0.1:{port}"
        self._folder = folder
        self._process: ForkedProcess | None = None

    def client(self, timeout: float) -> Client:
        return Client(self._endpoint, timeout=timeout)

    def each(self) -> list[Client]:
        return []

    def end(self, chance: random.Random) -> None:
        pass

    def log(self) -> str:
        return (self._folder / "broker.log").read_text()

    def start(self) -> None:
        command = ["omq.cli.main", "broker", str(self._folder / "data"), "--bind", self._endpoint]
        with (self._folder / "broker.log").open("ab") as log:
            self._process = ForkedProcess("-m", *command, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        raise NotImplementedError("a broker without a cluster has the only copy")

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextlib.contextmanager
def plain_broker(folder: Path, port: int, persistence: str = "strong") -> Iterator[PlainBroker]:
    """Runs a broker without a cluster until the end of the block."""
    broker = PlainBroker(folder, port, persistence)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


class Machine:
    """A host with a broker and a server of NATS, whose network is cut. Implements `Member`.

    Args:
        hosts: All hosts.
        name: Its name.
        node: The broker.
    """

    def __init__(self, hosts: Hosts, name: str, node: Any) -> None:
        self.name = name
        self.node = node
        self._hosts = hosts
        self._others = [other for other in hosts.addresses if other not in (name, CLIENTS)]
        self._cuts: list[tuple[str, str]] = []  # from a host, to another one

    def isolate(self) -> None:
        """Nothing gets to the other machines, or from these."""
        self.mute()
        self.deafen()

    def mute(self) -> None:
        """Nothing gets to the other machines."""
        self._cut(*((self.name, other) for other in self._others))

    def deafen(self) -> None:
        """Nothing gets here from the other machines."""
        self._cut(*((other, self.name) for other in self._others))

    def hide(self) -> None:
        """Nothing gets to the clients, or from these."""
        self._cut((self.name, CLIENTS), (CLIENTS, self.name))

    def resume(self) -> None:
        while self._cuts:
            self._hosts.heal(*self._cuts.pop())

    def _cut(self, *cuts: tuple[str, str]) -> None:
        for cut in cuts:
            self._hosts.cut(*cut)
            self._cuts.append(cut)


class ClusterOfBrokers:
    """Three brokers of a cluster over three servers of NATS. Implements `Brokers`.

    Args:
        nodes: The brokers, a `BrokerCluster`.
        servers: The servers.
        hosts: Where they and the clients run; `None`: all here.
        snapshots: Snapshots are made, of which an emptied broker loads one in the end.

    Attributes:
        loads: The number of snapshots that brokers have loaded.
    """

    def __init__(self, nodes: Any, servers: Any, hosts: Hosts | None, *, snapshots: bool) -> None:
        self.persistence = "weak"  # the servers do not sync each message, and do not lose power
        self.fills = snapshots
        self.loads = 0
        self._nodes = nodes
        self._endpoints = [node.endpoint for node in nodes.nodes]
        self._servers = servers
        self._hosts = hosts
        self._context = None if hosts is None else hosts.call(CLIENTS, host_context)
        # A leader that stands still for longer than the lease is replaced.
        faults = dict.fromkeys(("kill", "pause", "power", "wipe"), (0.0, 4.0)) | {"stall": (1.5, 5.0)}
        self.targets = [
            Target(nodes.nodes, faults, most=2, calm_s=4.0, leader=self._leader),
            Target(servers.all, dict.fromkeys(("kill", "pause", "wipe"), BRIEF), calm_s=5.0, settle=self._settle),
        ]
        if hosts is not None:
            machines = [Machine(hosts, f"m{number}", node) for number, node in enumerate(nodes.nodes)]

            def leader() -> Machine | None:
                return next((machine for machine in machines if machine.node.leads), None)

            self.targets.insert(0, Target(machines, dict.fromkeys(CUTS, (0.0, 5.0)), calm_s=4.0, leader=leader))

    def client(self, timeout: float) -> Client:
        endpoints = random.sample(self._endpoints, len(self._endpoints))
        return Client(endpoints, timeout=timeout, context=self._context)  # type: ignore[arg-type]

    def each(self) -> list[Client]:
        return [Client(endpoint, timeout=QUICK_S, role="any", context=self._context) for endpoint in self._endpoints]

    def log(self) -> str:
        return str(self._nodes.logs())

    def end(self, chance: random.Random) -> None:
        if not self.fills:
            return
        with self.client(PATIENT_S) as client:
            bodies = filling()
            until(lambda: client.publish(FILLER, next(bodies)) and self._ask(_is_truncated), bound=PATIENT_S)
        node = chance.choice(self._nodes.nodes)
        loads = node.log.count(LOADED)
        node.kill()
        with contextlib.suppress(FileNotFoundError):
            node.wipe()
        node.start()
        until(lambda: node.log.count(LOADED) > loads, lambda: node.log, bound=PATIENT_S)
        self.loads = self.log().count(LOADED)

    def close(self) -> None:
        """Ends the threads of the clients."""
        if self._context is not None:
            self._context.term(linger=0)

    def _leader(self) -> Member | None:
        return next((node for node in self._nodes.nodes if node.leads), None)

    def _settle(self, without: Member | None) -> None:
        """Waits until the servers but one have all messages."""
        name = without.name if without is not None else ""
        self._ask(lambda connection: _become_current(connection, name), without=name)

    def _ask(self, question: Callable[[Any], Awaitable[_T]], without: str = "") -> _T:
        """Calls a function with a connection to the servers but one; returns its result."""
        from omq.store.replication.journal import JournalUnavailable
        from omq.store.replication.nats_connection import NatsConnection, NatsOptions

        async def ask() -> _T:
            urls = [one.url for one in self._servers.all if one.name != without]
            connection = NatsConnection(NatsOptions(servers=urls))
            try:
                async with asyncio.timeout(CURRENT_S):
                    while True:
                        try:
                            await connection.open()
                            break
                        except JournalUnavailable:
                            await asyncio.sleep(0.1)
                return await question(connection)
            finally:
                await connection.close()

        return asyncio.run(ask()) if self._hosts is None else self._hosts.call(CLIENTS, lambda: asyncio.run(ask()))


async def _become_current(connection: Any, without: str) -> None:
    """Waits until the servers but one have all messages."""
    from omq.store.replication.journal import JournalUnavailable
    from omq.store.replication.nats_connection import NatsApiError

    started = time.monotonic()
    found: Any = None
    for stream in ("OMQ_test", "OBJ_omq_test"):
        while time.monotonic() < started + CURRENT_S:
            try:
                cluster = found = (await connection.call(f"STREAM.INFO.{stream}", timeout=1.0))["cluster"]
            except NatsApiError:
                break  # there is no snapshot yet
            except JournalUnavailable as error:
                found = error
            else:
                if all(
                    one["name"] == without or (one["current"] and one["active"] / 1e9 < time.monotonic() - started)
                    for one in cluster.get("replicas", [])
                ):
                    break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"the stream {stream} does not become current without {without!r}: {found!r}")


async def _is_truncated(connection: Any) -> bool:
    """Returns whether the journal does not reach back to its first entry."""
    from omq.store.replication.journal import JournalUnavailable

    with contextlib.suppress(JournalUnavailable):
        return int((await connection.call("STREAM.INFO.OMQ_test", timeout=1.0))["state"]["first_seq"]) > 1
    return False


def host_context() -> omq.Context:
    """Returns a context whose sockets are in the network of the calling thread, as its I/O thread is."""
    context = omq.Context()
    context.io_thread  # noqa: B018 - it starts
    return context


@contextlib.contextmanager
def cluster_of_brokers(
    folder: Path, *, partitions: bool = False, snapshots: bool = False
) -> Iterator[ClusterOfBrokers]:
    """Runs a cluster until the end of the block.

    Args:
        folder: Where its files are.
        partitions: Each broker and a server have a machine of their own, whose network is cut.
        snapshots: Snapshots are made.

    Raises:
        Unavailable: There cannot be machines.
    """
    from tests.support.broker_cluster import BrokerCluster, Node
    from tests.support.nats_servers import nats_servers

    (folder / "nats").mkdir()
    settings = {"snapshot_bytes": SNAPSHOT_BYTES} if snapshots else {}
    with contextlib.ExitStack() as kept:
        hosts = kept.enter_context(Hosts(folder, CLIENTS, "m0", "m1", "m2")) if partitions else None
        servers = kept.enter_context(nats_servers(folder / "nats", hosts=hosts))
        nodes = []
        for number in range(3):
            if hosts is None:
                address, program = f"127.0.0.1:{kept.enter_context(held())}", MAIN
            else:
                name = f"m{number}"
                hosts.call(name, _resend_soon)
                address = f"{hosts.addresses[name]}:{BROKER_PORT}"
                program = f"from {enter.__module__} import enter; enter({hosts.namespaces[name]!r}); {MAIN}"
            name = f"b{number}"
            node = Node(name, folder / name, servers, endpoint=f"tcp://{address}", program=program, **settings)
            kept.callback(node.kill)
            node.start()
            nodes.append(node)
        for node in nodes:
            node.serving()
        yield kept.enter_context(
            contextlib.closing(ClusterOfBrokers(BrokerCluster(nodes), servers, hosts, snapshots=snapshots))
        )


def _resend_soon() -> None:
    """Sends again soon what was lost in the network of the calling thread, so that a cut ends when it is healed."""
    with contextlib.suppress(FileNotFoundError):  # before Linux 6.15
        Path("/proc/sys/net/ipv4/tcp_rto_max_ms").write_text(RESEND_MS)
