"""The processes of a run: starts them, sends them orders, and ends them by process id."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.peers import PEERS

ROOT = Path(__file__).resolve().parent.parent
ANSWER_TIMEOUT_S = 30.0  # for any one report; a run takes one or two seconds


START_TIMEOUT_S = 30.0  # until a server serves


class RunError(Exception):
    """A worker failed, died, or did not answer in time."""


class ControlledProcess:
    """A fresh Python process that receives orders and sends reports (`bench.control`).

    Args:
        name: Its name in errors.
        module: The module that it runs, and its arguments.
        interpreter: The interpreter that runs it.
    """

    def __init__(self, name: str, *module: str, interpreter: str = sys.executable) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [interpreter, "-m", *module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )
        self._buffer = b""

    def order(self, **values: Any) -> None:
        """Sends one order."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(values).encode() + b"\n")
        except OSError:
            raise self._failure("ended early") from None

    def wait_for(self, key: str, timeout: float = ANSWER_TIMEOUT_S) -> Any:
        """Waits for a report with *key*; returns its value, or all values where there are more.

        Raises:
            RunError: The worker failed or did not answer in time.
        """
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise self._failure(f"no {key!r} within {timeout:g} s")
            chunk = self._process.stdout.read(1 << 20)
            if not chunk:
                raise self._failure("ended early")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        values = json.loads(line)
        if key not in values:
            raise self._failure(values.get("error", f"reported {values} instead of {key!r}"))
        return values[key] if len(values) == 1 else values

    def pause(self) -> None:
        """Stops the process, as Ctrl-Z does; it never continues."""
        self._process.send_signal(signal.SIGSTOP)

    def _failure(self, what: str) -> RunError:
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace")[-2000:]
        return RunError(f"{self.name}: {what}\n{tail}".rstrip())

    def close(self) -> None:
        """Kills the process and reaps it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Worker(ControlledProcess):
    """A process that runs one role of one peer.

    Args:
        peer: The key of the peer in `PEERS`.
        role: Its role.
        job: The role's options: `endpoint`, `size`, `seconds`.
    """

    def __init__(self, peer: str, role: str, **job: Any) -> None:
        job["limit"] = int(4 * ANSWER_TIMEOUT_S)
        job["options"] = dict(PEERS[peer].options)
        words = ("bench.worker", peer, role, json.dumps(job))
        super().__init__(f"{PEERS[peer].label} {role}", *words, interpreter=PEERS[peer].interpreter)


def free_ports(count: int) -> list[int]:
    """Returns different ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def served(folder: Path, *command: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Runs a server in a process of its own; yields its id and its endpoints.

    Args:
        folder: The directory of `ready.json`, to which it writes its endpoints.
        *command: The module that it runs, and its arguments.

    Raises:
        RunError: It ends, or does not serve in time.
    """
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT)
    try:
        end = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            if process.poll() is not None:
                raise RunError(f"{command} has ended with {process.returncode}")
            if time.monotonic() > end:
                raise RunError(f"{command} does not serve within {START_TIMEOUT_S:g} s")
            time.sleep(0.01)
        yield process.pid, json.loads(ready.read_bytes())
    finally:
        process.terminate()
        process.wait()
