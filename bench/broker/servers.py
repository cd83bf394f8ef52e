"""The servers: started on loopback over a fresh directory, awaited until they serve, ended by process id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bench.broker.install import program
from bench.processes import ROOT, RunError, free_ports

SERVER_TIMEOUT_S = 90.0  # until a server serves, or ends
START_TRIES = 3  # a port that was free may be taken when the server asks for it


@dataclass(frozen=True)
class ServerCommand:
    """The command of a server, and its endpoint.

    Attributes:
        command: The command.
        endpoint: Returns its endpoint; `None` while it does not serve yet.
        environment: Additions to the environment.
        helpers: Programs that have to run next to it, started before.
    """

    command: list[str]
    endpoint: Callable[[], str | None]
    environment: Mapping[str, str] = field(default_factory=dict)
    helpers: tuple[list[str], ...] = ()


Starter = Callable[[Path, Mapping[str, str]], ServerCommand]


@dataclass(frozen=True)
class MeasuredServer:
    """A server that serves.

    Attributes:
        endpoint: `host:port`, or an endpoint of ZMTP.
        pid: Its process, which leads a session.
        directory: The directory of its data.
        process: The same process.
    """

    endpoint: str
    pid: int
    directory: Path
    process: subprocess.Popen[bytes]

    def end_orderly(self) -> None:
        """Ends it with SIGTERM, and waits until it has ended."""
        self.process.terminate()
        try:
            self.process.wait(SERVER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RunError("the server did not end when it was asked to") from None

    def memory(self) -> int:
        """Returns the bytes of its own memory now, with the processes that it started, without mapped files."""
        found = 0
        for process, _ in self._processes():
            try:
                lines = (process / "status").read_text().splitlines()
            except OSError:
                continue  # it has just ended
            found += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
        return found

    def busy(self) -> float:
        """Returns the seconds of processor time that it has used."""
        return sum(int(fields[11]) + int(fields[12]) for _, fields in self._processes()) / os.sysconf("SC_CLK_TCK")

    def _processes(self) -> Iterator[tuple[Path, list[str]]]:
        """Yields the processes of its session, each with the fields of its `stat` after the name: state, parent, ..."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.pid:
                yield process, fields


@contextmanager
def serving(name: str, options: Mapping[str, str], place: Path) -> Iterator[MeasuredServer]:
    """Runs a server as long as the `with` lasts.

    Args:
        name: A key of `STARTERS`.
        options: Its settings, by its own names.
        place: The folder of its directory, which is removed in the end.

    Raises:
        RunError: It does not serve.
    """
    for last in (number == START_TRIES - 1 for number in range(START_TRIES)):
        with fresh_directory(name, place) as directory, ExitStack() as stack:
            try:
                running = stack.enter_context(serving_from(directory, name, options))
            except RunError:
                if last:
                    raise
                continue
            yield running
            return


@contextmanager
def fresh_directory(name: str, place: Path) -> Iterator[Path]:
    """Yields a directory for the data of a server, which is removed in the end."""
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=place))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def serving_from(directory: Path, name: str, options: Mapping[str, str]) -> Iterator[MeasuredServer]:
    """Runs a server like `serving`, from a directory that stays; another one may have served from it before."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with (directory / "output").open("wb") as output:
            started = STARTERS[name](directory, options)
            commands = (*started.helpers, started.command)
            processes += [_process(command, started.environment, directory, output) for command in commands]
        endpoint = _wait_served(name, started, processes, directory)
        yield MeasuredServer(endpoint, processes[-1].pid, directory, processes[-1])
    finally:
        for process in reversed(processes):
            _end(process)


def _process(
    command: list[str], environment: Mapping[str, str], directory: Path, output: IO[bytes]
) -> subprocess.Popen[bytes]:
    # A session of its own, so that the processes that a server starts end with it.
    return subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def _wait_served(name: str, started: ServerCommand, processes: list[subprocess.Popen[bytes]], directory: Path) -> str:
    deadline = time.monotonic() + SERVER_TIMEOUT_S
    while time.monotonic() < deadline:
        if any(process.poll() is not None for process in processes):
            break
        if (endpoint := started.endpoint()) is not None:
            return endpoint
        time.sleep(0.02)
    output = (directory / "output").read_text(errors="replace")[-2000:]
    raise RunError(f"{name} does not serve: {' '.join(started.command)}\n{output}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a server with its process group; its data is thrown away."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _answers(port: int, request: bytes, answer: bytes) -> bool:
    """Returns whether the server at a port answers a request with *answer*."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.sendall(request)
            return client.recv(4096).startswith(answer)
    except OSError:
        return False


def _nats(directory: Path, options: Mapping[str, str]) -> ServerCommand:
    ports = directory / "ports"
    ports.mkdir()
    # The default of max_file_store is a share of the disk, which may be too little.
    settings = "".join(f"  {key}: {value}\n" for key, value in options.items())
    (directory / "nats.conf").write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{ports}"\n'
        f'jetstream {{\n  store_dir: "{directory}/data"\n  max_file_store: 200GB\n{settings}}}\n'
    )

    def endpoint() -> str | None:
        for path in ports.iterdir():
            try:
                url: str = json.loads(path.read_text())["nats"][0]
            except (ValueError, LookupError):
                return None  # half written
            host = url.removeprefix("nats://")
            return host if _answers(int(host.rpartition(":")[2]), b"", b"INFO") else None
        return None

    return ServerCommand([program("nats") or "nats-server", "-c", str(directory / "nats.conf")], endpoint)


def _redis(directory: Path, options: Mapping[str, str]) -> ServerCommand:
    (port,) = free_ports(1)
    # No snapshots, and no rewriting of the file in between, which would slow it down.
    settings = {"save": "", "appendonly": "yes", "auto-aof-rewrite-percentage": "0", **options}
    words = [word for key, value in settings.items() for word in (f"--{key}", value)]
    command = [program("redis") or "redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory)]
    return ServerCommand(
        [*command, *words], lambda: f"127.0.0.1:{port}" if _answers(port, b"PING\r\n", b"+PONG") else None
    )


def _rabbitmq(directory: Path, options: Mapping[str, str]) -> ServerCommand:
    port, distribution, mapper = free_ports(3)
    (directory / "rabbitmq.conf").write_text(
        # Its alarm for a disk that is nearly full would stop publishers at a share of the memory.
        f"listeners.tcp.1 = 127.0.0.1:{port}\ndisk_free_limit.absolute = 1GB\n"
        + "".join(f"{key} = {value}\n" for key, value in options.items())
    )
    (directory / "enabled_plugins").write_text("[].")
    environment = {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": f"bench{os.getpid()}p{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_BASE": str(directory),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    # Erlang would leave its own port mapper running: this one is ended with the server.
    epmd = [shutil.which("epmd") or "epmd", "-port", str(mapper), "-address", "127.0.0.1"]
    greeting, start = b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00"

    def endpoint() -> str | None:
        return f"127.0.0.1:{port}" if _answers(port, greeting, start) else None

    return ServerCommand([program("rabbitmq") or "rabbitmq-server"], endpoint, environment, (epmd,))


def _omq(directory: Path, options: Mapping[str, str]) -> ServerCommand:
    ready = directory / "ready"
    ready.unlink(missing_ok=True)  # of one that served from here before
    words = [word for key, value in options.items() for word in (f"--{key}", value)]

    def endpoint() -> str | None:
        try:
            found: str = json.loads(ready.read_text())["zmtp"]
        except FileNotFoundError:
            return None
        return found

    command = [sys.executable, "-m", "omq.cli.main", "broker", str(directory / "data")]
    command += ["--bind", "tcp://127.0.0.1:*", "--ready-file", str(ready), *words]
    return ServerCommand(command, endpoint, {"PYTHONPATH": str(ROOT)})


def _sink(directory: Path, options: Mapping[str, str]) -> ServerCommand:
    ready = directory / "ready"

    def endpoint() -> str | None:
        return ready.read_text() if ready.exists() else None

    return ServerCommand(
        [sys.executable, "-m", "bench.broker.floor_server", str(ready)], endpoint, {"PYTHONPATH": str(ROOT)}
    )


STARTERS: dict[str, Starter] = {"nats": _nats, "redis": _redis, "rabbitmq": _rabbitmq, "omq": _omq, "sink": _sink}
