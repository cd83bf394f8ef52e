"""What holds for all tests: a way of life that is not in the engine's table is a failure, in child processes too.

A crash of the interpreter leaves in `.cache/crash` which test it was and what every thread did; `make` shows it.
"""

from __future__ import annotations

import faulthandler
import os

import pytest

os.environ.setdefault("OMQ_STRICT", "1")


class LastWords:
    """Keeps a file that tells of a crash, and is gone when there was none."""

    def __init__(self, config: pytest.Config) -> None:
        self._path = config.rootpath / ".cache" / "crash"
        self._path.parent.mkdir(exist_ok=True)
        self._file = self._path.open("wb", buffering=0)
        faulthandler.enable(self._file)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"in {nodeid}\n".encode())

    def pytest_unconfigure(self) -> None:
        faulthandler.disable()
        self._file.close()
        self._path.unlink(missing_ok=True)


@pytest.hookimpl(trylast=True)  # behind pytest's own, which has it on the terminal, above everything that follows
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LastWords(config))
