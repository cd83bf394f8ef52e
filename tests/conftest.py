"""What holds for all tests: a way of life that is not in the engine's table is a failure, in child processes too.

A crash of the interpreter leaves a report, which `make` shows. Tests are spread over processes; those that share
something dear (a built package, a JVM, programs that run first) stay together in one of them, from the beginning. Those
that measure time come afterwards, one after the other.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.support.hypothesis_profiles  # noqa: F401 - its profile is there before pytest is asked for one
from tests.support.crash_report import CrashReport
from tests.support.ports import held

pytest_plugins = ["tests.support.quarantine"]
os.environ.setdefault("OMQ_STRICT", "1")
# A shell without job control has what it starts with `&` ignore Ctrl-C, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ALONE = (
    *("liveness", "soak"),
    *("system/spark/test_clusters.py", "system/spark/test_failures.py", "system/spark/test_hosts.py"),
    *("system/blocking/test_blocking_idle.py", "unit/blocking/test_blocking_heartbeat.py"),
)
TOGETHER = ("system/spark", "signals", "system/broker/test_page.py", "system/test_packaging.py")


@pytest.hookimpl(trylast=True)  # behind pytest's own, which has it on the terminal, above everything that follows
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CrashReport(several=bool(config.getoption("numprocesses", None))))


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for place in (*ALONE, *TOGETHER):
        assert (here / place).exists(), f"{place} is no place of tests"
    alone = {
        path for path in {item.path for item in items} if any(path.is_relative_to(here / place) for place in ALONE)
    }
    for item in items:
        if item.path in alone:
            item.add_marker(pytest.mark.alone)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spreads tests one by one, but for those that stay together; these go first, the most of them before the others.

    The groups of pytest-xdist 3.8 are none with pytest 9.2, which keeps the parts of a test's name apart.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((place for place in TOGETHER if nodeid.startswith(f"tests/{place}")), nodeid)

        def remove_node(self, node: Any) -> str | None:
            """What a dead process was at is not tried again: it would take the next process, too."""
            for unit in self.assigned_work[node].values():
                for nodeid, done in unit.items():
                    if not done:
                        unit[nodeid] = True
                        super().remove_node(node)
                        return nodeid
            return super().remove_node(node)

    return Scheduling(config, log) if config.getvalue("dist") == "load" else None


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
