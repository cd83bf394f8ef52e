"""The check for a Java that Spark can run on, and its instructions."""

import subprocess
import sys
from pathlib import Path

import pyarrow  # noqa: F401
import pytest

from omq.spark import java


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def put(folder: Path, version: str, status: int = 0) -> None:
    (folder / "java").write_text(f"#!/bin/sh\necho '{version}' >&2\nexit {status}\n")
    (folder / "java").chmod(0o755)


@pytest.mark.parametrize(
    ("version", "fits"), [("17.0.15", True), ("25", True), ("11.0.2", False), ("1.8.0_392", False)]
)
def test_the_version_counts(bin_: Path, version: str, fits: bool) -> None:
    put(bin_, f'openjdk version "{version}" 2026-01-20')
    found = java.missing()
    assert (found == "") is fits
    assert fits or (version in found and "17 or newer" in found)


def test_a_java_that_fails_does_not_count(bin_: Path) -> None:
    put(bin_, 'openjdk version "17.0.15" 2026-01-20', status=1)
    assert "17 or newer" in java.missing()


def test_java_home_goes_first_as_it_does_for_spark(bin_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bin_, 'openjdk version "17.0.15" 2026-01-20')
    monkeypatch.setenv("JAVA_HOME", str(bin_ / "gone"))
    assert "JAVA_HOME=" in java.missing()
    monkeypatch.setenv("JAVA_HOME", str(bin_.parent))
    assert java.missing() == ""


def test_as_a_program_it_needs_no_package_and_names_one(bin_: Path) -> None:
    ran = subprocess.run([sys.executable, "-S", java.__file__], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "there is no java on the PATH" in ran.stderr
    assert "openjdk" in ran.stderr
