"""The original in the same rounds, through the same clients: `python -m bench.pzq --original PATH`.

It is the one from https://github.com/mkoppanen/pzq, built with optimisation. It runs with its defaults: what it has
acknowledged is with the file system, and not synced.

Three things make its figures what they are, and are told below the table:

- Its ROUTER holds ten answers for a producer, and drops what is more: some messages of a pipeline have no answer. They
  are stored, and count; that answers come in order tells which are missing, so nobody waits for them.
- It holds its time until a node is silent in an int of milliseconds, which without nodes is below zero in 24.9 of 49.7
  days. In these it never sleeps, and looks for what to deliver from its first message on, each time. With much in
  flight that is so slow that messages time out, and it delivers them again. Its keys tell where its clock is.
- What it delivers again may keep it from ever being empty: after a minute its rate is what is gone by then.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.pzq.bare import ask, drain, messages_left, pipeline

MOST: Final = 60.0  # seconds, to consume all
START: Final = 30.0  # seconds


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now."""
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in free]
    for one in free:
        one.close()
    return ports


def never_sleeps(key: bytes) -> bool:
    """Whether the original's clock was in the half of the 49.7 days that is slow, when it made this key."""
    milliseconds = int(key.split(b"|")[0]) // 1000
    return 0 < milliseconds % 2**32 <= 2**31


@contextmanager
def served(program: Path, folder: Path, timeout: int) -> Iterator[dict[str, str]]:
    """The original in a process of its own; its endpoints."""
    roles = ("receive", "send", "monitor")
    endpoints = {role: f"tcp://127.0.0.1:{port}" for role, port in zip(roles, free_ports(len(roles)), strict=True)}
    options = [f"--{role}-dsn={endpoint}" for role, endpoint in endpoints.items()]
    log = folder / "log"
    with log.open("wb") as said:
        command = [str(program), f"--database={folder / 'data.kct'}", f"--ack-timeout={timeout}", *options]
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        until = time.monotonic() + START
        while not _answers(endpoints["monitor"]):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the original does not serve: {log.read_text(errors='replace')}")
            time.sleep(0.01)
        yield endpoints
    finally:
        process.kill()  # it would close a database that nobody wants, in the next round's time
        process.wait()


def _answers(endpoint: str) -> bool:
    try:
        messages_left(endpoint)
    except (EOFError, OSError):
        return False
    return True


class Original:
    """Its program, and what is found of it.

    Args:
        program: Where it is.
        timeout: Its `--ack-timeout`, in microseconds.

    Attributes:
        found: Messages a second, by what was measured.
    """

    def __init__(self, program: Path, timeout: int) -> None:
        self.found: dict[str, list[float]] = defaultdict(list)
        self._program = program
        self._timeout = timeout
        self._lost: list[int] = []
        self._again: list[int] = []
        self._left: list[int] = []
        self._keys: list[bytes] = []
        self._faults: list[str] = []

    def play(self, folder: Path, count: int, size: int, window: int, batch: int) -> None:
        """One round. What it does not manage in it is noted."""
        try:
            with served(self._program, folder, self._timeout) as endpoints:
                self.found["asked"].append(ask(endpoints["receive"], count // 10, size))
                rate, lost = pipeline(endpoints["receive"], count, size, window, batch, lossy=True)
                self.found["produced"].append(rate)
                self._lost.append(lost)
                held = messages_left(endpoints["monitor"])
                drained = drain(endpoints, held, size, self._timeout, MOST)
                self.found["consumed"].append(drained.rate)
                self._left.append(drained.left)
                self._again.append(max(0, drained.taken - held + drained.left))
                self._keys.append(drained.key)
        except (AssertionError, EOFError, OSError, RuntimeError) as fault:
            self._faults.append(repr(fault))

    def notes(self) -> list[str]:
        """What is to be known about its figures."""
        notes = []
        if any(self._lost):
            notes.append(f"messages that it did not answer, by rounds: {_listed(self._lost)}")
        if any(self._again):
            notes.append(f"deliveries of what it had delivered before: {_listed(self._again)}")
        if any(self._left):
            notes.append(f"messages left after {MOST:.0f} seconds, where it was given up: {_listed(self._left)}")
        if any(map(never_sleeps, self._keys)):
            notes.append("its clock is in the slow half of its 49.7 days: it consumes far less than in the other half")
        return notes + [f"a round has failed: {fault}" for fault in self._faults]


def _listed(numbers: list[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)
