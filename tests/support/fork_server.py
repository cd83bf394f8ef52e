"""Child processes that are forks of a process with the package imported: each starts in a tenth of the time.

They run a program as `python -c` does, and end as an interpreter does. `subprocess` is for tests of what happens before
the program runs: imports, and variables that are read by them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
MAX_REQUEST_BYTES: Final = 200_000
NO_STATUS: Final = -1000  # the server has died


#: A program that runs the module of its first argument, as `python -m` does.
RUN_MODULE: Final = "import runpy, sys; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


@dataclass(frozen=True)
class Template:
    """An interpreter of which child processes are forks.

    Attributes:
        modules: What it imports; a module that is missing is left out.
        flags: Its flags.
        frozen: Objects of the modules are left alone at the end of a child process, which saves most of its time.
            Without it a program ends as it does without a template, which matters where its end is tested.
    """

    modules: tuple[str, ...]
    flags: tuple[str, ...] = ()
    frozen: bool = False


#: For the commands, and for programs that use their servers.
COMMANDS: Final = Template(
    (
        "omq.asyncio.broker",
        "omq.asyncio.pzq",
        "omq.broker",
        "omq.broker.http.server",
        "omq.broker.sexp.server",
        "omq.broker.zmtp.server",
        "omq.cli.goby",
        "omq.cli.gobyd",
        "omq.cli.main",
        "omq.goby",
        "omq.pzq",
        "omq.store.lmdb.snapshot",
        "omq.store.lmdb.store",
        "uvloop",
    ),
    frozen=True,
)
#: For programs with sockets of either library.
SOCKETS: Final = Template(("omq", "omq.asyncio", "uvloop", "zmq"))


class ForkedProcess:
    """A child process, with the methods of `subprocess.Popen`.

    Args:
        program: Source text.
        arguments: Its `sys.argv[1:]`.
        cwd: Its working directory; `None` for ours.
        env: Its environment; `None` for ours.
        stdin: As for `Popen`, like the next ones, but without `STDOUT`.
        stdout: Its standard output.
        stderr: Its standard error.
        text: Pipes decode and encode.
        max_descriptors: Its soft and its hard limit of descriptors; `None` for ours.
        template: The interpreter of which it is a fork.
    """

    def __init__(
        self,
        program: str,
        *arguments: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        text: bool = False,
        max_descriptors: tuple[int, int] | None = None,
        template: Template = COMMANDS,
    ) -> None:
        self.args = (program, *map(str, arguments))
        self.returncode: int | None = None
        request = {
            "program": program,
            "arguments": [*map(str, arguments)],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "max_descriptors": max_descriptors,
        }
        with contextlib.ExitStack() as theirs:
            files = (stdin, stdout, stderr)
            ends = [_ends(number, file, text, theirs) for number, file in enumerate(files)]
            self._status, status = socket.socketpair()
            theirs.callback(status.close)
            self.pid = _server(template).fork(request, [*(end for end, _ in ends), status.fileno()])
        self.stdin, self.stdout, self.stderr = (ours for _, ours in ends)
        self._readers: list[_Reader] | None = None

    def poll(self) -> int | None:
        """Returns its exit status as `Popen` does, or `None` while it runs."""
        return self._read_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended, and returns its exit status."""
        status = self._read_status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Waits until it has ended, and returns its output and its errors."""
        if self.stdin is not None:
            self.stdin.close()
        if self._readers is None:
            self._readers = [_Reader(self.stdout), _Reader(self.stderr)]
        self.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
            if reader.is_alive():  # another process has the pipe
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        output, errors = (reader.found for reader in self._readers)
        return output, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()

    def _read_status(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                status = self._status.recv(16)
            except (TimeoutError, BlockingIOError):
                return None
            self.returncode = int(status) if status else NO_STATUS
            self._status.close()
        return self.returncode

    def __del__(self) -> None:
        if hasattr(self, "_status"):
            self._status.close()


class _Reader(threading.Thread):
    """Reads a pipe to its end, and closes it.

    Attributes:
        found: What was read; `None` without an open pipe.
    """

    def __init__(self, file: IO[Any] | None) -> None:
        super().__init__(daemon=True)
        self.found: Any = None
        self._file = None if file is None or file.closed else file
        self.start()

    def run(self) -> None:
        if self._file is not None:
            with self._file:
                self.found = self._file.read()


def run(
    program: str, *arguments: str | Path, timeout: float = 60.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program until it has ended, and returns its status and its texts."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    process = ForkedProcess(program, *arguments, **pipes)
    try:
        output, errors = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.wait(), output, errors)


def _ends(number: int, file: IO[Any] | int | None, text: bool, theirs: contextlib.ExitStack) -> tuple[int, Any]:
    """Returns the descriptor of a child process, and the other end of its pipe if it has one."""
    if file is None:
        return number, None
    if file == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, null)
        return null, None
    if file == subprocess.PIPE:
        ends = os.pipe()
        own, other = ends if number == 0 else ends[::-1]
        theirs.callback(os.close, own)
        mode = "w" if number == 0 else "r"
        return own, os.fdopen(other, mode if text else f"{mode}b")
    return (file if isinstance(file, int) else file.fileno()), None


class _Server:
    """The process that forks; it ends with this one."""

    def __init__(self, template: Template) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = (sys.executable, *template.flags, "-m", "tests.support.fork_server")
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), "frozen" if template.frozen else "", *template.modules],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # what a child process prints is buffered as that of `Popen`'s
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Returns the id of the child process."""
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            return int(self._channel.recv(16))

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()


@functools.cache
def _server(template: Template) -> _Server:
    return _Server(template)


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Forks for each request, and reports the exit status of each child process.

    Returns:
        The request, in a child process; `None` in the server, at its end.
    """
    children: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not channel:
                    pid, status = children.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _, code = os.waitpid(pid, 0)
                    with contextlib.suppress(BrokenPipeError):
                        os.write(status, b"%d" % os.waitstatus_to_exitcode(code))
                    os.close(status)
                    continue
                text, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 4)
                if not text:
                    return None
                pid = os.fork()
                if pid == 0:
                    for number in range(3):
                        os.dup2(descriptors[number], number)
                    for descriptor in (*descriptors, *children, *(status for _, status in children.values())):
                        os.close(descriptor)
                    request: dict[str, Any] = json.loads(text)
                    return request
                for descriptor in descriptors[:3]:
                    os.close(descriptor)
                watched = os.pidfd_open(pid)
                children[watched] = (pid, descriptors[3])
                selector.register(watched, selectors.EVENT_READ)
                channel.send(b"%d" % pid)


def main() -> str:
    """Serves, and returns the program of the request in a child process; the empty one in the server, at its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the tests
    for module in sys.argv[3:]:
        with contextlib.suppress(ImportError):  # a package is missing
            importlib.import_module(module)
    if sys.argv[2] == "frozen":
        gc.collect()
        gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        request = _serve(channel)
    if request is None:
        return ""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["max_descriptors"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, request["max_descriptors"])
    sys.argv[:] = ["-c", *request["arguments"]]
    program: str = request["program"]
    return program


if __name__ == "__main__":
    program = compile(main(), "<string>", "exec", dont_inherit=True)
    # A new main module, whose names live as long as those of a program of its own.
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(program, vars(sys.modules["__main__"]))
