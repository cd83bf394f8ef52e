"""`omq` as a process."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.fork_server import COMMANDS, ForkedProcess, executable

MAIN: Final = "from omq.cli.main import main; main(prog_name='omq')"
BOUND: Final = 30.0  # seconds that a command may take
#: The commands that the test has started.
STARTED: Final[list[ForkedProcess]] = []


def start(*words: str | Path, **options: Any) -> ForkedProcess:
    """Starts a command, with pipes for what is not given; it is killed at the end of the test."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = ForkedProcess("-c", MAIN, *words, **pipes)
    STARTED.append(process)
    return process


def finished(process: ForkedProcess, status: int = 0) -> bytes:
    """Waits until a command has ended with this status, and returns its output."""
    out, err = process.communicate(BOUND)
    assert process.wait(BOUND) == status, err
    return bytes(out or b"")


def failed(process: ForkedProcess, status: int = 1) -> str:
    """Waits until a command has failed, and returns the line of its error."""
    _, err = process.communicate(BOUND)
    assert process.wait(BOUND) == status, err
    line = bytes(err).decode().splitlines()[-1]
    assert line.startswith("Error: "), err
    return line


def run(*words: str | Path, input: bytes = b"", status: int = 0) -> bytes:
    """Runs a command with this standard input, and returns its output."""
    process = start(*words, stdin=subprocess.PIPE)
    process.stdin.write(input)
    process.stdin.close()
    process.stdin = None
    return finished(process, status)


def on_terminal(*words: str | Path, **options: Any) -> tuple[ForkedProcess, int]:
    """Starts a command whose standard output and error are a terminal; returns it with the other side."""
    ours, theirs = pty.openpty()
    try:
        return start(*words, stdout=theirs, stderr=theirs, **options), ours
    finally:
        os.close(theirs)


def screen_of(terminal: int) -> bytes:
    """Returns all that was printed on a terminal whose programs have ended."""
    found = b""
    try:
        while data := os.read(terminal, 65536):
            found += data
    except OSError:
        pass
    finally:
        os.close(terminal)
    return found


def run_first(pid: int, policy: int = os.SCHED_FIFO) -> None:
    """Makes a process run before all others, where that is allowed: other programs of the machine are not measured."""
    with contextlib.suppress(PermissionError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(thread), policy, os.sched_param(int(policy == os.SCHED_FIFO)))


def program(folder: Path, *, gets_signals: bool) -> Path:
    """Writes a program `omq` to a new folder, and returns the folder.

    Args:
        folder: The folder.
        gets_signals: Whether a signal reaches the command; otherwise it starts as fast as these processes.
    """
    folder.mkdir()
    python = sys.executable if gets_signals else executable(folder, COMMANDS)
    omq = folder / "omq"
    omq.write_text(f'#!/bin/sh\nexec {python} -c "{MAIN}" "$@"\n')
    omq.chmod(0o755)
    return folder
