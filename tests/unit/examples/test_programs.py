"""The short example programs run, and print what their docstrings show."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.optional_packages import require

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"
#: The modules that a program needs and that may be missing.
NEEDS = {
    "fastapi_service": ("fastapi", "uvicorn"),
    "goby_vehicle": ("google.protobuf", "bson"),
    "pzq_two_sites": ("lmdb",),
    "spark_topic": ("lmdb", "pyarrow", "pyspark"),
    "work_queue": ("lmdb",),
}
PROGRAMS = (
    "curve_authorizer",
    "discovery",
    "fastapi_service",
    "file_transfer",
    "goby_vehicle",
    "last_value_cache",
    "price_feed",
    "pzq_two_sites",
    "reliable_request",
    "work_queue",
    "worker_pool",
)


def printed(name: str) -> str:
    """Returns the output that the docstring of a program shows."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    return textwrap.dedent(text.partition("\nPrints:\n\n")[2]) + "\n"


def run(name: str, timeout: float) -> None:
    for module in NEEDS.get(name, ()):
        require(module)
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_its_docstring_shows(name: str) -> None:
    run(name, timeout=50)


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_the_program_for_spark_prints_what_its_docstring_shows() -> None:
    require("pyspark")
    from omq.spark.java import missing

    if reason := missing():
        pytest.skip(f"!! SPARK IS NOT TESTED: {reason}")
    run("spark_topic", timeout=300)


def test_each_program_is_in_the_table() -> None:
    page = (EXAMPLES / "README.md").read_text()
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \| [^|`]+ \|$", page, re.MULTILINE)
    assert sorted(listed) == sorted((*PROGRAMS, "spark_topic"))
    documented = {path.stem for path in EXAMPLES.glob("*.py") if "\nPrints:\n" in path.read_text()}
    assert documented == set(listed)
