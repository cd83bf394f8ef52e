"""Snapshots of a replica of this process. Another process copies it, as one process opens an environment only once."""

from __future__ import annotations

import sys
from pathlib import Path

from omq.store.errors import StoreError
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.layout import Applied
from omq.store.lmdb.snapshot import take_snapshot
from omq.unpatched import subprocess


def copy_replica(directory: Path, target: Path, kind: str) -> int:
    """Copies a live replica to a new directory, in another process; blocks until that has ended.

    Returns:
        The position of the copy.

    Raises:
        StoreError: The process has failed.
    """
    program = "from omq.store.replication.copying import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, directory, target, kind], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise StoreError(lines[-1] if lines else f"the process has ended with {done.returncode}")
    return int(done.stdout)


def applied_of(snapshot: Path) -> Applied:
    """Returns the last entry that a snapshot contains."""
    environment = Environment(snapshot / "strong", sync=False, readonly=True)
    try:
        with environment.read() as reading:
            return Applied.load(reading)
    finally:
        environment.close()


def main() -> None:
    """Copies a replica and prints the position of the copy."""
    directory, target, kind = sys.argv[1:]
    take_snapshot(directory, target, kind=kind)
    print(applied_of(Path(target)).position)
