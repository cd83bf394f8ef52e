"""The cluster that is measured, its clients in processes of their own, and the API of its NATS servers."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nats
import nats.errors

from bench.broker.client_process import CLIENT_TIMEOUT_S, REPORT_KEYS
from bench.broker.drivers import ClientJob
from bench.broker.servers import fresh_directory
from bench.processes import ControlledProcess, RunError
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.nats_servers import NatsServers, nats_servers

JOURNAL = "OMQ_test"  # the stream of the cluster of `broker_cluster`
API_TIMEOUT_S = 5.0
MOVE_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.1


class MeasuredCluster:
    """Three brokers and three servers.

    Attributes:
        brokers: The brokers.
        servers: The servers.
        directory: The folder of their data.
    """

    def __init__(self, brokers: BrokerCluster, servers: NatsServers, directory: Path) -> None:
        self.brokers = brokers
        self.servers = servers
        self.directory = directory

    @property
    def endpoints(self) -> list[str]:
        """The endpoints of the brokers."""
        return [node.endpoint for node in self.brokers.nodes]

    def broker_pids(self) -> dict[str, int]:
        """Returns the process of each broker that runs, by its name."""
        return {node.name: node.command.process.pid for node in self.brokers.nodes if node.command is not None}

    def server_pids(self) -> list[int]:
        """Returns the processes of the servers that run."""
        return [server.process.pid for server in self.servers.all if server.process is not None]

    def busy(self) -> float:
        """Returns the processor seconds of all brokers and servers."""
        return busy((*self.broker_pids().values(), *self.server_pids()))

    def server_of(self, stream: str) -> str:
        """Returns the `host:port` of the server that leads a stream."""
        leader = self.stream(stream)["cluster"]["leader"]
        return self.servers.named(leader).url.removeprefix("nats://")

    def stream(self, name: str) -> Any:
        """Returns the state of a stream that has a leader.

        Raises:
            RunError: It has none for long.
        """
        end = time.monotonic() + MOVE_TIMEOUT_S
        while time.monotonic() < end:
            found = self._ask(f"STREAM.INFO.{name}")
            if found.get("cluster", {}).get("leader"):
                return found
            time.sleep(POLL_INTERVAL_S)
        raise RunError(f"the stream {name} has no leader for {MOVE_TIMEOUT_S:.0f} s")

    def move(self, streams: Iterable[str], server: str) -> None:
        """Makes a server the leader of streams, once all servers have all of their messages.

        Raises:
            RunError: It does not become their leader.
        """
        wish = json.dumps({"placement": {"preferred": server}}).encode()
        for stream in streams:
            end = time.monotonic() + MOVE_TIMEOUT_S
            while True:
                cluster = self.stream(stream)["cluster"]
                current = all(replica["current"] for replica in cluster.get("replicas", ()))
                if cluster["leader"] == server and current:
                    break
                if time.monotonic() > end:
                    raise RunError(f"{server} does not become the leader of {stream}")
                if current:
                    self._ask(f"STREAM.LEADER.STEPDOWN.{stream}", wish)
                time.sleep(POLL_INTERVAL_S)

    def _ask(self, subject: str, body: bytes = b"") -> Any:
        async def ask() -> Any:
            connection = await nats.connect(
                [server.url for server in self.servers.all if server.process is not None], error_cb=ignored
            )
            try:
                answer = await connection.request(f"$JS.API.{subject}", body, timeout=API_TIMEOUT_S)
                return json.loads(answer.data)
            except nats.errors.Error:
                return {}
            finally:
                await connection.close()

        return asyncio.run(ask())


@contextmanager
def measured_cluster(place: Path, lease: float) -> Iterator[MeasuredCluster]:
    """Runs a cluster whose servers sync each message, until the end of the block.

    Args:
        place: The folder of its directory, which is removed in the end.
        lease: Its lease, in seconds.
    """
    with fresh_directory("cluster", place) as directory:
        (directory / "nats").mkdir()
        with (
            nats_servers(directory / "nats", sync_always=True) as servers,
            broker_cluster(directory, servers, "--servers-sync", lease=lease) as brokers,
        ):
            brokers.leader()
            yield MeasuredCluster(brokers, servers, directory)


class DriverProcess(ControlledProcess):
    """A client in a process of its own.

    Args:
        module: A module of `bench.broker.drivers`.
        endpoint: The endpoint of the server.
        size: Bytes of a message.
        depth: Messages in flight.
        options: The options of the client.
    """

    def __init__(self, module: str, endpoint: str, size: int, depth: int, options: Mapping[str, str]) -> None:
        job = asdict(ClientJob(endpoint, size, depth, "", dict(options)))
        text = json.dumps({**job, "limit": int(4 * CLIENT_TIMEOUT_S)})
        super().__init__(module, "bench.broker.worker", module, text)
        self.wait_for("ready", CLIENT_TIMEOUT_S)

    def call(self, order: str, count: int = 0) -> Any:
        """Sends an order and returns its report."""
        self.order(do=order, count=count)
        return self.wait_for(REPORT_KEYS.get(order, "did"), CLIENT_TIMEOUT_S)


def busy(pids: Iterable[int]) -> float:
    """Returns the processor seconds that processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def ignored(error: Exception) -> None:
    """Keeps nats-py from printing the errors of its connections."""
