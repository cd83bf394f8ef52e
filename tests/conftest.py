"""What holds for all tests: a way of life that is not in the engine's table is a failure, in child processes too.

A crash of the interpreter tells its last words, which `make` shows. Most tests are spread over processes; those that
measure time, and those that share something dear (a JVM, a built package, programs that run first), come afterwards.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lastwords import LastWords
from tests.ports import held

os.environ.setdefault("OMQ_STRICT", "1")

ALONE = (
    *("ends", "fault", "liveness", "signals", "soak", "system/spark", "system/test_packaging.py"),
    *(
        "system/blocking/test_blocking_idle.py",
        "unit/core/test_ping_responder.py",
        "unit/blocking/test_blocking_heartbeat.py",
    ),
)


@pytest.hookimpl(trylast=True)  # behind pytest's own, which has it on the terminal, above everything that follows
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LastWords())


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for place in ALONE:
        for item in items:
            if here / place in (item.path, *item.path.parents):
                item.add_marker(pytest.mark.alone)


def pytest_collection_finish() -> None:
    """What pytest knows about ten thousand tests is not looked through at each collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port of 127.0.0.1 where nobody listens but whom the test has listen there."""
    with held() as port:
        yield port


@pytest.fixture
def free_place(free_port: int) -> str:
    """An endpoint at such a port."""
    return f"tcp://127.0.0.1:{free_port}"
