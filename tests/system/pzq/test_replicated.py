"""`omq pzq --replicated`: devices on servers of NATS, whose leader is killed or stands still."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from omq.cli.main import main
from omq.pzq import Consumer, Producer
from tests.support.libzmq_pzq_clients import figures
from tests.support.nats_servers import NatsServers, nats_servers
from tests.support.ports import held
from tests.support.waits import until
from tests.system.broker.server_process import Command

pytestmark = [pytest.mark.xdist_group("nats"), pytest.mark.timeout(240)]

#: Seconds in which a cluster has a leader after a fault, and of a call that outlives that.
BOUND_S: Final = 60.0


class Device:
    """A device of a cluster as a process.

    Args:
        name: Its id.
        folder: Where its directory and its log are.
        ports: The ports of its endpoints.
        servers: The servers of NATS.
    """

    def __init__(self, name: str, folder: Path, ports: list[int], servers: NatsServers) -> None:
        self.receive, self.send, self.monitor = (f"tcp://127.0.0.1:{port}" for port in ports)
        self.folder = folder
        folder.mkdir()
        self._arguments = (
            *("--database", folder / "data", "--receive-dsn", self.receive, "--send-dsn", self.send),
            *("--monitor-dsn", self.monitor, "--replicated", ",".join(servers.urls), "--cluster", "test"),
            *("--node", name),
        )
        self.command: Command | None = None

    def start(self) -> None:
        self.command = Command(self.folder, *self._arguments, program="pzq")

    @property
    def leads(self) -> bool:
        """Returns whether it runs, and leads by its ready file."""
        if self.command is None:
            return False
        try:
            return bool(json.loads((self.folder / "ready.json").read_bytes())["leader"])
        except (FileNotFoundError, json.JSONDecodeError):
            return False

    @property
    def log(self) -> str:
        return self.command.log if self.command is not None else ""

    def kill(self) -> None:
        if self.command is not None:
            self.command.process.kill()
            self.command.process.communicate()
        self.command = None

    def signal(self, number: signal.Signals) -> None:
        assert self.command is not None
        self.command.process.send_signal(number)


class Cluster:
    """The devices of a cluster.

    Args:
        devices: The devices.
    """

    def __init__(self, devices: list[Device]) -> None:
        self.devices = devices

    def leader(self, *others: Device) -> Device:
        """Waits until a device leads that is not one of these, and returns it."""

        def found() -> list[Device]:
            return [device for device in self.devices if device.leads and device not in others]

        until(lambda: bool(found()), lambda: "\n".join(device.log for device in self.devices), bound=BOUND_S)
        return found()[0]

    @property
    def receive(self) -> list[str]:
        return [device.receive for device in self.devices]

    @property
    def send(self) -> list[str]:
        return [device.send for device in self.devices]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "nats").mkdir()
    with nats_servers(tmp_path / "nats") as servers, ExitStack() as kept:
        devices = []
        for number in range(3):
            ports = [kept.enter_context(held()) for _ in range(3)]
            devices.append(Device(f"d{number}", tmp_path / f"d{number}", ports, servers))
        for device in devices:
            kept.callback(device.kill)
            device.start()
        yield Cluster(devices)


class Feed:
    """Produces numbers until it is stopped.

    Args:
        cluster: The devices.

    Attributes:
        count: How many were acknowledged.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.count = 0
        self._producer = Producer(cluster.receive, timeout=BOUND_S)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._producer:
            while not self._stopped.wait(0.005):
                self.count += self._producer.send_many([b"%d" % n for n in range(self.count, self.count + 20)])

    def grows(self) -> None:
        """Waits until more was acknowledged."""
        before = self.count
        until(lambda: self.count >= before + 200, bound=BOUND_S)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class Work:
    """Consumes numbers until it is stopped.

    Args:
        cluster: The devices.

    Attributes:
        found: What has arrived.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.found: list[int] = []
        self._consumer = Consumer(cluster.send)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for delivery in self._consumer:
            delivery.ack()
            self.found.append(int(delivery.body))

    def stop(self) -> None:
        self._consumer.close()
        self._thread.join()


def finish(cluster: Cluster, feed: Feed, work: Work) -> None:
    """Ends the feed, and asserts that each acknowledged message was delivered, and none is left."""
    feed.stop()
    until(lambda: len(set(work.found)) >= feed.count, lambda: str(len(set(work.found))), bound=BOUND_S)
    until(lambda: figures(cluster.leader().monitor)["messages"] == 0, bound=BOUND_S)
    work.stop()
    assert sorted(work.found) == list(range(feed.count))


def test_nothing_is_lost_or_doubled_while_leaders_are_killed(cluster: Cluster) -> None:
    cluster.leader()
    feed, work = Feed(cluster), Work(cluster)
    try:
        for _ in range(3):
            feed.grows()
            leader = cluster.leader()
            leader.kill()
            cluster.leader(leader)
            feed.grows()
            leader.start()
        finish(cluster, feed, work)
    finally:
        feed.stop()
        work.stop()


def test_a_leader_that_stood_still_serves_no_more(cluster: Cluster) -> None:
    former = cluster.leader()
    feed, work = Feed(cluster), Work(cluster)
    try:
        feed.grows()
        former.signal(signal.SIGSTOP)
        cluster.leader(former)
        feed.grows()
        former.signal(signal.SIGCONT)
        until(lambda: not former.leads, lambda: former.log, bound=BOUND_S)
        feed.grows()
        finish(cluster, feed, work)
    finally:
        feed.stop()
        work.stop()


def test_a_device_that_returns_empty_takes_over(cluster: Cluster) -> None:
    leader = cluster.leader()
    with Producer(cluster.receive, timeout=BOUND_S) as producer, Consumer(cluster.send) as consumer:
        producer.send_many([b"%d" % number for number in range(100)])
        others = [device for device in cluster.devices if device is not leader]
        leader.kill()
        cluster.leader(leader)
        producer.send(b"100")
        for file in sorted((leader.folder / "data").rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        leader.start()
        until(lambda: "follows" in leader.log, lambda: leader.log, bound=BOUND_S)
        for device in others:
            device.kill()
        assert cluster.leader() is leader
        found = set()
        while len(found) < 101:
            delivery = consumer.recv(timeout=BOUND_S)
            delivery.ack()
            found.add(int(delivery.body))
        assert found == set(range(101))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--cluster=test"], "--replicated: is missing"),
        (["--servers-sync"], "--replicated: is missing"),
        (["--replicated=nats://127.0.0.1:1"], "--cluster: is missing"),
        (["--replicated=nats://127.0.0.1:1", "--cluster=a b"], "--cluster='a b'"),
        (["--replicated=tcp://127.0.0.1:1", "--cluster=test"], "--replicated='tcp://127.0.0.1:1'"),
        (["--replicated=nats://127.0.0.1:1", "--cluster=test", "--hard-sync"], "--hard-sync: needs servers"),
        (["--replicated=nats://127.0.0.1:1", "--cluster=test", "--receive-dsn=tcp://*:*"], "--receive-dsn='tcp://*:*'"),
    ],
)
def test_wrong_options(tmp_path: Path, arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["pzq", "--database", str(tmp_path / "data"), *arguments])
    assert result.exit_code == 2
    assert text in result.output
    assert not (tmp_path / "data").exists()
