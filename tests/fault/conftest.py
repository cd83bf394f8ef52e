"""Fixtures of the tests with faults."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.stream_endpoints import end_all


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "omq-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)
