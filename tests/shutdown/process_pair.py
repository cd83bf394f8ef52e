"""A connection between two processes, each of either library, and what has come through when one has ended it."""

from __future__ import annotations

import concurrent.futures
import json
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.fork_server import SOCKETS, ForkedProcess

TOP = Path(__file__).parents[2]
CROWD = 10  # plays at a time: most of them wait


@dataclass(frozen=True)
class Part:
    """The plan of one process.

    Attributes:
        library: `omq`, `asyncio` or `zmq`.
        kind: The socket type.
        binds: Whether it binds; else it connects.
        options: In our names; libzmq gets them in its own.
        sends: How many messages it sends first.
        size: Bytes that each of them has.
        takes: How many messages it waits for.
        absent: Seconds that it works on the first one.
        chats: How many messages it sends while it is absent, in equal pauses.
        pace: Seconds that it works on each of the others.
        end: What it does at last: `close`, `disconnect`, `unbind`, or nothing.
        lives: Seconds that it lives on after the latter two.
        waits: Whether the process stays after `close`, until it is killed.
        endpoint: Where; filled in by `play`.
        visits: Where it goes first, one after another: it connects, sends its messages there, and disconnects at once.
    """

    library: str
    kind: str
    binds: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    sends: int = 0
    size: int = 1000
    takes: int = 0
    absent: float = 0.0
    chats: int = 0
    pace: float = 0.0
    end: str = "close"
    lives: float = 6.0
    waits: bool = False
    endpoint: str = ""
    visits: list[str] = field(default_factory=list)


class Process:
    """A part at play."""

    def __init__(self, part: Part) -> None:
        arguments = ("tests.shutdown.peer_process", json.dumps(asdict(part)))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = ForkedProcess("-m", *arguments, text=True, cwd=TOP, template=SOCKETS, **pipes)

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def until(self, word: str) -> str:
        """Waits for an event; gives what stands behind its name."""
        while line := self.line():
            if line.split(" ")[0] == word:
                return line.partition(" ")[2]
        raise AssertionError(f"the process ended before {word!r}")

    def kill(self) -> None:
        """kill -9"""
        self._process.kill()

    def result(self) -> list[int]:
        """The numbers of what it has received."""
        out, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, self._process.returncode
        got: list[int] = json.loads(out.strip().splitlines()[-1])
        return got

    def finish(self) -> None:
        self._process.kill()
        self._process.communicate()


def play(ender: Part, other: Part, endpoint: str, *, kill: bool = False) -> list[int]:
    """Has two processes meet at an endpoint; gives the numbers of what *other* has received.

    Args:
        ender: Who sends, and ends the connection.
        other: Who takes.
        endpoint: The endpoint of the process that binds.
        kill: Kills the sender as soon as its `close` has returned.
    """
    first, second = (ender, other) if ender.binds else (other, ender)
    processes = [Process(_at(first, endpoint))]
    try:
        processes.append(Process(_at(second, processes[0].until("at"))))
        sender, taker = processes if ender.binds else reversed(processes)
        if kill:
            sender.until("ended")
            sender.kill()
        return taker.result()
    finally:
        for process in processes:
            process.finish()


def _at(part: Part, endpoint: str) -> Part:
    return Part(**{**asdict(part), "endpoint": endpoint})


def side_by_side(plays: Iterable[tuple[str, Callable[[], str]]]) -> list[str]:
    """Runs plays, several at a time; each gives what is wrong. Gives the troubles, named."""
    with concurrent.futures.ThreadPoolExecutor(CROWD) as pool:
        running = [(name, pool.submit(work)) for name, work in plays]
        return [f"{name}: {trouble}" for name, one in running if (trouble := one.result())]


def missing(got: list[int], count: int) -> str:
    """Returns an error about the numbers received, unless all are there, once, in their order."""
    if got == list(range(count)):
        return ""
    lost = sorted(set(range(count)) - set(got))
    where = f", the first is {lost[0]}" if lost else ", out of order or twice"
    return f"{len(got)} of {count} came, {len(lost)} are missing{where}"
