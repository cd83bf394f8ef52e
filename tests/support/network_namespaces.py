"""Several hosts on one machine, and a standalone Spark over them.

A host is a network namespace with an address, a host name and a /tmp of its own. So nothing that only one machine has
(its loopback, abstract names of Unix sockets, sockets in /tmp, shared memory) leads from one to another; all that does
is the bridge between them. Processes are seen by all, so that a test can kill any.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import queue
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

ROOT = Path(__file__).parents[2]
NAMESPACES = Path("/run/netns")  # where ip(8) names them
NETWORK = "10.77.0"  # inside of the namespaces only, so two runs may have the same
ENDING = 30.0  # seconds that a killed process may take to go
STARTING = 120.0  # seconds that a JVM may take on a busy machine
NOWHERE: Final = "02:00:00:00:00:99"  # an Ethernet address that no host has
CLONE_NEWNET: Final = 0x40000000

#: What makes a process that is in a host's network one of the host: the rest of what the machine would share.
ENTER = (
    'hostname "$1" && mount --bind "$2/hosts" /etc/hosts &&'
    # A tree in /tmp stays where it is.
    ' case "$3" in /tmp/*) mkdir -p "$2$3" && mount --bind "$3" "$2$3";; esac &&'
    ' mount --rbind "$2/tmp" /tmp && mount -t tmpfs tmpfs /dev/shm && shift 3 && exec "$@"'
)
#: Less work for JVMs that live a minute, so that two cores do for six of them.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: What every executor prints.
USUAL = re.compile(r" INFO |default log4j profile|incubator modules|NativeCodeLoader|SIGNAL TERM|^tdown$|^=+$")

_numbers = itertools.count()
_T = TypeVar("_T")


class Unavailable(Exception):
    """No network namespaces can be made here."""


def enter(namespace: str) -> None:
    """Moves the calling thread, and what it starts from here on, into the network of a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (NAMESPACES / namespace).open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=ENDING, check=False)
    if done.returncode:
        raise Unavailable(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _begun(pid: int) -> str | None:
    """Returns when a process began, in the kernel's ticks: with the pid that names it for good. `None`: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _end(pids: list[int]) -> None:
    """Kills processes, and waits until they are gone or are nothing but a status for their parent."""
    watched = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                watched.append(os.pidfd_open(pid))
                signal.pidfd_send_signal(watched[-1], signal.SIGKILL)
        for one in watched:
            if not select.select([one], [], [], ENDING)[0]:
                raise AssertionError(f"processes {pids} outlive SIGKILL")
    finally:
        for one in watched:
            os.close(one)


def _remove(namespace: str) -> None:
    """Ends what runs in a namespace, and the namespace."""
    # A process may fork while the others are listed.
    while pids := [int(pid) for pid in _ip("netns", "pids", namespace).split()]:
        _end(pids)
    _ip("netns", "del", namespace)


def sweep() -> list[str]:
    """Removes what runs left that were killed; gives the names of the namespaces."""
    left = []
    for path in NAMESPACES.glob("omq-*"):
        found = re.fullmatch(r"omq-(\d+)-(\d+)-\d+-\w+", path.name)
        if found and _begun(int(found[1])) != found[2]:
            # Another run may sweep at the same time.
            with contextlib.suppress(Unavailable):
                _remove(path.name)
                left.append(path.name)
    return left


class Hosts:
    """Hosts on a bridge, which the first of them has.

    Args:
        folder: A new folder. A host has its /tmp in there.
        *names: The host names.

    Raises:
        Unavailable: They cannot be made here.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 1)}
        ours = f"omq-{os.getpid()}-{_begun(os.getpid())}-{next(_numbers)}"
        self.namespaces = {name: f"{ours}-{name}" for name in names}
        for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("setpriv", "util-linux")):
            if not shutil.which(tool):
                raise Unavailable(f"no {tool}: apt-get install {package}")
        if os.getuid():
            raise Unavailable("only root may make network namespaces")
        sweep()
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        table = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        for name in names:
            (folder / name / "tmp").mkdir(parents=True)
            (folder / name / "hosts").write_text(f"127.0.0.1 localhost\n{table}")

    def _connect(self) -> None:
        bridge, *others = self.namespaces.values()
        _ip("netns", "add", bridge)
        _ip("-n", bridge, "link", "add", "hub", "type", "bridge")
        for number, other in enumerate(others):
            _ip("netns", "add", other)
            port = f"port{number}"
            _ip("-n", bridge, "link", "add", port, "type", "veth", "peer", "name", "wire", "netns", other)
            _ip("-n", bridge, "link", "set", port, "master", "hub", "up")
        for (name, namespace), device in zip(self.namespaces.items(), ["hub", *["wire"] * len(others)], strict=True):
            _ip("-n", namespace, "addr", "add", f"{self.addresses[name]}/24", "dev", device)
            _ip("-n", namespace, "link", "set", device, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")

    def command(self, name: str, *command: str) -> list[str]:
        """The command that runs another one on a host, in a process that does not outlive ours."""
        inside = ("unshare", "--uts", "sh", "-c", ENTER, "sh", name, str(self.folder / name), str(ROOT), *command)
        return ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.namespaces[name], *inside]

    def call(self, name: str, function: Callable[[], _T]) -> _T:
        """Calls a function in a thread that is in the network of a host; returns its result."""
        with ThreadPoolExecutor(1, initializer=enter, initargs=(self.namespaces[name],)) as threads:
            return threads.submit(function).result()

    def cut(self, name: str, *others: str) -> None:
        """Loses what a host sends to others, and nothing that they send: it goes to an address of no host."""
        for other in others:
            self._neighbour("replace", name, other, "lladdr", NOWHERE, "nud", "permanent")

    def heal(self, name: str, *others: str) -> None:
        """Ends a `cut`."""
        for other in others:
            self._neighbour("del", name, other)

    def _neighbour(self, verb: str, name: str, other: str, *more: str) -> None:
        device = "hub" if name == next(iter(self.namespaces)) else "wire"
        _ip("-n", self.namespaces[name], "neigh", verb, self.addresses[other], *more, "dev", device)

    def close(self) -> None:
        """Ends what runs on the hosts, and the hosts."""
        for namespace in self.namespaces.values():
            if (NAMESPACES / namespace).exists():
                _remove(namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Process:
    """A process on a host: what it prints, line by line, and what it reports (`reported {...}`).

    Args:
        hosts: The hosts.
        name: The one that it runs on.
        log: Where its errors go, in the host's folder; if empty, they are in its output.
        command: The command.
        environ: Additional environment variables.
    """

    def __init__(self, hosts: Hosts, name: str, log: str, command: list[str], **environ: str) -> None:
        taken = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "TMPDIR")}
        own = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "omq" / "spark" / "top")]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": hosts.addresses[name],
        }
        self._what = f"{command[0]} on host {name}"
        self._log = hosts.folder / name / log if log else None
        with contextlib.ExitStack() as stack:
            self._process = subprocess.Popen(
                hosts.command(name, *command),
                env={**taken, **own, **environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(self._log.open("w")) if self._log else subprocess.STDOUT,
                text=True,
            )
        self._output: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._output.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def wait_printed(self, pattern: str, seconds: float) -> re.Match[str]:
        """Waits for a line that has a pattern; skips the lines before it.

        Raises:
            AssertionError: It does not come in time, or the process ends.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(end - time.monotonic(), 0))
            except queue.Empty:
                raise AssertionError(f"{self._what} does not print {pattern!r} in {seconds} s\n{self.tail()}") from None
            if line is None:
                raise AssertionError(f"{self._what} ended and did not print {pattern!r}\n{self.tail()}")
            if found := re.search(pattern, line):
                return found

    def wait_report(self, seconds: float) -> dict[str, Any]:
        """Waits for its next report."""
        facts: dict[str, Any] = json.loads(self.wait_printed(r"^reported (.*)$", seconds)[1])
        return facts

    def has_reported(self, fact: str) -> bool:
        """Returns whether the program has reported a fact already."""
        return any(line.startswith("reported ") and fact in json.loads(line[9:]) for line in list(self._output))

    def tail(self) -> str:
        """The last lines that it printed."""
        lines = self._log.read_text().splitlines(keepends=True) if self._log else []
        return "".join([*lines[-60:], *(line[:500] for line in self._output[-20:])])

    def order(self, line: str) -> None:
        """Gives it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end_input(self) -> None:
        """Ends its standard input, by which our programs know that they are to end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self, seconds: float) -> int:
        """Waits for its end."""
        return self._process.wait(seconds)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Ends it."""
        assert self._process.stdout is not None
        self.end_input()
        self._process.send_signal(how)
        try:
            self._process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(ENDING)
        # Its pipe may be held open by a process that it started: that one ends with its host.
        self._reader.join(1)
        if not self._reader.is_alive():
            self._process.stdout.close()


@contextlib.contextmanager
def running(hosts: Hosts, name: str, log: str, *command: str, **environ: str) -> Iterator[Process]:
    """A process that is killed at the end, if it is there still."""
    process = Process(hosts, name, log, list(command), **environ)
    try:
        yield process
    finally:
        process.stop()


class Cluster:
    """A standalone Spark: the master on the first host, and on each other one a worker with one core and 1 GiB.

    Args:
        hosts: The hosts.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.driver, *self.executors = hosts.addresses
        self._daemons: list[Process] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.master = self._daemon("Master", self.driver, r"spark://[\d.]+:\d+", "--port", "0")
        given = ("--cores", "1", "--memory", "1g", "--work-dir", "/tmp/work", self.master)
        for name in self.executors:
            self._daemon("Worker", name, "Successfully registered", *given)

    def _daemon(self, role: str, name: str, expected: str, *arguments: str) -> str:
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}"]
        command += ["--host", self.hosts.addresses[name], "--webui-port", "0", *arguments]
        environ = {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": BRIEF}
        self._daemons.append(Process(self.hosts, name, "", command, **environ))
        return self._daemons[-1].wait_printed(expected, STARTING)[0]

    def conf(self) -> dict[str, str]:
        """Returns the options for the session of a driver on the first host: an executor on each other host."""
        return {
            "spark.driver.host": self.hosts.addresses[self.driver],
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.cores.max": str(len(self.executors)),
            # Nothing begins before all executors are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        }

    def errors(self) -> str:
        """Returns the log lines of the last program's executors and Python workers, without the usual ones."""
        found = []
        for name in self.executors:
            programs = sorted((self.hosts.folder / name / "tmp" / "work").glob("app-*"))
            for path in sorted(programs[-1].glob("*/stderr")) if programs else []:
                _, _, text = path.read_text(errors="replace").partition("=" * 40)  # what stands before is its command
                lines = [line[:500] for line in text.splitlines() if line and not USUAL.search(line)]
                found.append("\n".join([f"--- executor {path.parent.name} on host {name}", *lines[-20:]]))
        return "\n".join(found)

    def close(self) -> None:
        """Ends the daemons, the master last."""
        for one in reversed(self._daemons):
            one.stop(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
