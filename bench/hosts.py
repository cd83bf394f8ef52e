"""Measures what a stream reads on the host of the receiver, and what through that host on another one.

    python -m bench.hosts                      # ends with 1 if the goal is missed, with 3 if nothing was relayed
    python -m bench.hosts --rounds 9 --size 128

Both hosts are on this machine: see `tests/support/network_namespaces.py`, which needs root. The two take turns,
microbatch by microbatch, in one query.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from tests.support.network_namespaces import Cluster, Hosts, Unavailable, running

GOAL = 0.5  # of what is read on the receiver's host
WARMING = 2  # microbatches of each host that do not count
PATIENCE = 180.0  # seconds that one microbatch may take, and the session before the first

PROGRAM = (sys.executable, "-m", "tests.support.spark_host_programs")


def measured(cluster: Cluster, size: int, rows: int, rounds: int) -> tuple[dict[str, list[float]], int]:
    """MB/s of each microbatch, by host, the receiver's first; and how many connections the peer that sends has had."""
    address = cluster.hosts.addresses[cluster.driver]
    fed = {"kind": "PUSH", "address": address, "size": size, "count": 0}
    rates: dict[str, list[float]] = {name: [] for name in cluster.executors}
    with running(cluster.hosts, cluster.driver, "feeder.log", *PROGRAM, "feed", json.dumps(fed)) as feeder:
        given = {
            "master": cluster.master,
            "address": address,
            "hosts": cluster.executors,
            "conf": cluster.conf(),
            "options": {
                "socket": "PULL",
                "connect": feeder.hear(PATIENCE)["url"],
                "columns": "value",
                "maxRowsPerTrigger": rows,
                # A microbatch ends with its last row, not with the time.
                "triggerSeconds": PATIENCE,
            },
        }
        with running(cluster.hosts, cluster.driver, "driver.log", *PROGRAM, "measure", json.dumps(given)) as driver:
            while any(len(found) < rounds + WARMING for found in rates.values()):
                facts = driver.hear(PATIENCE)
                if "failed" in facts:
                    raise SystemExit(f"the query failed: {facts['failed']}\n{cluster.errors()}")
                rates[facts["host"]].append(rows * size / facts["seconds"] / 1e6)
            # Asked while both executors are there.
            feeder.order("peers")
            peers = feeder.hear(PATIENCE)["peers"]
    return {name: found[WARMING : WARMING + rounds] for name, found in rates.items()}, peers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hosts", description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=1024, help="bytes of a row")
    parser.add_argument("--megabytes", type=int, default=256, help="of a microbatch")
    parser.add_argument("--rounds", type=int, default=7, help="microbatches of each host that count")
    given = parser.parse_args()
    rows = max(1, (given.megabytes << 20) // given.size)
    with tempfile.TemporaryDirectory() as folder:
        try:
            hosts = Hosts(Path(folder), "driver", "first", "second")
        except Unavailable as error:
            print(f"no hosts can be made here: {error}", file=sys.stderr)
            return 2
        with hosts, Cluster(hosts) as cluster:
            rates, peers = measured(cluster, given.size, rows, given.rounds)
    (_, local), (_, other) = rates.items()
    print(f"a stream into noop, {given.size} B rows, {rows:,} in a microbatch, {given.rounds} microbatches each:")
    for what, found in (("on the receiver's host", local), ("through the other host", other)):
        print(f"  {what:24s}{statistics.median(found):7.0f} MB/s  ({min(found):.0f} to {max(found):.0f})")
    ratio = statistics.median(other) / statistics.median(local)
    if peers != 1:
        print(f"  the peer that sends has {peers} connections: nothing was read through another host")
        return 3
    print(f"  relayed: {ratio:.2f} of local, the goal is {GOAL}: {'ok' if ratio >= GOAL else 'missed'}")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
