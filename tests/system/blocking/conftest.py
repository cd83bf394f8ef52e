"""Programs of their own: what happens at exit, after a fork or on Ctrl-C needs a process."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.fork_server import ForkedProcess, Template
from tests.support.waits import sleeps, until

BOUND = 20.0  # seconds for one program
DEVELOPMENT = Template(("omq", "omq.asyncio", "uvloop"), flags=("-X", "dev", "-W", "ignore::DeprecationWarning"))


def unhurried(error: str) -> str:
    """Returns standard error without asyncio's reports of slow steps in debug mode: on a busy machine all are."""
    return "".join(line for line in error.splitlines(True) if not line.startswith("Executing <"))


class Program:
    """A running Python program."""

    def __init__(self, source: str, *arguments: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = ForkedProcess(
            "-c", textwrap.dedent(source), *arguments, text=True, template=DEVELOPMENT, **pipes
        )

    def line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def next_error(self) -> str:
        """The next line of its standard error, without what asyncio's debug mode logs of slow steps."""
        assert self.process.stderr is not None
        while (line := self.process.stderr.readline()).startswith("Executing <"):
            pass
        return line

    def asleep(self) -> None:
        """Waits until its main thread sleeps in the call that follows its last line, or spins there (`busy_poll`)."""
        begun = self.seconds()
        until(lambda: sleeps(self.process.pid) or self.seconds() - begun > 0.1, "sleep")

    def seconds(self) -> float:
        """The processor time that it has used."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, bound: float = BOUND, silent: bool = True) -> str:
        """Waits for its end, which is to be a good one; gives the rest of its output."""
        out, error = self.process.communicate(timeout=bound)
        assert self.process.returncode == 0, f"status {self.process.returncode}\n{out}\n{error}"
        if silent:
            assert unhurried(error) == "", error
        return out


@pytest.fixture
def program() -> Iterator[Callable[..., Any]]:
    """Starts programs; what still runs when the test ends is killed."""
    started: list[Program] = []

    def start(source: str, *arguments: str) -> Program:
        started.append(Program(source, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()
