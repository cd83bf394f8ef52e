"""Programs from the package index, each in an environment of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.drop_in_programs import Installed
from tests.support.program_environments import environment_with


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Callable[..., Installed]]:
    """Makes an environment with requirements, or finds it; what runs in it ends with the test."""
    with contextlib.ExitStack() as stack:

        def install(*requirements: str) -> Installed:
            programs = Installed(environment_with(*requirements), tmp_path)
            stack.callback(programs.end)
            return programs

        yield install
