"""Fixtures of stores on disk and in memory."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.open_store import Opened

#: A directory in memory, where syncs are fast, if there is one.
QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yields the directory of the test's store."""
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        yield Path(path) / "store"


@pytest.fixture
def store(directory: Path) -> Iterator[Opened]:
    with Opened.on_disk(directory) as opened:
        yield opened


@pytest.fixture
def again(directory: Path) -> Iterator[Callable[..., Opened]]:
    """Opens the store of this test's directory, closing the one that was open before."""
    last: list[Opened] = []

    def open_again(**options: Any) -> Opened:
        while last:
            last.pop().log.close()
        last.append(Opened.on_disk(directory, **options))
        return last[0]

    yield open_again
    for one in last:
        one.log.close()


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """Returns the kind of the store `log`: disk or memory. Tests may parametrize it."""
    return str(getattr(request, "param", "disk"))


@pytest.fixture
def log(place: str, directory: Path) -> Iterator[Opened]:
    """Yields a store on disk or in memory."""
    with Opened.on_disk(directory) if place == "disk" else Opened.in_memory() as opened:
        yield opened
