"""What holds for all tests: a way of life that is not in the engine's table is a failure, in child processes too.

A crash of the interpreter tells its last words, which `make` shows.
"""

from __future__ import annotations

import os

import pytest

from tests.lastwords import LastWords

os.environ.setdefault("OMQ_STRICT", "1")


@pytest.hookimpl(trylast=True)  # behind pytest's own, which has it on the terminal, above everything that follows
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LastWords())
