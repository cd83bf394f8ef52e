"""Measures proxies side by side: `python -m bench.proxy`. Medians of some rounds, and the range.

pull-push      one sender, one receiver
xsub-xpub      one publisher, one subscriber
router-dealer  one client, one worker that answers at once: a message is forwarded twice, as request and as reply

A message's processor time is that of the proxy's whole process, user and system, while the messages are counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.processes import ROOT
from bench.proxy.clients import ReceiveCounter, answer, ask, receive, send
from bench.proxy.proxies import PEERS

PATTERNS: Final = ("pull-push", "xsub-xpub", "router-dealer")
WARMUP_S: Final = 0.3  # before counting begins
FIRST_MESSAGE_TIMEOUT_S: Final = 20.0
_TICK: Final = os.sysconf("SC_CLK_TCK")


@contextmanager
def served(peer: str, pattern: str) -> Iterator[tuple[int, str, str]]:
    """Runs a proxy in a process of its own; yields its id and its endpoints."""
    ours, theirs = socket.socketpair()
    front, back = pattern.upper().split("-")
    command = [sys.executable, "-m", "bench.proxy.proxies", peer, front, back, str(theirs.fileno())]
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
    theirs.close()
    ours.settimeout(FIRST_MESSAGE_TIMEOUT_S)
    try:
        with ours, ours.makefile() as output:
            frontend, backend = output.readline().split()
        yield process.pid, frontend, backend
    finally:
        process.kill()
        process.wait()


Call = tuple[Callable[..., None], tuple[Any, ...]]


@contextmanager
def client_process(role: Call) -> Iterator[None]:
    """Runs a client in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=_run_client, args=role, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def wait_until(reached: Callable[[], bool], error: str) -> None:
    """Waits until *reached* is true.

    Raises:
        TimeoutError: It is not in time, with the text *error*.
    """
    end = time.monotonic() + FIRST_MESSAGE_TIMEOUT_S
    while not reached():
        if time.monotonic() > end:
            raise TimeoutError(error)
        time.sleep(0.01)


def _run_client(run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        run(*arguments)
    except (OSError, EOFError):
        os._exit(1)


def processor_time(pid: int) -> float:
    """Returns the seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def measure(peer: str, pattern: str, size: int, seconds: float) -> tuple[float, float]:
    """Returns the messages a second that arrive, and the microseconds of the proxy's processor time for each."""
    progress = ReceiveCounter()
    receiver: Call
    sender: Call
    with served(peer, pattern) as (pid, front, back):
        if pattern == "router-dealer":
            receiver, sender = (answer, (back, progress)), (ask, (front, size, progress))
        else:
            kinds = {"pull-push": (b"PUSH", b"PULL"), "xsub-xpub": (b"PUB", b"SUB")}[pattern]
            receiver = (receive, (back, kinds[1], size, progress))
            sender = (send, (front, kinds[0], b"x" * size, progress))
        with client_process(receiver):
            wait_until(lambda: progress.ready, f"{peer}, {pattern}: the receiver has not come")
            with client_process(sender):
                wait_until(lambda: progress.count > 0, f"{peer}, {pattern}: no message has come through")
                time.sleep(WARMUP_S)
                begun, counted, worked = time.monotonic(), progress.count, processor_time(pid)
                time.sleep(seconds)
                count = progress.count - counted
                worked = processor_time(pid) - worked
                rate = count / (time.monotonic() - begun)
    if not count:
        raise TimeoutError(f"{peer}, {pattern}: no more messages come through")
    return rate, worked / count * 1e6


def main() -> None:
    """Runs the rounds, and prints the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.proxy", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of counting in a round")
    parser.add_argument("--size", type=int, default=128, help="bytes of a message")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=PATTERNS)
    arguments = parser.parse_args()
    peers = [peer for peer in arguments.peers if peer != "pyomq" or importlib.util.find_spec("pyomq")]
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    costs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(arguments.rounds):
        for pattern in arguments.patterns:
            for peer in peers:
                rate, cost = measure(peer, pattern, arguments.size, arguments.seconds)
                rates[pattern, peer].append(rate)
                costs[pattern, peer].append(cost)
    print(
        f"{arguments.size} bytes a message, {arguments.rounds} rounds: messages a second; us of processor time for each"
    )
    for pattern in arguments.patterns:
        for peer in peers:
            if rates[pattern, peer]:
                print(_line(pattern, peer, rates, costs))


def _line(
    pattern: str, peer: str, rates: dict[tuple[str, str], list[float]], costs: dict[tuple[str, str], list[float]]
) -> str:
    every, spent = rates[pattern, peer], costs[pattern, peer]
    line = f"{pattern:14} {peer:12} {statistics.median(every):10,.0f} ({min(every):,.0f} to {max(every):,.0f})"
    line += f"  {statistics.median(spent):6.3f} us ({min(spent):.3f} to {max(spent):.3f})"
    if peer != "pyzmq" and rates[pattern, "pyzmq"]:
        theirs = statistics.median(rates[pattern, "pyzmq"]), statistics.median(costs[pattern, "pyzmq"])
        line += f"  {statistics.median(every) / theirs[0]:.2f} x pyzmq's rate"
        line += f", {statistics.median(spent) / theirs[1]:.2f} of its time"
    return line


if __name__ == "__main__":
    main()
