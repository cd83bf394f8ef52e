"""Clients of a bus that are bytes and pyzmq, the same for both routers.

`python -m bench.goby.bare ENDPOINT COUNT` subscribes, says `here` when something has come, takes so many messages,
and says how many seconds they took from the first to the last.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Final

import zmq

ROOT: Final = Path(__file__).parents[2]
HEAD: Final = b"/bench/CSTR/CSTR/1/1/\0"
SYNC: Final = b"/bench/CSTR/CSTR/1/0/\0"
GROUP: Final = b"/bench/CSTR/CSTR/"
PATIENCE: Final = 60.0  # seconds that a subscriber has


def subscribe(endpoint: str, count: int) -> None:
    """The subscriber's process."""
    sub = zmq.Context().socket(zmq.SUB)
    sub.rcvhwm = 0
    sub.subscribe(GROUP)
    sub.connect(endpoint)
    sub.recv()
    print("here", flush=True)
    while sub.recv() == SYNC:
        pass
    began = time.perf_counter()
    for _ in range(count - 1):
        if sub.recv() == SYNC:
            raise SystemExit("a message of the beginning has come late")
    print(time.perf_counter() - began, flush=True)
    sub.close(linger=0)


def carried(endpoints: dict[str, str], count: int, size: int, subscribers: int) -> float:
    """Messages a second that reach each of some subscribers.

    Args:
        endpoints: Of the router: `publish` and `subscribe`.
        count: Messages.
        size: Bytes of each.
        subscribers: Processes that take them all.
    """
    command = [sys.executable, "-m", "bench.goby.bare", endpoints["subscribe"], str(count)]
    processes = [Popen(command, cwd=ROOT, stdout=PIPE, text=True) for _ in range(subscribers)]
    context = zmq.Context()
    pub = context.socket(zmq.PUB)
    try:
        pub.sndhwm = 0
        pub.connect(endpoints["publish"])
        message = HEAD + bytes(size - len(HEAD))
        for process in processes:
            assert process.stdout is not None
            while not _readable(process):
                pub.send(SYNC)
                time.sleep(0.01)
            assert process.stdout.readline() == "here\n"
        for _ in range(count):
            pub.send(message)
        seconds = []
        for process in processes:
            out, _ = process.communicate(timeout=PATIENCE)
            seconds.append(float(out))
        return (count - 1) / max(seconds)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        context.destroy(linger=0)


def _readable(process: subprocess.Popen[str]) -> bool:
    poller = zmq.Poller()
    poller.register(process.stdout, zmq.POLLIN)
    return bool(poller.poll(0))


if __name__ == "__main__":
    subscribe(sys.argv[1], int(sys.argv[2]))
