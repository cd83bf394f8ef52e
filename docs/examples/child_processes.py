"""Child processes that end with the program that starts them.

Run as a program it is the `omq` command, and ends with its standard input:
`python docs/examples/child_processes.py broker data`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Final, Self

SERVE_TIMEOUT_S: Final = 30.0  # until a server serves, and until a child ends in an orderly way
EXIT_TIMEOUT_S: Final = 3.0  # until a child is killed whose standard input has ended
POLL_INTERVAL_S: Final = 0.005
LOG_SHOWN_CHARS: Final = 2000


class ChildError(Exception):
    """A child that does not do what it should; the text ends with its log."""


class Child:
    """A Python program in a process of its own. Leaving the block ends it.

    Its standard input is a pipe that closes when this process ends, however this process ends: a child that has called
    `end_with_input` ends then, too.

    Args:
        name: Its name in errors.
        *command: The path of the program, and its arguments.
        log: The file for all its output; `None`: its output goes where that of this process goes.
        stdout: `PIPE`: the caller reads `stdout`, and closes it.
    """

    def __init__(self, name: str, *command: str | Path, log: Path | None = None, stdout: int | None = None) -> None:
        self._name = name
        self._log = log
        with ExitStack() as stack:
            output = stack.enter_context(log.open("ab")) if log else None
            self._process: Popen[bytes] = Popen(
                [sys.executable, *command],
                stdin=PIPE,
                stdout=output or stdout,
                stderr=output,
                start_new_session=True,  # a Ctrl-C is for this process alone
            )

    @property
    def stdout(self) -> IO[bytes]:
        """The standard output of a child with `stdout=PIPE`."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def status(self) -> int | None:
        """The exit status; `None` while it runs."""
        return self._process.poll()

    def error(self, fault: str) -> ChildError:
        """Returns the error for a fault of this child."""
        log = f":\n{self._log.read_text(errors='replace')[-LOG_SHOWN_CHARS:]}" if self._log else ""
        return ChildError(f"the {self._name} {fault}{log}")

    def write(self, data: bytes) -> None:
        """Writes to its standard input, unless it has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def end(self, number: int | None = None) -> None:
        """Waits until it ends.

        Args:
            number: The signal that it gets first; `None`: it ends by itself.

        Raises:
            ChildError: It does not end, or its status is not 0.
        """
        if number is not None:
            self._process.send_signal(number)
        try:
            status = self._process.wait(SERVE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise self.error("does not end") from None
        if status:
            raise self.error(f"has ended with status {status}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # of a job that a dead child has not read
            self._process.stdin.close()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


class OmqCommand(Child):
    """An `omq` command.

    Args:
        name: Its name in errors, and that of its log.
        folder: The directory of its log.
        *arguments: Its arguments, the command first.
    """

    def __init__(self, name: str, folder: Path, *arguments: str | Path) -> None:
        super().__init__(name, __file__, *arguments, log=folder / f"{name}.log")


class OmqServer(OmqCommand):
    """An `omq` command that serves; its parameters are those of `OmqCommand`."""

    def __init__(self, name: str, folder: Path, *arguments: str | Path) -> None:
        self._ready = folder / f"{name}.ready"
        self._ready.unlink(missing_ok=True)  # of a server that was killed
        super().__init__(name, folder, *arguments, "--ready-file", self._ready)

    def endpoints(self) -> dict[str, str]:
        """Waits until it serves, and returns its endpoints by their names.

        Raises:
            ChildError: It ends instead, or does not serve in time.
        """
        end = time.monotonic() + SERVE_TIMEOUT_S
        while not self._ready.exists():
            if self.status is not None or time.monotonic() > end:
                raise self.error("does not serve")
            time.sleep(POLL_INTERVAL_S)
        found: dict[str, str] = json.loads(self._ready.read_bytes())
        return found


def end_with_input() -> None:
    """Ends this process with SIGTERM when its standard input ends."""

    def wait() -> None:
        # Not through the buffer: its lock would be held when the interpreter ends.
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def free_ports(hosts: tuple[str, ...], count: int) -> list[int]:
    """Returns ports that are free on all hosts."""
    found: list[int] = []
    while len(found) < count:
        with ExitStack() as kept, suppress(OSError):
            port = 0
            for host in hosts:
                one = kept.enter_context(socket.socket())
                one.bind((host, port))
                port = one.getsockname()[1]
            if port not in found:
                found.append(port)
    return found


if __name__ == "__main__":
    from omq.cli.main import main

    end_with_input()
    main(prog_name="omq")
