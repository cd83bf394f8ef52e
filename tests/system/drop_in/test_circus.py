"""circus: its daemon, statistics and plugins watch processes on omq, with a command on omq or on libzmq."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import waits
from tests.support.drop_in_programs import MARKS, Installed, library_of
from tests.support.ports import held

pytestmark = MARKS


class Circus:
    """A daemon with one watcher, `sleeper`, that has two processes.

    Args:
        programs: The environment.
        face: Whether the daemon runs on omq.
        command_face: Whether commands do.
        ports: Three free ports.
    """

    def __init__(self, programs: Installed, face: bool, command_face: bool, ports: list[int]) -> None:
        self.programs = programs
        self._command_face = command_face
        self._endpoints = [f"tcp://127.0.0.1:{port}" for port in ports]
        (programs.work / "circus.ini").write_text(
            "[circus]\n"
            "check_delay = 0.5\nstatsd = True\n"
            "endpoint = {}\npubsub_endpoint = {}\nstats_endpoint = {}\n".format(*self._endpoints)
            + "[watcher:sleeper]\n"
            f"cmd = {programs.python} -c 'import time; time.sleep(600)'\n"
            "numprocesses = 2\ncopy_env = True\ngraceful_timeout = 5\n"
            "[plugin:flapping]\nuse = circus.plugins.flapping.Flapping\n"
            "attempts = 100\n"  # else it stops the watcher for a while after two kills
        )
        self.daemon = programs.start("circusd", self._script("circusd"), "circus.ini", face=face)
        waits.until(lambda: "sleeper: active" in self("status"), lambda: programs.text("circusd"))

    def _script(self, name: str) -> Path:
        return self.programs.python.with_name(name)

    def __call__(self, *words: str) -> str:
        """Runs `circusctl`; returns what it prints.

        The daemon refuses a command while it does something by itself, such as a check of its processes.
        """
        command = [self._script("circusctl"), "--endpoint", self._endpoints[0], "--timeout", "30", *words]
        while True:
            try:
                return self.programs.run(*command, face=self._command_face)
            except AssertionError as error:
                if "arbiter is already running" not in str(error):
                    raise

    def published(self, count: int) -> list[int]:
        """Returns *count* processes of the watcher, from the statistics that the daemon publishes."""
        found: list[int] = self.programs.result(
            "circus_program.py", self._endpoints[2], "sleeper", str(count), face=self._command_face
        )
        return found

    def pids(self) -> list[int]:
        """Returns the processes of the watcher."""
        return [int(word) for word in re.findall(r"\d+", self("list", "sleeper"))]

    def sleepers(self) -> list[int]:
        """Returns these processes, from the system."""
        return self.named("time.sleep(600)")

    def named(self, text: str) -> list[int]:
        """Returns the processes with a text in their command lines."""
        found = []
        for pid in self.programs.processes():
            with contextlib.suppress(OSError):
                if text in Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(pid)
        return found


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(held()) for _ in range(3)]


@pytest.mark.parametrize(
    ("face", "command_face"),
    [
        pytest.param(True, True, id="all"),
        pytest.param(True, False, id="daemon"),
        pytest.param(False, True, id="command"),
    ],
)
def test_processes_are_watched(
    installed: Callable[..., Installed], ports: list[int], face: bool, command_face: bool
) -> None:
    circus = Circus(installed("circus"), face, command_face, ports)
    library = {"omq" if face else "libzmq"}
    assert library_of(circus.daemon.pid) == library
    for part in ("stats.main", "plugins.main"):  # processes of circus itself
        waits.until(lambda part=part: [library_of(pid) for pid in circus.named(part)] == [library], part)  # type: ignore[misc]

    first = circus.pids()
    assert (len(first), circus("numprocesses", "sleeper")) == (2, "2\n")
    assert circus.published(2) == sorted(first)
    assert circus("incr", "sleeper", "2") == "ok\n"
    waits.until(lambda: len(circus.sleepers()) == 4)
    assert circus("decr", "sleeper") == "ok\n"
    waits.until(lambda: len(circus.sleepers()) == 3)

    os.kill(killed := circus.sleepers()[0], signal.SIGKILL)
    waits.until(lambda: len(pids := circus.sleepers()) == 3 and killed not in pids, "a new process")
    assert sorted(circus.pids()) == sorted(circus.sleepers())

    assert circus("stop", "sleeper", "--waiting") == "ok\n"
    assert "sleeper: stopped" in circus("status")
    assert not circus.sleepers()
    assert circus("start", "sleeper", "--waiting") == "ok\n"
    assert "sleeper: active" in circus("status")
    assert len(circus.sleepers()) == 3

    statistics = circus("stats", "sleeper")
    assert all(f"{pid}: " in statistics for pid in circus.pids())
    assert "sleeper" in circus("list")
    assert circus("quit", "--waiting") == "ok\n"
    assert circus.daemon.wait(60) == 0
    assert not list(circus.programs.processes())
