"""The processes of the peers: `python -m tests.liveness.peer_worker`, one order a line, one answer a line.

The tests' end is `Worker`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
ANSWER_TIMEOUT_S = 20.0  # seconds for one answer


class Worker:
    """A process that holds all busy peers, or all quiet ones, of one cell after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.liveness.peer_worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._buffer = b""

    def order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    def answered(self, seconds: float = 0.0) -> bool:
        """Returns whether the answer comes within *seconds*."""
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                return False
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            assert chunk, "the peers' process has ended; see its last words above"
            self._buffer += chunk
        return True

    def receive(self) -> dict[str, Any]:
        """Waits for the answer."""
        assert self.answered(ANSWER_TIMEOUT_S), f"the peers' process has sent nothing for {ANSWER_TIMEOUT_S:g} s"
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class _Orders:
    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)  # whatever a library prints is not an answer
        self._buffer = b""

    def waits(self) -> bool:
        return b"\n" in self._buffer or bool(select.select([0], [], [], 0)[0])

    def take(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                raise SystemExit(0)
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        order: dict[str, Any] = json.loads(line)
        return order

    def answer(self, **answer: Any) -> None:
        os.write(self._out, json.dumps(answer).encode() + b"\n")


def main() -> None:
    """Joins owners with peers, has them send, and leaves, as ordered."""
    from tests.liveness.busy_peers import FLOODS
    from tests.liveness.quiet_peers import quiet

    orders = _Orders()
    while True:
        join = orders.take()
        peers: Any
        if join["role"] == "quiet":
            peers = quiet(join["kind"], join["endpoint"], join["peers"], join["heartbeats"])
        else:
            peers = FLOODS[join["role"]](join["kind"], join["endpoint"], join["peers"], join["bounded"])
        orders.answer(joined=True)
        go = orders.take()
        try:
            if join["role"] == "quiet":
                peers.send(go["after"], go["count"], go["rest"])
                orders.answer(sent=go["count"])
                peers.watch(lambda: not orders.waits())
                orders.take()  # leave
                peers.finish()
                orders.answer(trips=peers.trips, lost=peers.lost)
            else:
                failure = ""
                try:
                    peers.send(lambda: not orders.waits())
                except OSError as error:
                    failure = f"{type(error).__name__}: {error}"
                orders.take()
                orders.answer(failure=failure)
        finally:
            peers.close()


if __name__ == "__main__":
    main()
