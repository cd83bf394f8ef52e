"""Fills servers before they are measured, after a check for room, and shows the progress."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.broker.client_process import ClientProcess
from bench.broker.plan import Row
from bench.broker.progress import show
from bench.processes import RunError

RESERVE_BYTES = 2 << 30  # of a disk, which stay free
PORTIONS = 100  # of the messages, between two lines of progress


def needed(count: int, size: int) -> int:
    """Returns the bytes of disk or memory that a server needs for *count* messages, with its overhead."""
    return int(1.3 * count * size)


def free(place: Path) -> int:
    """Returns the bytes that servers may use in a folder."""
    return shutil.disk_usage(place).free - RESERVE_BYTES


def available() -> int:
    """Returns the bytes of memory that are available."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def check_room(row: Row, wanted: int, place: Path) -> None:
    """Checks that there is room for a row.

    Raises:
        RunError: There is too little of the disk or memory.
    """
    if row.stores and free(place) < wanted:
        raise RunError(f"{row.label}: no room for {wanted / (1 << 30):.1f} GiB in {place}")
    # Redis keeps all of it in memory.
    if row.peer == "redis" and wanted > 0.6 * available():
        raise RunError(f"{row.label}: it would need {wanted / (1 << 30):.1f} GiB of memory")


def fill(client: ClientProcess, label: str, count: int, portion: int) -> None:
    """Has a client publish *count* messages, and shows the progress."""
    for stored in range(0, count, portion):
        show(f"filling {label}: {stored:,} of {count:,} messages")
        client.call("publish", min(portion, count - stored))
