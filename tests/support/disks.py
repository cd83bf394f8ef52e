"""Disks that are full or fail, which need root or strace."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk_at(disk: Path) -> Iterator[Path]:
    """Mounts a disk of 1 MiB at a new directory; skips the test if that is not permitted."""
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "omq-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def enlarge(disk: Path) -> None:
    """Gives a disk of `small_disk_at` 8 MiB."""
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)


def _traces() -> bool:
    """Returns whether strace is installed and may trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], check=False, capture_output=True).returncode == 0


needs_strace = pytest.mark.skipif(not _traces(), reason="strace is missing, or may not trace")


def strace(fault: str) -> list[str]:
    """Returns the strace command that injects a fault into a system call, such as `fdatasync:error=EIO:when=30+`."""
    call = fault.partition(":")[0]
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={fault}"]
