"""Measures the device and the stub in one run: `python -m bench.pzq`. Medians of some rounds, and the range.

produced     messages a second of one producer whose acknowledgements are pipelined
asked        of one producer that waits for each acknowledgement
consumed     taken and acknowledged by one consumer, until the monitor says that nothing is left
hard         produced with --hard-sync, 64 messages waiting for their acknowledgements; beside LMDB alone, which commits
             as many at a time and has nobody to answer
replicated   produced as in the first line, to the first of two nodes, of which the other has to hold each message
replicated 3 the same with three nodes: all of them keep each message, one has to hold it before the answer

`--original PATH` plays the original's program in the same rounds, and says how many times its figures ours are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import lmdb

from bench.pzq.bare import ask, drain, figure, messages_left, produce
from bench.pzq.original import Original, free_ports

ROOT: Final = Path(__file__).parents[2]
ACK_TIMEOUT: Final = 5_000_000
WINDOW: Final = 1000
BATCH: Final = 50
DEPTH: Final = 64
#: What is asked of the device: messages a second, and how much of the stub's.
GOALS: Final = {"produced": 50_000, "asked": 10_000, "consumed": 42_000, "hard": 50_000}
SHARE: Final = 0.5
#: What is wished for beside the original.
WISHES: Final = {"produced": "10 times 5,000 a second", "asked": "2 times it", "consumed": "2.5 times it"}
#: Nodes, by what is measured with them.
REPLICATED: Final = {"replicated": 2, "replicated 3": 3}
HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@contextmanager
def served(folder: Path, *command: str) -> Iterator[dict[str, str]]:
    """A server in a process of its own; its endpoints."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT)
    try:
        for _ in range(3000):
            if ready.exists():
                break
            if process.poll() is not None:
                raise RuntimeError(f"{command} has ended with {process.returncode}")
            time.sleep(0.01)
        yield json.loads(ready.read_bytes())
    finally:
        process.terminate()
        process.wait()


def device(folder: Path, *options: str) -> list[str]:
    """The command of a device."""
    endpoints = [f"--{name}-dsn=tcp://127.0.0.1:*" for name in ("receive", "send", "monitor")]
    ready = f"--ready-file={folder / 'ready.json'}"
    return ["omq.cli.main", "pzq", f"--database={folder / 'data'}", *endpoints, ready, "--log-level=error", *options]


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[str]:
    """Some nodes; where the first one takes messages."""
    with ExitStack() as kept:
        # What one host has free the others have, too, on a machine where nobody else binds such addresses.
        ports = free_ports(4)
        served_by = []
        hosts = HOSTS[:nodes]
        for host in hosts:
            here = folder / host
            here.mkdir()
            names = ("receive", "send", "monitor", "broadcast")
            endpoints = [f"--{name}-dsn=tcp://{host}:{port}" for name, port in zip(names, ports, strict=True)]
            others = ",".join(f"tcp://{other}:{ports[0]}" for other in hosts if other != host)
            options = [f"--nodes={others}", "--replicas=1", "--timeout-replication=60000000", "--log-level=error"]
            command = ["omq.cli.main", "pzq", f"--database={here / 'data'}", f"--ready-file={here / 'ready.json'}"]
            served_by.append(kept.enter_context(served(here, *command, *endpoints, *options)))
        while figure(served_by[0]["monitor"], "nodes_alive") < nodes:
            time.sleep(0.02)
        yield served_by[0]["receive"]


def play(endpoints: dict[str, str], count: int, size: int) -> dict[str, float]:
    """One round with a server that holds nothing."""
    found = {"asked": ask(endpoints["receive"], count // 10, size)}
    found["produced"] = produce(endpoints["receive"], count, size, WINDOW, BATCH)
    held = messages_left(endpoints["monitor"])
    assert held == count + count // 10, held
    drained = drain(endpoints, held, size, ACK_TIMEOUT)
    assert not drained.left, drained
    found["consumed"] = drained.rate
    return found


def commits(folder: Path, count: int, size: int) -> float:
    """Messages a second that LMDB alone syncs, `DEPTH` of them in a commit."""
    with lmdb.open(str(folder / "floor"), map_size=1 << 34) as environment:
        bodies, began = b"x" * (size * DEPTH), time.perf_counter()
        for number in range(count // DEPTH):
            with environment.begin(write=True) as transaction:
                transaction.put(b"%016d" % number, bodies)
        return count // DEPTH * DEPTH / (time.perf_counter() - began)


def main() -> None:
    """Plays the rounds, and shows what came of them."""
    parser = argparse.ArgumentParser(prog="python -m bench.pzq", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=100_000, help="messages a round")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--original", type=Path, help="the program of the original, which is measured beside it")
    asked = parser.parse_args()
    original = Original(asked.original.absolute(), ACK_TIMEOUT) if asked.original else None
    found: dict[str, dict[str, list[float]]] = {"device": defaultdict(list), "stub": defaultdict(list)}
    found["LMDB"] = defaultdict(list)
    for _ in range(asked.rounds):
        for name in ("device", "stub"):
            with tempfile.TemporaryDirectory(dir=".") as text:
                folder = Path(text).absolute()
                command = ["bench.pzq.stub", str(folder / "ready.json")] if name == "stub" else device(folder)
                with served(folder, *command) as endpoints:
                    for what, rate in play(endpoints, asked.count, asked.size).items():
                        found[name][what].append(rate)
        if original:
            with tempfile.TemporaryDirectory(dir=".") as text:
                original.play(Path(text).absolute(), asked.count, asked.size, WINDOW, BATCH)
        with tempfile.TemporaryDirectory(dir=".") as text:
            folder = Path(text).absolute()
            with served(folder, *device(folder, "--hard-sync")) as endpoints:
                found["device"]["hard"].append(
                    produce(endpoints["receive"], asked.count, asked.size, DEPTH, DEPTH // 4)
                )
        with tempfile.TemporaryDirectory(dir=".") as text:
            found["LMDB"]["hard"].append(commits(Path(text), asked.count, asked.size))
        for name, nodes in REPLICATED.items():
            with tempfile.TemporaryDirectory(dir=".") as text, cluster(Path(text).absolute(), nodes) as endpoint:
                found["device"][name].append(produce(endpoint, asked.count, asked.size, WINDOW, BATCH))
    print(f"{asked.size} bytes a body, {asked.rounds} rounds: messages a second")
    for what, goal in GOALS.items():
        ours, stubs = found["device"][what], found["stub"][what]
        line = f"{what:12} device {_shown(ours)}  goal {goal:7,}"
        if stubs:
            share = statistics.median(ours) / statistics.median(stubs)
            line += f"  stub {_shown(stubs)}  {share:.0%} of it, goal {SHARE:.0%}"
        if floor := found["LMDB"][what]:
            share = statistics.median(ours) / statistics.median(floor)
            line += f"  LMDB {_shown(floor)}  {share:.0%} of it"
        print(line)
    for name in REPLICATED:
        ours = found["device"][name]
        share = statistics.median(ours) / statistics.median(found["device"]["produced"])
        print(f"{name:12} device {_shown(ours)}  {share:.0%} of what is produced without, goal {SHARE:.0%}")
    if original:
        for what, wish in WISHES.items():
            ours, its = found["device"][what], original.found[what]
            if its:
                times = statistics.median(ours) / statistics.median(its)
                print(f"{what:12} device {_shown(ours)}  original {_shown(its)}  {times:.1f} times it, wish {wish}")
        for note in original.notes():
            print(f"original     {note}")


def _shown(rates: list[float]) -> str:
    return f"{statistics.median(rates):9,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


if __name__ == "__main__":
    main()
