"""Ends the commands of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.cli.command_process import BOUND, STARTED


@pytest.fixture(autouse=True)
def ended_commands() -> Iterator[None]:
    """Kills the commands that a test has left, and closes their pipes."""
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait(BOUND)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
