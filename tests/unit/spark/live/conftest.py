"""Receivers that start soon."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forking_python import forking_python


@pytest.fixture(scope="session")
def receiver_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python for receivers, whose imports take most of a second."""
    with forking_python(tmp_path_factory.mktemp("python"), "omq.spark.live.receiver_client") as program:
        yield program


@pytest.fixture
def forked_receivers(receiver_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this process start receivers as forks."""
    monkeypatch.setattr(sys, "executable", str(receiver_python))
