"""Measures a stream of Spark on the host of the receiver, and through that host on another one.

    python -m bench.spark_hosts                      # ends with 1 if the goal is missed, with 3 if nothing was relayed
    python -m bench.spark_hosts --rounds 9 --size 128

Both hosts are on this machine: see `tests/support/network_namespaces.py`, which needs root. The two hosts take turns,
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

GOAL_SHARE = 0.5  # of the rate on the receiver's host
WARMUP_MICROBATCHES = 2  # microbatches of each host that do not count
MICROBATCH_TIMEOUT_S = 180.0  # of one microbatch, and of the start of the session

PROGRAM = (sys.executable, "-m", "tests.support.spark_host_programs")


def measure(cluster: Cluster, size: int, rows: int, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Returns the MB/s of each microbatch by host, the receiver's first, and the sender's number of connections."""
    address = cluster.hosts.addresses[cluster.driver]
    feed = {"kind": "PUSH", "address": address, "size": size, "count": 0}
    rates: dict[str, list[float]] = {name: [] for name in cluster.executors}
    with running(cluster.hosts, cluster.driver, "feeder.log", *PROGRAM, "feed", json.dumps(feed)) as feeder:
        query = {
            "master": cluster.master,
            "address": address,
            "hosts": cluster.executors,
            "conf": cluster.conf(),
            "options": {
                "socket": "PULL",
                "connect": feeder.wait_report(MICROBATCH_TIMEOUT_S)["url"],
                "columns": "value",
                "maxRowsPerTrigger": rows,
                # A microbatch ends with its last row, not with the time.
                "triggerSeconds": MICROBATCH_TIMEOUT_S,
            },
        }
        with running(cluster.hosts, cluster.driver, "driver.log", *PROGRAM, "measure", json.dumps(query)) as driver:
            while any(len(found) < rounds + WARMUP_MICROBATCHES for found in rates.values()):
                report = driver.wait_report(MICROBATCH_TIMEOUT_S)
                if "failed" in report:
                    raise SystemExit(f"the query failed: {report['failed']}\n{cluster.errors()}")
                rates[report["host"]].append(rows * size / report["seconds"] / 1e6)
            # Asked while both executors are there.
            feeder.order("peers")
            peers = feeder.wait_report(MICROBATCH_TIMEOUT_S)["peers"]
    return {name: found[WARMUP_MICROBATCHES : WARMUP_MICROBATCHES + rounds] for name, found in rates.items()}, peers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_hosts", description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=1024, help="bytes of a row")
    parser.add_argument("--megabytes", type=int, default=256, help="MiB of a microbatch")
    parser.add_argument("--rounds", type=int, default=7, help="microbatches of each host that count")
    arguments = parser.parse_args()
    rows = max(1, (arguments.megabytes << 20) // arguments.size)
    with tempfile.TemporaryDirectory() as folder:
        try:
            hosts = Hosts(Path(folder), "driver", "first", "second")
        except Unavailable as error:
            print(f"hosts cannot be made here: {error}", file=sys.stderr)
            return 2
        with hosts, Cluster(hosts) as cluster:
            rates, peers = measure(cluster, arguments.size, rows, arguments.rounds)
    (_, local), (_, other) = rates.items()
    print(
        f"a stream into noop, {arguments.size} B rows, {rows:,} in a microbatch, {arguments.rounds} microbatches each:"
    )
    for what, found in (("on the receiver's host", local), ("through the other host", other)):
        print(f"  {what:24s}{statistics.median(found):7.0f} MB/s  ({min(found):.0f} to {max(found):.0f})")
    ratio = statistics.median(other) / statistics.median(local)
    if peers != 1:
        print(f"  the sender has {peers} connections: nothing was read through another host")
        return 3
    print(f"  relayed: {ratio:.2f} of local, the goal is {GOAL_SHARE}: {'ok' if ratio >= GOAL_SHARE else 'missed'}")
    return 0 if ratio >= GOAL_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
