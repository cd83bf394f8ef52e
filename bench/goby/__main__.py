"""Measures gobyd and a router of libzmq's proxy in one run: `python -m bench.goby`. Medians of rounds, and the range.

One or several publishers send to one or several subscribers, each a process of its own on a bare socket, so that what
the router does is what counts. Figures are messages a second that reach each subscriber, and the router's processor
time for each.
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
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.goby.bare import carried

ROOT: Final = Path(__file__).parents[2]
SIZES: Final = (64, 1024)
CLIENTS: Final = ((1, 1), (1, 4), (20, 20))  # publishers and subscribers


@contextmanager
def served(folder: Path, *command: str) -> Iterator[tuple[int, dict[str, str]]]:
    """A router in a process of its own: its id and its endpoints."""
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
        yield process.pid, json.loads(ready.read_bytes())
    finally:
        process.terminate()
        process.wait()


def gobyd(folder: Path) -> list[str]:
    """The command of a gobyd without marks."""
    config = folder / "gobyd.cfg"
    config.write_text("interprocess { send_queue_size: 0 receive_queue_size: 0 }")
    where = ["--transport=tcp", "--tcp-port=0", "--bind-address=127.0.0.1", f"--config={config}"]
    return ["omq.cli.main", "gobyd", *where, f"--ready-file={folder / 'ready.json'}", "--log-level=error"]


def stub(folder: Path) -> list[str]:
    """The command of the other one."""
    return ["bench.goby.stub", str(folder / "ready.json"), "tcp"]


ROUTERS: Final = {"zmq.proxy": stub, "gobyd": gobyd}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long messages are counted (default: 1)")
    told = parser.parse_args()
    rates: dict[tuple[int, tuple[int, int], str], list[float]] = defaultdict(list)
    costs: dict[tuple[int, tuple[int, int], str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(told.rounds):
            for size in SIZES:
                for clients in CLIENTS:
                    for router, command in ROUTERS.items():
                        with served(folder, *command(folder)) as (pid, at):
                            rate, cost = carried(pid, at["publish"], at["subscribe"], size, *clients, told.seconds)
                        rates[size, clients, router].append(rate)
                        costs[size, clients, router].append(cost)
    print(f"messages a second at each subscriber, us of the router's processor time; {told.rounds} rounds")
    for size in SIZES:
        for clients in CLIENTS:
            for router in ROUTERS:
                every, spent = rates[size, clients, router], costs[size, clients, router]
                line = f"{size:5} bytes, {clients[0]:2} to {clients[1]:2}, {router:9} {statistics.median(every):10,.0f}"
                line += f" ({min(every):,.0f} to {max(every):,.0f})  {statistics.median(spent):6.3f} us"
                if router == "gobyd":
                    theirs = (size, clients, "zmq.proxy")
                    line += f"  {statistics.median(every) / statistics.median(rates[theirs]):.2f} x zmq.proxy's rate"
                    line += f", {statistics.median(spent) / statistics.median(costs[theirs]):.2f} of its time"
                print(line)


if __name__ == "__main__":
    main()
