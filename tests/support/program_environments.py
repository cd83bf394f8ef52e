"""Virtual environments with real programs from the package index, kept from run to run.

They lie in `$OMQ_TEST_CACHE`, `$XDG_CACHE_HOME/omq-tests` or `~/.cache/omq-tests`; a folder that is deleted there is
made again, with the newest versions. Without an index the tests that need one are skipped; with CI set they fail.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
INSTALL_TIMEOUT_S: Final = 900.0
_COMPLETE: Final = "complete"  # holds what is installed


@functools.cache
def environment_with(*requirements: str) -> Path:
    """Returns the folder of an environment with requirements, and with what omq itself requires.

    Two processes that ask for the same one at once wait for each other.
    """
    needs = sorted([*requirements, *_needs_of_omq()])
    tag = sys.implementation.cache_tag
    digest = hashlib.sha256("\n".join([*needs, sys.version]).encode()).hexdigest()[:12]
    folder = _cache() / f"{_name(requirements[0])}-{tag}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _COMPLETE).exists():
            _make(folder, needs)
    return folder


def versions(folder: Path) -> dict[str, str]:
    """Returns the version of each distribution of an environment."""
    lines = (folder / _COMPLETE).read_text().split()
    return dict(line.lower().split("==", 1) for line in lines if "==" in line)


def _cache() -> Path:
    own = os.environ.get("OMQ_TEST_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omq-tests"


def _needs_of_omq() -> list[str]:
    needs: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return needs


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_-]", requirement)[0]


def _make(folder: Path, needs: list[str]) -> None:
    python = folder / "bin" / "python"
    try:
        _run(sys.executable, "-m", "venv", "--clear", folder)
        _run(python, "-m", "pip", "install", "--quiet", "--no-input", *needs)
        installed = _run(python, "-m", "pip", "freeze")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        reason = f"{' '.join(needs)} cannot be installed: {_last_line(error.stderr)}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    (folder / _COMPLETE).write_text(installed)


def _run(*command: str | Path) -> str:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=INSTALL_TIMEOUT_S
    ).stdout


def _last_line(text: str | bytes | None) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text or "no answer"
    return shown.strip().rpartition("\n")[2]
