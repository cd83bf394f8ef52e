"""Receivers that start soon."""

import sys
from pathlib import Path

import pytest

from tests.support.fork_server import Template, executable


@pytest.fixture(scope="session")
def receiver_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python for receivers, whose imports take most of a second."""
    template = Template(("omq.spark.live.receiver_client",), frozen=True)
    return executable(tmp_path_factory.mktemp("python"), template)


@pytest.fixture
def forked_receivers(receiver_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this process start receivers as forks."""
    monkeypatch.setattr(sys, "executable", str(receiver_python))
