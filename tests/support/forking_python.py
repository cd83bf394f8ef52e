"""An executable that stands for Python: `-m` and `-c` run in a fork of a process that has imported much already.

It is for programs that something else starts, as Spark its workers and omq its receivers. The imports of such a process
take most of a second; a fork has them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import resource
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MAX_REQUEST_BYTES: Final = 200_000
# It passes its descriptors, and ends as its process does. `socket` and the site would take longer than all of it.
CLIENT: Final = """\
import _socket, array, marshal, os, resource, sys
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
request = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd(), limits))
connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
status = int(connection.recv(16) or -9)
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@contextlib.contextmanager
def forking_python(folder: Path, *modules: str, path: str = "") -> Iterator[Path]:
    """Gives the executable; its processes may outlive the context.

    Args:
        folder: An empty folder.
        modules: What is imported once.
        path: The `PYTHONPATH` of the processes; as here without it.
    """
    address, client, program = folder / "socket", folder / "client.py", folder / "python"
    client.write_text(CLIENT)
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-ISE", str(client), str(address)])} "$@"\n')
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen(100)
        number = str(listener.fileno())
        command = [sys.executable, "-m", "tests.support.forking_python", number, str(program), *modules]
        environment = {**os.environ, "PYTHONPATH": path or os.pathsep.join(sys.path)}
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment, pass_fds=[listener.fileno()], start_new_session=True
        )
    try:
        yield program
    finally:
        server.kill()
        server.wait()


def serve(listener: socket.socket) -> tuple[list[str], dict[str, str], str, tuple[int, int]]:
    """Forks for each client, and returns in each child process what the client has sent.

    Returns:
        Its arguments, its environment, its working directory and its limits of descriptors.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select()[:1]:  # which may change what the next ones are about
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    request, descriptors, _, _ = socket.recv_fds(client, MAX_REQUEST_BYTES, 3)
                    if not request:
                        client.close()
                        continue
                    pid = os.fork()
                    if pid == 0:
                        for number, descriptor in enumerate(descriptors):
                            os.dup2(descriptor, number)
                        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
                        return marshal.loads(request)  # type: ignore[no-any-return]
                    for descriptor in descriptors:
                        os.close(descriptor)
                    selector.register(client, selectors.EVENT_READ, pid)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, client))
                elif isinstance(key.data, int):  # the client is dead, and its process dies with it
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
                else:
                    pid, client = key.data
                    os.close(selector.unregister(key.fileobj).fd)
                    _, status = os.waitpid(pid, 0)
                    with client, contextlib.suppress(KeyError, OSError):
                        selector.unregister(client)
                        client.send(b"%d" % os.waitstatus_to_exitcode(status))


def main() -> None:
    """Serves, and runs the program of a request in a child process."""
    _, number, sys.executable, *modules = sys.argv  # what the processes start are forks, too
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    (kind, program, *arguments), environment, folder, limits = serve(socket.socket(fileno=int(number)))
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = [kind, *arguments]
    if kind == "-c":
        exec(program, {"__name__": "__main__"})
    else:
        sys.modules.pop(program, None)
        Path("/proc/self/comm").write_text(program.rpartition(".")[2])
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
