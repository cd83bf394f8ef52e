"""Servers that are filled before anything is measured: whether there is room, and how far it has come."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.broker.plan import Row
from bench.broker.player import Player
from bench.broker.progress import say
from bench.processes import RunError

RESERVE = 2 << 30  # bytes that a disk keeps
PORTIONS = 100


def needed(count: int, size: int) -> int:
    """Bytes of disk or memory that a server takes for so many messages, and what it has beside them."""
    return int(1.3 * count * size)


def free(place: Path) -> int:
    """Bytes that servers may take there."""
    return shutil.disk_usage(place).free - RESERVE


def available() -> int:
    """Bytes of memory that programs can have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def check_room(row: Row, wanted: int, place: Path) -> None:
    """Refuses what would not fit.

    Raises:
        RunError: It says what is missing.
    """
    if row.stores and free(place) < wanted:
        raise RunError(f"{row.label}: no room for {wanted / (1 << 30):.1f} GiB in {place}")
    # Redis keeps all of it in memory.
    if row.peer == "redis" and wanted > 0.6 * available():
        raise RunError(f"{row.label}: it would need {wanted / (1 << 30):.1f} GiB of memory")


def fill(player: Player, label: str, count: int, portion: int) -> None:
    """Has it publish so many, and says how far it is."""
    for stored in range(0, count, portion):
        say(f"filling {label}: {stored:,} of {count:,} messages")
        player.does("publish", min(portion, count - stored))
