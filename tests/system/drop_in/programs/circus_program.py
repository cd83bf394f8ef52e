"""A program that prints the processes of a watcher, from the statistics that circus publishes, as JSON."""

import json
import sys

from circus.stats.client import StatsClient


def main(endpoint: str, watcher: str, count: int) -> None:
    pids = set()
    for name, _, statistics in StatsClient(endpoint).iter_messages():
        if name == watcher and isinstance(statistics["pid"], int):
            pids.add(statistics["pid"])
        if len(pids) == count:
            break
    print(json.dumps(sorted(pids)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
