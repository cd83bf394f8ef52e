"""The machines of `demo_replicated.py`: each has a server of NATS and a broker, on a loopback address of its own.

Run as a program it becomes a nats-server that ends with the process that has started it.
"""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import nats

from child_processes import Child, ChildError, OmqServer, free_ports

HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
CLUSTER: Final = "demo"
STREAM: Final = f"OMQ_{CLUSTER}"  # the journal
LEASE_S: Final = 1.5
PR_SET_PDEATHSIG: Final = 1  # of prctl(2)
ELECTION_TIMEOUT_S: Final = 30.0
NATS_TIMEOUT_S: Final = 5.0
POLL_INTERVAL_S: Final = 0.02


def nats_server() -> str | None:
    """Returns the path of nats-server: that of `NATS_SERVER`, of this environment or of the PATH."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return os.environ.get("NATS_SERVER") or shutil.which("nats-server", path=path)


class NatsProcess(Child):
    """A server of NATS. Leaving the block kills it."""

    def __init__(self, name: str, folder: Path, config: Path) -> None:
        super().__init__(name, __file__, config, log=folder / f"{name}.log")

    def __exit__(self, *error: object) -> None:
        self.kill()
        super().__exit__(*error)


class Machine:
    """A machine of the cluster, which may be lost and replaced by an empty one.

    Args:
        folder: The directory of all machines.
        number: Its index in `HOSTS`.
        ports: Of the clients of NATS, of its routes, and of the broker; the same on all machines.

    Attributes:
        name: Its name, also that of its broker and of its server.
        endpoint: The endpoint of its broker.
        server: The URL of its server.
        alive: True while its processes run.
    """

    def __init__(self, folder: Path, number: int, ports: list[int]) -> None:
        client, route, broker = ports
        host = HOSTS[number]
        self.name = f"machine-{number + 1}"
        self.endpoint = f"tcp://{host}:{broker}"
        self.server = f"nats://{host}:{client}"
        self.alive = False
        self._folder = folder
        self._disk = folder / self.name
        self._config = folder / f"{self.name}.conf"
        routes = ", ".join(f'"nats://{other}:{route}"' for other in HOSTS if other != host)
        self._config.write_text(
            f'server_name: {self.name}\nlisten: "{host}:{client}"\n'
            f'cluster {{ name: {CLUSTER}, listen: "{host}:{route}", routes: [{routes}] }}\n'
            f'jetstream {{ store_dir: "{self._disk / "nats"}", sync_interval: always }}\n'
        )
        settings = folder / "broker.toml"
        settings.write_text(f"[cluster]\nlease = {LEASE_S}\n")
        servers = ",".join(f"nats://{each}:{client}" for each in HOSTS)
        self._arguments: list[str | Path] = [
            *("broker", self._disk / "broker", "--bind", self.endpoint, "--config", settings, "--node", self.name),
            *("--replicated", servers, "--cluster", CLUSTER, "--servers-sync"),
        ]
        self._processes: list[Child] = []

    def start(self, stack: ExitStack) -> None:
        """Starts its server and its broker; leaving the stack ends them."""
        nats_process = stack.enter_context(NatsProcess(f"nats-{self.name}", self._folder, self._config))
        self._broker = stack.enter_context(OmqServer(f"broker-{self.name}", self._folder, *self._arguments))
        self._processes = [self._broker, nats_process]
        self.alive = True

    def serving(self) -> None:
        """Waits until the broker serves.

        Raises:
            ChildError: It does not serve in time, or ends early.
        """
        self._broker.endpoints()

    def kill(self) -> None:
        """Kills all of its processes with SIGKILL."""
        self.alive = False
        for process in self._processes:
            process.kill()

    def lose(self) -> None:
        """Kills it, and deletes its disk."""
        self.kill()
        shutil.rmtree(self._disk)

    @property
    def leads(self) -> bool:
        """True if its broker is the leader of the cluster."""
        with suppress(FileNotFoundError, ValueError):
            found: dict[str, Any] = json.loads((self._folder / f"broker-{self.name}.ready").read_bytes())
            return self.alive and bool(found.get("leader"))
        return False


@contextmanager
def three_machines(folder: Path) -> Iterator[tuple[list[Machine], ExitStack]]:
    """Starts the machines, and ends them with the block; yields them and the stack for those that start later."""
    ports = free_ports(HOSTS, 3)
    machines = [Machine(folder, number, ports) for number in range(len(HOSTS))]
    with ExitStack() as stack:
        for machine in machines:
            machine.start(stack)
            stack.callback(machine.kill)
        for machine in machines:
            machine.serving()
        yield machines, stack


def leader(machines: list[Machine]) -> Machine:
    """Waits until a broker leads, and returns its machine.

    Raises:
        ChildError: None leads in time.
    """
    end = time.monotonic() + ELECTION_TIMEOUT_S
    while time.monotonic() < end:
        for machine in machines:
            if machine.leads:
                return machine
        time.sleep(POLL_INTERVAL_S)
    raise ChildError(f"no broker is the leader of the cluster within {ELECTION_TIMEOUT_S:.0f} s")


def move_stream(machine: Machine) -> bool:
    """Makes the server of a machine the leader of the journal's stream; returns whether it is."""
    return asyncio.run(_move_stream(machine))


async def _move_stream(machine: Machine) -> bool:
    connection = await nats.connect(machine.server, connect_timeout=int(NATS_TIMEOUT_S))
    try:

        async def ask(what: str, body: bytes = b"") -> Any:
            answer = await connection.request(f"$JS.API.STREAM.{what}.{STREAM}", body, timeout=NATS_TIMEOUT_S)
            return json.loads(answer.data)

        end = time.monotonic() + NATS_TIMEOUT_S
        wish = json.dumps({"placement": {"preferred": machine.name}}).encode()
        while time.monotonic() < end:
            with suppress(nats.errors.Error):
                if (await ask("INFO"))["cluster"].get("leader") == machine.name:
                    return True
                await ask("LEADER.STEPDOWN", wish)
            await asyncio.sleep(0.2)
        return False
    finally:
        await connection.close()


def _become_server(config: str) -> None:
    """Replaces this process by a nats-server, which gets SIGKILL when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    binary = nats_server()
    assert binary is not None
    os.execv(binary, [binary, "-c", config])


if __name__ == "__main__":
    _become_server(sys.argv[1])
