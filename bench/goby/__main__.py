"""Measures gobyd and a router of libzmq's proxy in one run: `python -m bench.goby`. Medians of rounds, and the range.

One or several publishers send to one or several subscribers, each a process of its own on a bare socket, so that the
router alone is measured. Figures are messages a second that reach each subscriber, and the router's processor
time for each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

from bench.goby.clients import measure
from bench.processes import served

SIZES: Final = (64, 1024)
CLIENTS: Final = ((1, 1), (1, 4), (20, 20))  # publishers and subscribers


def gobyd(folder: Path) -> list[str]:
    """Returns the command of a gobyd without high-water marks."""
    config = folder / "gobyd.cfg"
    config.write_text("interprocess { send_queue_size: 0 receive_queue_size: 0 }")
    where = ["--transport=tcp", "--tcp-port=0", "--bind-address=127.0.0.1", f"--config={config}"]
    return ["omq.cli.main", "gobyd", *where, f"--ready-file={folder / 'ready.json'}", "--log-level=error"]


def zmq_router(folder: Path) -> list[str]:
    """Returns the command of the router made of libzmq's proxy."""
    return ["bench.goby.zmq_router", str(folder / "ready.json"), "tcp"]


ROUTERS: Final = {"zmq.proxy": zmq_router, "gobyd": gobyd}


def main() -> None:
    """Runs the rounds, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of counting in a round (default: 1)")
    arguments = parser.parse_args()
    rates: dict[tuple[int, tuple[int, int], str], list[float]] = defaultdict(list)
    costs: dict[tuple[int, tuple[int, int], str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(arguments.rounds):
            for size in SIZES:
                for clients in CLIENTS:
                    for router, command in ROUTERS.items():
                        with served(folder, *command(folder)) as (pid, at):
                            rate, cost = measure(pid, at["publish"], at["subscribe"], size, *clients, arguments.seconds)
                        rates[size, clients, router].append(rate)
                        costs[size, clients, router].append(cost)
    print(f"messages a second at each subscriber, us of the router's processor time; {arguments.rounds} rounds")
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
