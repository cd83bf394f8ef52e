"""A cluster of `omq broker` processes over servers of NATS."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from omq.store.lmdb.store_directory import REPLICA
from tests.support.nats_servers import NatsServers
from tests.support.power import lose_power
from tests.support.stalled_threads import StalledThreads
from tests.support.waits import until
from tests.system.broker.server_process import MAIN, Command

LEASE_S: Final = 1.5
#: Seconds in which a cluster has a leader after a fault.
ELECTION_TIMEOUT_S: Final = 30.0


class Node:
    """A broker of a cluster.

    Args:
        name: Its id.
        folder: Where its directory, its configuration and its log are.
        servers: The servers of the journal.
        options: More options of the command.
        endpoint: Where it binds; empty: at a free port, and there again at its next start.
        program: The program of its processes.
        settings: Numbers of its `[cluster]`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        servers: NatsServers,
        options: tuple[str, ...] = (),
        *,
        endpoint: str = "",
        program: str = MAIN,
        **settings: float,
    ) -> None:
        self.name = name
        self.folder = folder
        self.data = folder / "data"
        folder.mkdir()
        config = folder / "broker.toml"
        settings = {"lease": LEASE_S, **settings}
        config.write_text("\n".join(["[cluster]", *(f"{key} = {value}" for key, value in settings.items()), ""]))
        self._arguments = (
            *(self.data, "--config", config, "--replicated", ",".join(servers.urls), "--cluster", "test"),
            *("--node", name, *options),
        )
        self.command: Command | None = None
        self.endpoint = endpoint
        self._program = program
        self._stalled: StalledThreads | None = None

    def start(self) -> None:
        bind = ("--bind", self.endpoint) if self.endpoint else ()
        self.command = Command(self.folder, *self._arguments, *bind, main=self._program)

    def serving(self) -> None:
        """Waits until it serves."""
        assert self.command is not None
        self.endpoint = self.command.serving()["zmtp"]

    @property
    def endpoints(self) -> dict[str, Any]:
        """The content of its ready file; empty without one."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "ready.json").read_bytes())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found

    @property
    def leads(self) -> bool:
        """Returns whether it runs, and leads by its ready file."""
        return self.command is not None and bool(self.endpoints.get("leader"))

    @property
    def log(self) -> str:
        return self.command.log if self.command is not None else ""

    def kill(self) -> None:
        """Kills it."""
        if self.command is not None:
            self.command.process.kill()
            self.command.process.communicate()
        self.command = None

    def lose_power(self) -> None:
        """Loses what a broker that was killed has not synced."""
        assert self.command is None
        lose_power(self.data / REPLICA, "strong", random.Random())

    def end(self) -> int:
        """Stops it in an orderly way; returns its exit status."""
        assert self.command is not None
        status = self.command.end()
        self.command.process.communicate()
        self.command = None
        return status

    def pause(self) -> None:
        assert self.command is not None
        self.command.process.send_signal(signal.SIGSTOP)

    def stall(self) -> None:
        """Stops all its threads but the one of its connections."""
        assert self.command is not None
        self._stalled = StalledThreads(self.command.process.pid)

    def resume(self) -> None:
        """Ends `pause` and `stall`, in the same thread."""
        assert self.command is not None
        self.command.process.send_signal(signal.SIGCONT)
        if self._stalled is not None:
            self._stalled.resume()
        self._stalled = None

    def wipe(self) -> None:
        """Deletes the directory of a broker that does not run."""
        assert self.command is None
        shutil.rmtree(self.data)


class BrokerCluster:
    """The brokers of a cluster.

    Args:
        nodes: The brokers.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def leader(self, *others: Node) -> Node:
        """Waits until one of the brokers leads, and returns it.

        Args:
            others: Brokers that do not count, such as a former leader that is stopped.
        """

        def found() -> Node | None:
            return next((node for node in self.nodes if node.leads and node not in others), None)

        until(lambda: found() is not None, self.logs, bound=ELECTION_TIMEOUT_S)
        leader = found()
        assert leader is not None
        return leader

    def followers(self) -> list[Node]:
        """Returns the other brokers."""
        leader = self.leader()
        return [node for node in self.nodes if node is not leader]

    def logs(self) -> str:
        return "\n".join(f"--- {node.name}\n{node.log}" for node in self.nodes)


@contextmanager
def broker_cluster(
    folder: Path, servers: NatsServers, *options: str, count: int = 3, **settings: float
) -> Iterator[BrokerCluster]:
    """Runs a cluster of brokers until the end of the block.

    Args:
        folder: Where the folders of the brokers are.
        servers: The servers of the journal.
        options: More options of all brokers.
        count: The number of brokers.
        settings: Numbers of their `[cluster]`.
    """
    nodes = [Node(f"b{number}", folder / f"b{number}", servers, options, **settings) for number in range(count)]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.serving()
        yield BrokerCluster(nodes)
    finally:
        for node in nodes:
            node.kill()
