"""Fixtures of the tests with faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.stream_endpoints import end_all
from tests.support.disks import small_disk_at


@pytest.fixture(autouse=True)
def _end_all_processes() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    with small_disk_at(tmp_path / "disk") as disk:
        yield disk
