"""A PySpark that is too old is named, with the version that is needed."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyspark  # noqa: F401
import pytest

import omq
import omq.spark
from omq.spark import version

ROOT = Path(__file__).parents[3]
ERROR = r"omq\.spark needs PySpark 4\.2 or newer, and 4\.1\.4 is installed: pip install 'pyspark>=4\.2'"

#: Nothing may be imported that needs admission control, which PySpark 4.1 does not have.
OLD = """
import sys, pyspark
pyspark.__version__ = "4.1.4"
from pyspark_omq import DefaultSource
assert "omq.spark.source" not in sys.modules
print(DefaultSource.name())
try:
    DefaultSource({"topic": "t"})
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(
    ("installed", "is_enough"),
    [("4.0.0", False), ("4.1.4", False), ("4.2.0.dev1", True), ("4.10.0", True), ("5.0.0", True), ("unknown", True)],
)
def test_a_version_is_compared_by_its_numbers(monkeypatch: pytest.MonkeyPatch, installed: str, is_enough: bool) -> None:
    monkeypatch.setattr("pyspark.__version__", installed)
    assert version.is_supported() is is_enough


def test_register_names_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(omq.StateError, match=ERROR):
        omq.spark.register(None)


def test_the_source_that_spark_finds_names_both_versions() -> None:
    """Spark reports what a source raises, and not why the module of one cannot be imported."""
    paths = [str(ROOT), str(ROOT / "omq/spark/top"), *filter(None, sys.path)]
    found: Any = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{OLD}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    name, error = found.stdout.splitlines()
    assert name == "omq"
    assert error.startswith("StateError: omq.spark needs PySpark 4.2 or newer, and 4.1.4 is installed")


def test_the_package_requires_what_the_check_does() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (required,) = [one for one in wanted["project"]["optional-dependencies"]["spark"] if one.startswith("pyspark")]
    assert required == "pyspark>=" + ".".join(map(str, version.OLDEST_PYSPARK))
