"""Child processes that are forks of a process with what they import: each starts in a tenth of the time.

They take the arguments `-c PROGRAM ...` or `-m MODULE ...`, and end as an interpreter does. `ForkedProcess` is for
tests, `executable` for what something else starts, as Spark its workers and omq its receivers. `subprocess` is for
tests of what happens before the program runs: imports, and variables that are read by them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import marshal
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
MAX_REQUEST_BYTES: Final = 200_000
#: A client that stands for Python; it passes its descriptors, and ends as its child process does. `socket` and the site
#: would take longer than all of it.
CLIENT: Final = """\
#!{python} -ISE
import _socket, array, marshal, os, resource, sys
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
connection.connect({address})
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
request = marshal.dumps(({program!r}, sys.argv[1:], dict(os.environ), os.getcwd(), limits))
connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
connection.recv(16)
status = int(connection.recv(16) or -9)
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@dataclass(frozen=True)
class Template:
    """An interpreter of which child processes are forks.

    Attributes:
        modules: What it imports; a module that is missing is left out.
        flags: Its flags.
        path: Its `PYTHONPATH`; as here without it.
        frozen: Objects of the modules are left alone at the end of a child process, which saves most of its time.
            Without it a program ends as it does without a template, which matters where its end is tested.
    """

    modules: tuple[str, ...]
    flags: tuple[str, ...] = ()
    path: str = ""
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
    """A child process, with the methods of `subprocess.Popen`. It is killed when its object is collected.

    Args:
        arguments: As for Python.
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
        self.args = tuple(map(str, arguments))
        self.returncode: int | None = None
        limits = max_descriptors or resource.getrlimit(resource.RLIMIT_NOFILE)
        environment = dict(os.environ if env is None else env)
        request = marshal.dumps((sys.executable, self.args, environment, str(cwd or Path.cwd()), limits))
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        weakref.finalize(self, self._connection.close)
        self._connection.connect(_server(template))
        with contextlib.ExitStack() as theirs:
            files = (stdin, stdout, stderr)
            ends = [_ends(number, file, text, theirs) for number, file in enumerate(files)]
            socket.send_fds(self._connection, [request], [end for end, _ in ends])
            self.pid = int(self._connection.recv(16))
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
            self._connection.settimeout(timeout)
            try:
                self.returncode = int(self._connection.recv(16))
            except (TimeoutError, BlockingIOError):
                return None
            self._connection.close()
        return self.returncode


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


def run(*arguments: str | Path, timeout: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program until it has ended, and returns its status and its texts."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    process = ForkedProcess(*arguments, **pipes)
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


def executable(folder: Path, template: Template) -> Path:
    """Writes a program to the folder that stands for Python."""
    program = folder / "python"
    program.write_text(CLIENT.format(python=sys.executable, address=repr(_server(template)), program=str(program)))
    program.chmod(0o755)
    return program


@functools.cache
def _server(template: Template) -> bytes:
    """Starts the process that forks, which ends with this one, and returns its address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("")  # to a free address
        listener.listen(100)
        server = subprocess.Popen(
            [
                *(sys.executable, *template.flags, "-m", "tests.support.fork_server"),
                *(str(listener.fileno()), "frozen" if template.frozen else "", *template.modules),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": template.path or os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # what a child process prints is buffered as that of `Popen`'s
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C in a terminal is for the tests
        )
        atexit.register(server.communicate)
        return bytes(listener.getsockname())


def _serve(listener: socket.socket) -> Any:
    """Forks for each connection, and returns in each child process its request.

    A connection gets the id of its child process, and later the exit status. Its end kills the child process; the end
    of the standard input kills all, and ends the server.
    """
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ, "owner")
    selector.register(listener, selectors.EVENT_READ)
    while True:
        key, _ = selector.select()[0]  # which may change what the next ones are about
        if key.fileobj is listener:
            client, _ = listener.accept()
            request, descriptors, _, _ = socket.recv_fds(client, MAX_REQUEST_BYTES, 3)
            if not request:
                client.close()
                continue
            if (pid := os.fork()) == 0:
                for number, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                files: list[Any] = [key.fileobj for key in selector.get_map().values() if key.data != "owner"]
                for file in (client, *files, selector):
                    file.close()
                return marshal.loads(request)
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                client.send(b"%d" % pid)
            selector.register(client, selectors.EVENT_READ, pid)
            selector.register(os.fdopen(os.pidfd_open(pid), "rb", 0), selectors.EVENT_READ, (pid, client))
        elif key.data == "owner":
            for pid in (key.data for key in selector.get_map().values() if isinstance(key.data, int)):
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        else:
            ended: Any = key.fileobj
            selector.unregister(ended)
            ended.close()
            if isinstance(key.data, int):
                os.kill(key.data, signal.SIGKILL)
                continue
            pid, client = key.data
            _, status = os.waitpid(pid, 0)
            with client, contextlib.suppress(ValueError, OSError):  # the client has ended
                selector.unregister(client)
                client.send(b"%d" % os.waitstatus_to_exitcode(status))


def main() -> types.CodeType:
    """Serves, and returns in a child process the program of its request."""
    _, number, frozen, *modules = sys.argv
    for module in modules:
        with contextlib.suppress(ImportError):  # a package is missing
            importlib.import_module(module)
    if frozen:
        gc.collect()
        gc.freeze()
    sys.executable, (kind, program, *arguments), environment, folder, limits = _serve(socket.socket(fileno=int(number)))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    sys.argv[:] = [kind, *arguments]
    if kind == "-m":
        sys.modules.pop(program, None)
        Path("/proc/self/comm").write_text(program.rpartition(".")[2])
        program = f"import runpy\nrunpy.run_module({program!r}, run_name='__main__', alter_sys=True)"
    return compile(program, "<string>", "exec", dont_inherit=True)


if __name__ == "__main__":
    program = main()
    # A new main module, whose names live as long as those of a program of its own.
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(program, vars(sys.modules["__main__"]))
