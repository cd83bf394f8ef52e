"""Measures gobyd and a router of libzmq's proxy in one run: `python -m bench.goby`. Medians of rounds, and the range.

A publisher sends to one or several subscribers, each a process of its own; all are pyzmq's. No mark bounds anything,
so that nothing is lost. Figures are messages a second that reach each subscriber.
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

from bench.goby.bare import ROOT, carried

SIZES: Final = (64, 1024)
SUBSCRIBERS: Final = (1, 4)


@contextmanager
def served(folder: Path, *command: str) -> Iterator[dict[str, str]]:
    """A router in a process of its own; its endpoints."""
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


def gobyd(folder: Path, transport: str) -> list[str]:
    """The command of a gobyd without marks."""
    config = folder / "gobyd.cfg"
    config.write_text("interprocess { send_queue_size: 0 receive_queue_size: 0 }")
    where = ["--tcp-port=0", "--bind-address=127.0.0.1"] if transport == "tcp" else [f"--socket-name={folder}/gobyd"]
    ready = f"--ready-file={folder / 'ready.json'}"
    return ["omq.cli.main", "gobyd", "--transport", transport, f"--config={config}", *where, ready, "--log-level=error"]


def stub(folder: Path, transport: str) -> list[str]:
    """The command of the other one."""
    return ["bench.goby.stub", str(folder / "ready.json"), transport]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--count", type=int, default=200_000, help="messages of a round (default: 200000)")
    parser.add_argument("--transport", choices=["ipc", "tcp"], default="tcp", help="default: tcp")
    told = parser.parse_args()
    found: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(told.rounds):
            for size in SIZES:
                for subscribers in SUBSCRIBERS:
                    count = told.count // subscribers
                    for router, command in (("gobyd", gobyd), ("zmq.proxy", stub)):
                        with served(folder, *command(folder, told.transport)) as endpoints:
                            rate = carried(endpoints, count, size, subscribers)
                        found[size, subscribers, router].append(rate)
    print(f"{told.transport}, msg/s at each subscriber, median (range) of {told.rounds}")
    for size in SIZES:
        for subscribers in SUBSCRIBERS:
            rates = {router: found[size, subscribers, router] for router in ("gobyd", "zmq.proxy")}
            ours, theirs = (statistics.median(some) for some in rates.values())
            told_rates = ", ".join(
                f"{router} {statistics.median(some):,.0f} ({min(some):,.0f} to {max(some):,.0f})"
                for router, some in rates.items()
            )
            print(f"{size:5} bytes, {subscribers} subscribers: {told_rates}: {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
