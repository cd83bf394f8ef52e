"""Hooks and fixtures for all tests.

`OMQ_STRICT` makes an undeclared transition of the engine's state table an error, in child processes too. A crash of
the interpreter leaves a report for `python -m tests.support.crash_report`.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator

import pytest

import tests.support.hypothesis_profiles  # noqa: F401 - registers the profile before pytest selects one
from tests.support import optional_packages
from tests.support.crash_report import CrashReport
from tests.support.ports import held

pytest_plugins = ["tests.support.quarantine"]
os.environ.setdefault("OMQ_STRICT", "1")
# A shell without job control starts background commands with Ctrl-C ignored, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(trylast=True)  # after pytest's own faulthandler plugin, which would write to the terminal
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(optional_packages)
    config.pluginmanager.register(CrashReport(several=bool(config.getoption("numprocesses", None))))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from running during collection, where it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from scanning the collected tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port of 127.0.0.1 that no other process is given."""
    with held() as port:
        yield port


@pytest.fixture
def free_place(free_port: int) -> str:
    """A tcp endpoint at a free port."""
    return f"tcp://127.0.0.1:{free_port}"
