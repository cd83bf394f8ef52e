"""Clients of brokers that are killed, stopped and emptied by a seed, and the check of what the clients have seen.

Publishers and readers use a topic, whose history must be linearizable. Workers of a work queue and of a consumer group
take messages, each of which must not be delivered after its ack was confirmed. In the end everything that was
acknowledged must be there once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import omq
from omq.broker import BrokerError, Client, Consumer, Delivery
from tests.support.fork_server import ForkedProcess
from tests.support.linearizability import Job, Log, Operation, Prefix, check_parts, linearize
from tests.support.ports import held
from tests.support.waits import until

LOG: Final = "log"
GROUP: Final = "workers"
JOBS: Final = "jobs"
QUICK_S: Final = 2.0  # the timeout of calls during the faults: some of them must have an unknown outcome
PATIENT_S: Final = 60.0
DRAIN_S: Final = 90.0
CURRENT_S: Final = 60.0
PUBLISH_INTERVAL_S: Final = 0.05


class Member(Protocol):
    """A process that the faults concern."""

    @property
    def name(self) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def wipe(self) -> None: ...


@dataclass
class Target:
    """Processes of which some are faulty at a time.

    Attributes:
        members: The processes.
        faults: What may happen to them: `kill`, `pause`, `wipe`.
        most: The number of processes that may be faulty at a time.
        calm_s: The longest time between two faults.
        fault_s: The longest time of a fault.
        settle: Waits until all processes but the given one are as good as before the last fault.
    """

    members: list[Member]
    faults: tuple[str, ...]
    most: int = 1
    calm_s: float = 1.5
    fault_s: float = 1.5
    settle: Callable[[Member | None], None] = lambda without: None

    def run(self, chance: random.Random, stop: threading.Event, log: list[str]) -> None:
        """Lets faults happen until the event is set; all processes run afterwards."""
        while not stop.wait(chance.uniform(0, self.calm_s)):
            members = chance.sample(self.members, chance.randint(1, self.most))
            fault, seconds = chance.choice(self.faults), chance.uniform(0, self.fault_s)
            log.append(f"{time.monotonic():.3f} {fault} {', '.join(member.name for member in members)} {seconds:.2f} s")
            self._let(fault, members, lambda seconds=seconds: stop.wait(seconds))  # type: ignore[misc]

    def _let(self, fault: str, members: list[Member], wait: Callable[[], object]) -> None:
        if fault == "pause":
            for member in members:
                member.pause()
            wait()
            for member in members:
                member.resume()
            return
        for member in members:
            member.kill()
        wait()
        for member in members:
            if fault == "wipe":
                self.settle(member)  # its disk is not the only one with a message
                with contextlib.suppress(FileNotFoundError):  # it was killed before it had a directory
                    member.wipe()
            member.start()
        if fault == "wipe":
            self.settle(None)


class Brokers(Protocol):
    """The brokers of a run.

    Attributes:
        persistence: The persistence of the topics.
        targets: What is faulty.
    """

    persistence: str
    targets: list[Target]

    def client(self, timeout: float) -> Client:
        """Returns a client whose requests are answered by the leader."""
        ...

    def lagging(self) -> list[Client]:
        """Returns clients that read at brokers which may lag."""
        ...

    def log(self) -> str:
        """Returns what the processes have logged."""
        ...


class History:
    """The operations of the clients of one object."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def call(self, client: str, call: Any, do: Callable[[], Any], since: float = 0.0) -> Any:
        """Executes an operation; returns its result, or `None` if its outcome is unknown.

        Args:
            client: The name of the client.
            call: The operation.
            do: Executes it.
            since: The time from which it may have its effect; 0: now.
        """
        called = since or time.monotonic()
        try:
            result = do()
        except omq.Timeout:
            self.operations.append(Operation(client, call, None, called))
            return None
        self.operations.append(Operation(client, call, result, called, time.monotonic()))
        return result

    def bodies(self, name: str, *, known: bool = True) -> set[bytes]:
        """Returns the bodies of one kind of operations; with `known`, of those that have returned."""
        return {
            one.call[1] for one in self.operations if one.call[0] == name and (not known or one.returned < float("inf"))
        }


class Run:
    """A run with faults.

    Args:
        brokers: The brokers.
        seed: Determines the faults, and what the clients do.
    """

    def __init__(self, brokers: Brokers, seed: int) -> None:
        self.brokers = brokers
        self.topic = History()
        self.jobs = History()
        self.group = History()
        self.lagging: list[Prefix] = []
        self.faults: list[str] = []
        self.messages: list[tuple[int, bytes]] = []  # of the topic in the end
        self._chance = random.Random(seed)
        self._stop = threading.Event()  # ends the faults, publishers and readers
        self._drained = threading.Event()  # ends the workers
        self._checked = threading.Event()
        self._errors: list[BaseException] = []

    def run(self, seconds: float) -> None:
        """Runs the clients and the faults, and checks the history."""
        try:
            self._run(seconds)
        finally:
            self._checked.set()

    def _run(self, seconds: float) -> None:
        with self.brokers.client(PATIENT_S) as client:
            client.create(LOG, persistence=self.brokers.persistence)
            client.create(JOBS, delivery="round-robin", persistence=self.brokers.persistence)
            client.consume(LOG, group=GROUP, replay="earliest").close()
        work = [partial(self._publish, f"p{number}") for number in range(2)]
        work += [partial(self._read, f"r{number}") for number in range(2)]
        work += [partial(self._produce, "producer")]
        work += [partial(self._read_lagging, client) for client in self.brokers.lagging()]
        workers = [partial(self._work, f"w{number}", JOBS, None, self.jobs) for number in range(3)]
        workers += [partial(self._work, f"g{number}", LOG, GROUP, self.group) for number in range(3)]
        chances = [random.Random(self._chance.random()) for _ in range(len(work) + len(workers))]
        clients = [self._thread(run, chances.pop()) for run in work]
        workers_ = [self._thread(run, chances.pop()) for run in workers]
        healed = [threading.Event() for _ in self.brokers.targets]
        for target, event in zip(self.brokers.targets, healed, strict=True):
            self._thread(partial(self._let_fail, target, event), random.Random(self._chance.random()))
        try:
            self._stop.wait(seconds)
        finally:
            self._stop.set()
            for event in healed:
                event.wait()
            for thread in clients:
                thread.join()
            with contextlib.suppress(AssertionError):
                until(self._is_drained, bound=DRAIN_S)
            self._drained.set()
            for thread in workers_:
                thread.join()
        for error in self._errors:
            raise error
        self._check()

    def _thread(self, run: Callable[[random.Random], None], chance: random.Random) -> threading.Thread:
        def guarded() -> None:
            try:
                run(chance)
            except BaseException as error:
                self._errors.append(error)
                self._stop.set()
                self._drained.set()

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _let_fail(self, target: Target, healed: threading.Event, chance: random.Random) -> None:
        try:
            target.run(chance, self._stop, self.faults)
        finally:
            healed.set()
        self._checked.wait()  # the system ends the processes that a thread has started with the thread

    # ------------------------------------------------------------------ clients

    def _clients(self) -> Iterator[Client]:
        """Yields a client, and another one each time, which looks for the leader again."""
        while not self._stop.is_set():
            with contextlib.suppress(omq.Timeout), self.brokers.client(QUICK_S) as client:
                yield client

    def _publish(self, name: str, chance: random.Random) -> None:
        bodies = self._bodies(name, chance)
        for client in self._clients():
            for body in bodies:
                id = self.topic.call(name, ("append", body), partial(client.publish, LOG, body))
                if id is None and chance.random() < 0.5:
                    break

    def _produce(self, name: str, chance: random.Random) -> None:
        with self.brokers.client(QUICK_S) as client:
            for body in self._bodies(name, chance):
                self.jobs.call(name, ("publish", body), partial(client.publish, JOBS, body))

    def _bodies(self, name: str, chance: random.Random) -> Iterator[bytes]:
        number = 0
        while not self._stop.wait(chance.uniform(0, PUBLISH_INTERVAL_S)):
            number += 1
            yield f"{name}.{number}".encode()

    def _read(self, name: str, chance: random.Random) -> None:
        for client in self._clients():
            while not self._stop.wait(chance.uniform(0, 0.3)):
                found = self.topic.call(name, ("read",), partial(_prefix, client))
                if found is None and chance.random() < 0.5:
                    break

    def _read_lagging(self, client: Client, chance: random.Random) -> None:
        # Its broker may not have the topic yet, or answer nothing as it ceases to lead.
        with contextlib.suppress(BrokerError), client:
            while not self._stop.wait(chance.uniform(0, 0.3)):
                with contextlib.suppress(BrokerError):
                    self.lagging.append(_prefix(client))

    def _work(self, name: str, topic: str, group: str | None, history: History, chance: random.Random) -> None:
        while not self._drained.is_set():
            with self.brokers.client(PATIENT_S) as client:
                since = time.monotonic()
                with contextlib.suppress(omq.Timeout):
                    consumer = client.consume(topic, group=group, credit=1, ack_timeout=PATIENT_S)
                    while not self._drained.is_set() and chance.random() > 0.02:
                        since = self._work_once(name, client, consumer, history, since, chance)
                    consumer.close()

    def _work_once(
        self, name: str, client: Client, consumer: Consumer, history: History, since: float, chance: random.Random
    ) -> float:
        """Takes a message; returns the time since which the next one may have been sent."""
        try:
            delivery = consumer.recv(timeout=0.2)
        except omq.ReceiveTimeout:
            return since
        body = bytes(delivery.body)
        history.operations.append(Operation(name, ("take", body), None, since, time.monotonic()))
        since = time.monotonic()
        if chance.random() < 0.1:
            delivery.nack()
        else:
            history.call(name, ("ack", body), partial(_confirm, client, delivery))
        return since

    def _is_drained(self) -> bool:
        return bool(self._errors) or not (
            self.jobs.bodies("publish") - self.jobs.bodies("ack", known=False)
            or self.topic.bodies("append") - self.group.bodies("ack", known=False)
        )

    # ------------------------------------------------------------------ what must hold

    def _check(self) -> None:
        with self.brokers.client(PATIENT_S) as client:
            self.topic.call("last", ("read",), lambda: Prefix.of(self._final(client)))
        ids = {body: id for id, body in self.messages}
        assert len(ids) == len(self.messages), "a message of the topic is there twice"
        lost = self.topic.bodies("append") - ids.keys()
        assert not lost, f"acknowledged and lost: {sorted(lost)[:9]}"
        linearize(Log(), _known(self.topic.operations, ids))
        prefixes = {Prefix.of(self.messages[:count]) for count in range(len(self.messages) + 1)}
        strange = [prefix for prefix in self.lagging if prefix not in prefixes]
        assert not strange, f"a broker that may lag had something else than the topic: {strange[:3]}"
        self._check_work(self.jobs, self.jobs.bodies("publish"))
        appends = [
            replace(one, call=("publish", one.call[1])) for one in self.topic.operations if one.call[0] == "append"
        ]
        self.group.operations += appends
        self._check_work(self.group, self.topic.bodies("append"))

    def _final(self, client: Client) -> list[tuple[int, bytes]]:
        self.messages = _messages(client)
        return self.messages

    @staticmethod
    def _check_work(history: History, published: set[bytes]) -> None:
        undelivered = published - history.bodies("take")
        assert not undelivered, f"acknowledged and never delivered: {sorted(undelivered)[:9]}"
        unfinished = published - history.bodies("ack", known=False)  # one in doubt may have been recorded
        assert not unfinished, f"never acknowledged: {sorted(unfinished)[:9]}"
        check_parts(Job(), history.operations, lambda one: one.call[1])


def _messages(client: Client) -> list[tuple[int, bytes]]:
    return [(message.id, bytes(message.body)) for message in client.read(LOG)]


def _prefix(client: Client) -> Prefix:
    return Prefix.of(_messages(client))


def _confirm(client: Client, delivery: Delivery) -> None:
    """Acknowledges a delivery, and waits until the broker has recorded it in the session of the delivery.

    Raises:
        Timeout: It may not have: after a lost connection another worker may have the message.
    """
    delivery.ack()
    client.flush(timeout=PATIENT_S)
    if client._connection.core.session != delivery.session:
        raise omq.Timeout("the connection was lost")


def _known(operations: list[Operation], ids: dict[bytes, int]) -> list[Operation]:
    """Returns the operations with an effect: an append without an answer has an id if it is stored in the end."""
    found = []
    for one in operations:
        if one.returned < float("inf"):
            found.append(one)
        elif one.call[0] == "append" and one.call[1] in ids:
            found.append(replace(one, result=ids[one.call[1]]))
    return found


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
        self.targets = [Target([self], ("kill", "pause"))]
        self._endpoint = f"tcp://127.0.0.1:{port}"
        self._folder = folder
        self._process: ForkedProcess | None = None

    def client(self, timeout: float) -> Client:
        return Client(self._endpoint, timeout=timeout)

    def lagging(self) -> list[Client]:
        return []

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


class ClusterOfBrokers:
    """Three brokers of a cluster over three servers of NATS. Implements `Brokers`.

    Args:
        nodes: The brokers, a `BrokerCluster`.
        servers: The servers.
    """

    def __init__(self, nodes: Any, servers: Any) -> None:
        self.persistence = "weak"  # the servers do not sync each message, and no power failure is among the faults
        self._nodes = nodes
        self._endpoints = [node.endpoint for node in nodes.nodes]
        self._servers = servers
        self.targets = [
            # A leader that stands still for longer than the lease is replaced.
            Target(nodes.nodes, ("kill", "pause", "wipe"), most=2, calm_s=5.0, fault_s=4.0),
            Target(servers.all, ("kill", "pause", "wipe"), calm_s=5.0, settle=self._settle),
        ]

    def client(self, timeout: float) -> Client:
        return Client(self._endpoints, timeout=timeout)  # type: ignore[arg-type]

    def lagging(self) -> list[Client]:
        return [Client(endpoint, timeout=QUICK_S, role="any") for endpoint in self._endpoints]

    def log(self) -> str:
        return str(self._nodes.logs())

    def _settle(self, without: Member | None) -> None:
        """Waits until the servers but one have all messages."""
        asyncio.run(self._current(without.name if without is not None else ""))

    async def _current(self, without: str) -> None:
        from omq.store.replication.journal import JournalUnavailable
        from omq.store.replication.nats_connection import NatsApiError, NatsConnection, NatsOptions

        started = time.monotonic()
        connection = NatsConnection(NatsOptions(servers=[one.url for one in self._servers.all if one.name != without]))
        with contextlib.suppress(JournalUnavailable):
            await connection.open()
        try:
            for stream in ("OMQ_test", "OBJ_omq_test"):
                while time.monotonic() < started + CURRENT_S:
                    with contextlib.suppress(JournalUnavailable):
                        try:
                            cluster = (await connection.call(f"STREAM.INFO.{stream}", timeout=1.0))["cluster"]
                        except NatsApiError:
                            break  # there is no snapshot yet
                        if all(
                            one["name"] == without
                            or (one["current"] and one["active"] / 1e9 < time.monotonic() - started)
                            for one in cluster.get("replicas", [])
                        ):
                            break
                    await asyncio.sleep(0.1)
                else:
                    raise AssertionError(f"the stream {stream} does not become current without {without!r}")
        finally:
            await connection.close()


@contextlib.contextmanager
def cluster_of_brokers(folder: Path) -> Iterator[ClusterOfBrokers]:
    """Runs a cluster until the end of the block."""
    from tests.support.broker_cluster import BrokerCluster, Node
    from tests.support.nats_servers import nats_servers

    (folder / "nats").mkdir()
    with nats_servers(folder / "nats") as servers, contextlib.ExitStack() as kept:
        nodes = []
        for number in range(3):
            endpoint = f"tcp://127.0.0.1:{kept.enter_context(held())}"
            node = Node(f"b{number}", folder / f"b{number}", servers, endpoint=endpoint)
            kept.callback(node.kill)
            node.start()
            nodes.append(node)
        for node in nodes:
            node.serving()
        yield ClusterOfBrokers(BrokerCluster(nodes), servers)
