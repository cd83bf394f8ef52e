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
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
#: What the commands and the programs of tests import.
MODULES: Final = (
    "omq.asyncio.broker",
    "omq.asyncio.pzq",
    "omq.broker",
    "omq.broker.http.server",
    "omq.broker.sexp.server",
    "omq.broker.zmtp.server",
    "omq.cli.main",
    "omq.pzq",
    "omq.store.lmdb.snapshot",
    "omq.store.lmdb.store",
    "uvloop",
)
MAX_REQUEST_BYTES: Final = 200_000
NO_STATUS: Final = -1000  # the server has died


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
        max_descriptors: Its limit of descriptors; `None` for ours.
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
        max_descriptors: int | None = None,
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
            self.pid = _server().fork(request, [*(end for end, _ in ends), status.fileno()])
        self.stdin, self.stdout, self.stderr = (ours for _, ours in ends)

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
        found: list[Any] = [None, None]

        def read(index: int, file: IO[Any]) -> None:
            with file:
                found[index] = file.read()

        outputs = [(index, file) for index, file in enumerate((self.stdout, self.stderr)) if file and not file.closed]
        threads = [threading.Thread(target=read, args=output, daemon=True) for output in outputs]
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
        return found[0], found[1]

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

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                cwd=ROOT,
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
def _server() -> _Server:
    return _Server()


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
                        socket.socket(fileno=status).send(b"%d" % os.waitstatus_to_exitcode(code))
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


def main() -> None:
    """Serves, and runs the program of the request in a child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the tests
    for module in MODULES:
        with contextlib.suppress(ImportError):  # a package is missing
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        request = _serve(channel)
    if request is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["max_descriptors"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["max_descriptors"],) * 2)
    sys.argv[:] = ["-c", *request["arguments"]]
    exec(compile(request["program"], "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
