"""Processes that belong to a stream, not to the task or the driver that starts them."""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

from omq.unpatched import subprocess

STARTING: Final = 60.0  # seconds that one may take to read what it is told


def launch(module: str, told: bytes) -> None:
    """Starts a process that outlives the one that starts it.

    Args:
        module: What it runs; it calls `detach` when it has read what it is told.
        told: What stands on its standard input.

    Raises:
        OSError: It cannot be started, or has failed.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=env,
        start_new_session=True,
    ) as process:
        process.communicate(told, timeout=STARTING)
    if process.returncode:
        raise OSError(f"{sys.executable} -m {module} has failed: its standard error says why")


def detach() -> None:
    """Leaves the process that started us, which need not wait for our end; takes as many descriptors as it may."""
    if os.fork():
        os._exit(0)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def speak_nowhere() -> None:
    """Holds nothing open of those who have started us."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 2)
    os.close(nowhere)
