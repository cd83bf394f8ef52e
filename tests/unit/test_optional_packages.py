"""A missing optional package skips its tests and is named, but fails them in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.optional_packages import OPTIONAL, reason_of

ROOT = Path(__file__).parents[2]
#: Makes the optional packages missing, as they are where only `.[test]` is installed.
HIDE = f"import sys; sys.modules.update(dict.fromkeys({[*OPTIONAL]}))"
#: Imports every conftest: one that cannot be imported stops a run of its directory.
IMPORT_ALL = """
import importlib, pathlib
for path in pathlib.Path("tests").rglob("conftest.py"):
    importlib.import_module(".".join(path.with_suffix("").parts))
"""


def without_optional_packages(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process that has none of the optional packages."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    return subprocess.run(
        [sys.executable, "-c", f"{HIDE}\n{program}", *arguments],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_conftest_needs_no_optional_package() -> None:
    done = without_optional_packages(IMPORT_ALL)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ci", [False, True])
def test_a_directory_that_needs_a_missing_package_is_skipped_but_in_ci(ci: bool) -> None:
    collect = ("-q", "--collect-only", "-p", "no:cacheprovider", "tests/unit/goby/test_portal.py")
    done = without_optional_packages(
        "import pytest; sys.exit(pytest.main(sys.argv[1:]))", *collect, **({"CI": "1"} if ci else {})
    )
    if ci:
        assert done.returncode == pytest.ExitCode.INTERRUPTED
        assert "ERROR tests/unit/goby/test_portal.py" in done.stdout
    else:
        assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
        assert "SKIPPED [1] tests/unit/goby/test_portal.py:1: " in done.stdout
        assert "pip install" in done.stdout


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    error = ModuleNotFoundError("No module named 'lmdb'", name="lmdb")
    assert reason_of(error) == "lmdb is not installed: pip install -e '.[test-all]'"
    collected = Exception("collecting")
    collected.__cause__ = error
    assert reason_of(collected) == reason_of(error)


def test_a_missing_package_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    assert reason_of(ModuleNotFoundError("No module named 'lmdb'", name="lmdb")) == ""


def test_other_errors_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert reason_of(ModuleNotFoundError("No module named 'omq.gone'", name="omq.gone")) == ""
    assert reason_of(ValueError("wrong")) == ""
