"""The command line: `python -m bench.replicated`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.processes import ROOT
from bench.replicated.cases import idle, publish, replay
from bench.replicated.cluster import MeasuredCluster, measured_cluster
from bench.replicated.pauses import pauses
from bench.replicated.report import PAGE, ClusterTable, write
from omq.store.replication.lease import DEFAULT_LEASE_S

CASES = ("publish", "replay", "idle", "pause")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases of the command line; returns 1 if a target is missed and `--check` is given."""
    parser = argparse.ArgumentParser("python -m bench.replicated", description=__doc__)
    add = parser.add_argument
    add("--cases", default=",".join(CASES), help=f"only these of: {','.join(CASES)}")
    add("--rounds", type=int, default=3, help="rounds, in which rows take turns (default 3)")
    add("--seconds", type=float, default=2.0, help="length of a measured burst (default 2)")
    add("--messages", type=int, default=200_000, help="messages that are replayed (default 200000)")
    add("--topics", type=int, default=10_000, help="topics that are not written (default 10000)")
    add("--lease", type=float, default=DEFAULT_LEASE_S, help=f"lease in seconds (default {DEFAULT_LEASE_S:g})")
    add("--directory", type=Path, help="the folder of the data (default: the folder for temporary files)")
    add("--json", type=Path, metavar="FILE", help="write every round to a file")
    add("--write", action="store_true", help=f"put the tables into {PAGE.relative_to(ROOT)}")
    add("--check", action="store_true", help="exit 1 if a target is missed")
    found = parser.parse_args(argv)
    wanted = found.cases.split(",")
    if unknown := [name for name in wanted if name not in CASES]:
        parser.error(f"--cases {','.join(unknown)}: known are {', '.join(CASES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers end with the bench
    place = (found.directory or Path(tempfile.gettempdir())).resolve()
    run: dict[str, Callable[[MeasuredCluster], list[ClusterTable]]] = {
        "publish": lambda cluster: publish(cluster, found.rounds, found.seconds),
        "replay": lambda cluster: replay(cluster, found.rounds, found.messages, place),
        "idle": lambda cluster: idle(cluster, found.rounds, 5 * found.seconds, found.topics),
        "pause": lambda cluster: pauses(cluster, found.rounds),
    }
    tables = []
    words = [word for word in argv or sys.argv[1:] if word not in ("--check", "--json", str(found.json))]
    command = f'make bench-replicated ARGS="{" ".join(words)}"' if words else "make bench-replicated"
    for name in wanted:
        with measured_cluster(place, found.lease) as cluster:
            measured = run[name](cluster)
        for table in measured:
            print(table.text(), end="\n\n", flush=True)
        tables += measured
        if found.json:
            rows = [{"key": one.key, "title": one.title, "rows": one.samples} for one in tables]
            found.json.write_text(json.dumps(rows, indent=1) + "\n")
        if found.write:
            write(measured, command)
    return int(found.check and any(table.missed for table in tables))


if __name__ == "__main__":
    sys.exit(main())
