"""Judges programs in a process of its own, because some of them make libzmq abort the process that runs them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from tests.differential.differences import DIFFERENCES
from tests.differential.findings import FINDINGS
from tests.differential.program import Program
from tests.differential.triage import uncovered

BOUND = 60.0  # seconds that one program may take, with all its repetitions
_LIBZMQ = b"Assertion failed: "  # how it begins its last words


class Worker:
    """A process that judges, and its successors.

    Attributes:
        aborted: How many programs ended with an assertion of libzmq: there is nothing to be compared to.
    """

    def __init__(self) -> None:
        self.aborted = 0
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
        self._process: Any = None
        self._ask: Connection

    def judge(self, program: Program, seatings: list[Mapping[str, str]]) -> list[str]:
        """Returns the differences that neither list covers, found by `uncovered` in another process."""
        if self._process is None:
            self._start()
        self._ask.send((program, seatings))
        try:
            assert self._ask.poll(BOUND), "the program does not come to its end"
            answer = self._ask.recv()
        except EOFError:
            return self._kill()
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def close(self) -> None:
        """Ends it."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._words.close()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ask, theirs = spawn.Pipe()
        self._words.seek(0)
        self._words.truncate()
        self._process = spawn.Process(target=_serve, args=[theirs, os.getpid(), self._words.fileno()], daemon=True)
        self._process.start()
        theirs.close()

    def _kill(self) -> list[str]:
        self._process.join()
        code, self._process = self._process.exitcode, None
        self._words.seek(0)
        words = self._words.read()
        if code == -signal.SIGABRT and _LIBZMQ in words:
            self.aborted += 1
            return []
        return [f"the process died of {code}: {words.decode(errors='replace')}"]


def _serve(ask: Connection, parent: int, words: int) -> None:
    with open(f"/proc/{parent}/fd/{words}", "ab") as file:
        os.dup2(file.fileno(), 2)
    while True:
        try:
            program, seatings = ask.recv()
        except EOFError:
            return
        try:
            ask.send(uncovered(program, seatings, DIFFERENCES + FINDINGS))
        except Exception as error:
            ask.send(RuntimeError(f"{type(error).__name__}: {error}"))
