"""The bench's end: starts the worker processes of a run, talks to them, and ends them by process id."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.peers import PEERS

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30.0  # seconds for any one answer; a run is meant to take one or two


class RunError(Exception):
    """A worker failed, died, or did not answer in time."""


class Talker:
    """One fresh python process that takes orders and tells facts, a JSON object a line.

    Args:
        name: What messages call it.
        module: The module that it runs, and its arguments.
        interpreter: What runs it.
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

    def order(self, **facts: Any) -> None:
        """Sends one order."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")
        except OSError:
            raise self._failure("ended early") from None

    def hear(self, key: str, patience: float = PATIENCE) -> Any:
        """Waits for the fact `key`.

        Raises:
            RunError: The worker failed or did not answer in time.
        """
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        deadline = time.monotonic() + patience
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise self._failure(f"no {key!r} within {patience:g} s")
            chunk = self._process.stdout.read(1 << 20)
            if not chunk:
                raise self._failure("ended early")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        facts = json.loads(line)
        if key not in facts:
            raise self._failure(facts.get("error", f"said {facts} instead of {key!r}"))
        return facts[key] if len(facts) == 1 else facts

    def pause(self) -> None:
        """Stops the process, as ctrl-Z does; it never goes on."""
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


class Worker(Talker):
    """A process that plays one role of one peer.

    Args:
        peer: The key of the peer in `PEERS`.
        role: What it plays.
        job: The role's options: `endpoint`, `size`, `seconds`.
    """

    def __init__(self, peer: str, role: str, **job: Any) -> None:
        job["limit"] = int(4 * PATIENCE)
        job["options"] = dict(PEERS[peer].options)
        words = ("bench.worker", peer, role, json.dumps(job))
        super().__init__(f"{PEERS[peer].label} {role}", *words, interpreter=PEERS[peer].interpreter)
