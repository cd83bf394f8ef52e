"""The original device in the same rounds, through the same clients: `python -m bench.pzq --original PATH`.

It is the one from https://github.com/mkoppanen/pzq, built with optimisation. It runs with its defaults: acknowledged
messages are written to the file system, and not synced.

Three properties affect its figures, and are printed below the table:

- Its ROUTER holds ten answers for a producer, and drops further ones: some messages of a pipeline have no answer. They
  are stored, and count; answers come in order, so a missing one is seen and not waited for.
- It holds its time until a node is silent in an int of milliseconds, which without nodes is below zero in 24.9 of 49.7
  days. In these it never sleeps, and searches for messages to deliver from its first one on, each time. With many
  in flight that is so slow that messages time out, and it delivers them again. Its keys show its clock.
- Redeliveries may keep it from ever being empty: after a minute its rate is that of the messages consumed by then.
"""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.processes import free_ports
from bench.pzq.clients import ask, drain, messages_left, pipeline

CONSUME_TIMEOUT_S: Final = 60.0  # of all messages
START_TIMEOUT_S: Final = 30.0


def never_sleeps(key: bytes) -> bool:
    """Returns whether the clock of the original was in the slow half of its 49.7 days when it made this key."""
    milliseconds = int(key.split(b"|")[0]) // 1000
    return 0 < milliseconds % 2**32 <= 2**31


@contextmanager
def served(program: Path, folder: Path, timeout: int) -> Iterator[dict[str, str]]:
    """Runs the original in a process of its own; yields its endpoints."""
    roles = ("receive", "send", "monitor")
    endpoints = {role: f"tcp://127.0.0.1:{port}" for role, port in zip(roles, free_ports(len(roles)), strict=True)}
    options = [f"--{role}-dsn={endpoint}" for role, endpoint in endpoints.items()]
    log = folder / "log"
    with log.open("wb") as output:
        command = [str(program), f"--database={folder / 'data.kct'}", f"--ack-timeout={timeout}", *options]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until = time.monotonic() + START_TIMEOUT_S
        while not _answers(endpoints["monitor"]):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the original does not serve: {log.read_text(errors='replace')}")
            time.sleep(0.01)
        yield endpoints
    finally:
        process.kill()  # at once: closing its database would take time of the next round
        process.wait()


def _answers(endpoint: str) -> bool:
    try:
        messages_left(endpoint)
    except (EOFError, OSError):
        return False
    return True


class OriginalDevice:
    """The program of the original, and its results.

    Args:
        program: Its path.
        timeout: Its `--ack-timeout`, in microseconds.

    Attributes:
        found: Messages a second, by measurement.
    """

    def __init__(self, program: Path, timeout: int) -> None:
        self.found: dict[str, list[float]] = defaultdict(list)
        self._program = program
        self._timeout = timeout
        self._lost: list[int] = []
        self._redelivered: list[int] = []
        self._left: list[int] = []
        self._keys: list[bytes] = []
        self._faults: list[str] = []

    def run_round(self, folder: Path, count: int, size: int, window: int, batch: int) -> None:
        """Measures one round, and notes its faults."""
        try:
            with served(self._program, folder, self._timeout) as endpoints:
                self.found["asked"].append(ask(endpoints["receive"], count // 10, size))
                rate, lost = pipeline(endpoints["receive"], count, size, window, batch, lossy=True)
                self.found["produced"].append(rate)
                self._lost.append(lost)
                held = messages_left(endpoints["monitor"])
                drained = drain(endpoints, held, size, self._timeout, CONSUME_TIMEOUT_S)
                self.found["consumed"].append(drained.rate)
                self._left.append(drained.left)
                self._redelivered.append(max(0, drained.taken - held + drained.left))
                self._keys.append(drained.key)
        except (AssertionError, EOFError, OSError, RuntimeError) as fault:
            self._faults.append(repr(fault))

    def notes(self) -> list[str]:
        """Returns the notes on its figures."""
        notes = []
        if any(self._lost):
            notes.append(f"messages without an answer, by rounds: {_listed(self._lost)}")
        if any(self._redelivered):
            notes.append(f"redeliveries: {_listed(self._redelivered)}")
        if any(self._left):
            notes.append(f"messages left after {CONSUME_TIMEOUT_S:.0f} seconds: {_listed(self._left)}")
        if any(map(never_sleeps, self._keys)):
            notes.append("its clock is in the slow half of its 49.7 days: it is far slower than in the other half")
        return notes + [f"a round has failed: {fault}" for fault in self._faults]


def _listed(numbers: list[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)
