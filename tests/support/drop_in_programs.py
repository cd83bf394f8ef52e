"""Real programs on omq's face of pyzmq, or on pyzmq: their processes, and the library that each one has loaded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import waits

ROOT: Final = Path(__file__).parents[2]
#: Programs of the tests that use the libraries as their users do.
PROGRAMS: Final = ROOT / "tests" / "system" / "drop_in" / "programs"
RUN_TIMEOUT_S: Final = 240.0
#: The marks of a test; the first one that uses an environment installs it.
MARKS: Final = [pytest.mark.drop_in, pytest.mark.slow, pytest.mark.timeout(1200)]
_MARK: Final = "OMQ_DROP_IN_TEST"  # in the environment of each process of a test


class Installed:
    """Programs that are installed in an environment; their processes end with the test.

    Args:
        environment: The folder of the environment.
        work: The folder in which they run.
    """

    def __init__(self, environment: Path, work: Path) -> None:
        self.python = environment / "bin" / "python"
        self.work = work
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[str]] = []

    def command(self, *arguments: str | Path, face: bool = True) -> list[str]:
        """Returns the command that runs Python with arguments: on the face, or on pyzmq."""
        return [str(self.python), *(["-m", "omq.zmq"] if face else []), *map(str, arguments)]

    def variables(self, face: bool = True, **more: str) -> dict[str, str]:
        """Returns the environment of such a command."""
        found = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        found.pop("OMQ_STRICT", None)
        paths = [str(ROOT)] if face else []
        return {**found, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", _MARK: self._mark, **more}

    def run(self, *arguments: str | Path, face: bool = True, **variables: str) -> str:
        """Runs Python with arguments; returns what it has printed."""
        with open(self.work / "errors.txt", "w+") as errors:
            done = subprocess.run(
                self.command(*arguments, face=face),
                cwd=self.work,
                env=self.variables(face, **variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=RUN_TIMEOUT_S,
            )
            errors.seek(0)
            assert done.returncode == 0, done.stdout[-2000:] + errors.read()[-8000:]
        return done.stdout

    def result(self, program: str, *arguments: str, face: bool = True, **variables: str) -> Any:
        """Runs one of `PROGRAMS`; returns what its last line of output has as JSON."""
        return json.loads(self.run(PROGRAMS / program, *arguments, face=face, **variables).splitlines()[-1])

    def start(self, name: str, *arguments: str | Path, face: bool = True, **variables: str) -> subprocess.Popen[str]:
        """Starts Python with arguments; `text` returns what it prints."""
        with open(self.work / f"{name}.txt", "w") as output:
            process = subprocess.Popen(
                self.command(*arguments, face=face),
                cwd=self.work,
                env=self.variables(face, **variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._started.append(process)
        return process

    def text(self, name: str) -> str:
        """Returns what a started program has printed."""
        return (self.work / f"{name}.txt").read_text(errors="replace")

    def wait_for_text(self, name: str, text: str, count: int = 1) -> None:
        """Waits until a started program has printed a text."""
        waits.until(lambda: self.text(name).count(text) >= count, lambda: f"{text!r} in {self.text(name)[-3000:]}", 60)

    def processes(self) -> Iterator[int]:
        """Returns the processes of the test that run, those that others have started included."""
        mark = f"{_MARK}={self._mark}".encode()
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)

    def end(self) -> None:
        """Kills what still runs."""
        while running := list(self.processes()):
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.wait()
        for process in self._started:
            process.wait()


def library_in(maps: str) -> set[str]:
    """Returns which of `omq` and `libzmq` are in the memory of a process.

    Args:
        maps: Its `/proc/PID/maps`.
    """
    return {name for name, part in (("omq", "omq/_core"), ("libzmq", "libzmq")) if part in maps}


def library_of(pid: int | str) -> set[str]:
    """Returns what `library_in` finds in a process."""
    return library_in(Path(f"/proc/{pid}/maps").read_text())
