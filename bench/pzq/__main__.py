"""Measures the device and the stub in one run: `python -m bench.pzq`. Medians of some rounds, and the range.

produced     messages a second of one producer whose acknowledgements are pipelined
arguments        of one producer that waits for each acknowledgement
consumed     taken and acknowledged by one consumer, until the monitor reports that nothing is left
hard         produced with --hard-sync, 64 messages in flight; next to LMDB alone, which commits as many at a time and
             answers no producer
replicated   produced as in the first line, to the first of two nodes, of which the other has to hold each message
replicated 3 the same with three nodes: all of them keep each message, one has to hold it before the answer

`--original PATH` runs the program of the original in the same rounds, and prints the ratios to it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import lmdb

from bench.processes import free_ports, served
from bench.pzq.clients import ask, drain, messages_left, monitor_number, produce
from bench.pzq.original import OriginalDevice

ACK_TIMEOUT_US: Final = 5_000_000
WINDOW_MESSAGES: Final = 1000
BATCH_MESSAGES: Final = 50
DEPTH_MESSAGES: Final = 64
#: The goals of the device: messages a second, and a share of the stub's.
GOALS: Final = {"produced": 50_000, "asked": 10_000, "consumed": 42_000, "hard": 50_000}
SHARE: Final = 0.5
#: The wishes for the ratio to the original.
WISHES: Final = {"produced": "10 times 5,000 a second", "asked": "2 times it", "consumed": "2.5 times it"}
#: The number of nodes, by measurement.
REPLICATED: Final = {"replicated": 2, "replicated 3": 3}
HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def device(folder: Path, *options: str) -> list[str]:
    """Returns the command of a device."""
    endpoints = [f"--{name}-dsn=tcp://127.0.0.1:*" for name in ("receive", "send", "monitor")]
    ready = f"--ready-file={folder / 'ready.json'}"
    return ["omq.cli.main", "pzq", f"--database={folder / 'data'}", *endpoints, ready, "--log-level=error", *options]


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[str]:
    """Runs nodes; yields the receive endpoint of the first one."""
    with ExitStack() as kept:
        # Ports that are free on one host are free on the others, unless another program binds these addresses.
        ports = free_ports(4)
        endpoints = []
        hosts = HOSTS[:nodes]
        for host in hosts:
            here = folder / host
            here.mkdir()
            names = ("receive", "send", "monitor", "broadcast")
            addresses = [f"--{name}-dsn=tcp://{host}:{port}" for name, port in zip(names, ports, strict=True)]
            others = ",".join(f"tcp://{other}:{ports[0]}" for other in hosts if other != host)
            options = [f"--nodes={others}", "--replicas=1", "--timeout-replication=60000000", "--log-level=error"]
            command = ["omq.cli.main", "pzq", f"--database={here / 'data'}", f"--ready-file={here / 'ready.json'}"]
            endpoints.append(kept.enter_context(served(here, *command, *addresses, *options))[1])
        while monitor_number(endpoints[0]["monitor"], "nodes_alive") < nodes:
            time.sleep(0.02)
        yield endpoints[0]["receive"]


def run_round(endpoints: dict[str, str], count: int, size: int) -> dict[str, float]:
    """Measures one round with an empty server."""
    found = {"asked": ask(endpoints["receive"], count // 10, size)}
    found["produced"] = produce(endpoints["receive"], count, size, WINDOW_MESSAGES, BATCH_MESSAGES)
    held = messages_left(endpoints["monitor"])
    assert held == count + count // 10, held
    drained = drain(endpoints, held, size, ACK_TIMEOUT_US)
    assert not drained.left, drained
    found["consumed"] = drained.rate
    return found


def lmdb_rate(folder: Path, count: int, size: int) -> float:
    """Returns the messages a second that LMDB alone syncs, `DEPTH_MESSAGES` in a commit."""
    with lmdb.open(str(folder / "floor"), map_size=1 << 34) as environment:
        bodies, began = b"x" * (size * DEPTH_MESSAGES), time.perf_counter()
        for number in range(count // DEPTH_MESSAGES):
            with environment.begin(write=True) as transaction:
                transaction.put(b"%016d" % number, bodies)
        return count // DEPTH_MESSAGES * DEPTH_MESSAGES / (time.perf_counter() - began)


def main() -> None:
    """Runs the rounds, and prints the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.pzq", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=100_000, help="messages a round")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument(
        "--original", type=Path, help="the program of the original, which is measured next to the device"
    )
    arguments = parser.parse_args()
    original = OriginalDevice(arguments.original.absolute(), ACK_TIMEOUT_US) if arguments.original else None
    found: dict[str, dict[str, list[float]]] = {"device": defaultdict(list), "stub": defaultdict(list)}
    found["LMDB"] = defaultdict(list)
    for _ in range(arguments.rounds):
        for name in ("device", "stub"):
            with tempfile.TemporaryDirectory(dir=".") as text:
                folder = Path(text).absolute()
                command = ["bench.pzq.stub_device", str(folder / "ready.json")] if name == "stub" else device(folder)
                with served(folder, *command) as (_, endpoints):
                    for what, rate in run_round(endpoints, arguments.count, arguments.size).items():
                        found[name][what].append(rate)
        if original:
            with tempfile.TemporaryDirectory(dir=".") as text:
                original.run_round(
                    Path(text).absolute(), arguments.count, arguments.size, WINDOW_MESSAGES, BATCH_MESSAGES
                )
        with tempfile.TemporaryDirectory(dir=".") as text:
            folder = Path(text).absolute()
            with served(folder, *device(folder, "--hard-sync")) as (_, endpoints):
                found["device"]["hard"].append(
                    produce(endpoints["receive"], arguments.count, arguments.size, DEPTH_MESSAGES, DEPTH_MESSAGES // 4)
                )
        with tempfile.TemporaryDirectory(dir=".") as text:
            found["LMDB"]["hard"].append(lmdb_rate(Path(text), arguments.count, arguments.size))
        for name, nodes in REPLICATED.items():
            with tempfile.TemporaryDirectory(dir=".") as text, cluster(Path(text).absolute(), nodes) as endpoint:
                found["device"][name].append(
                    produce(endpoint, arguments.count, arguments.size, WINDOW_MESSAGES, BATCH_MESSAGES)
                )
    print(f"{arguments.size} bytes a body, {arguments.rounds} rounds: messages a second")
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
