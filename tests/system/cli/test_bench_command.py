"""`omq bench`, alone and compared with the project's own benchmarks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.measure import Load, round_trips, throughput
from omq.cli.bench.measure import PATTERNS, measure
from tests.system.cli.command_process import failed, run, run_first, start

ROOT = Path(__file__).parents[3]
QUICK = ("--seconds", "0.05", "--rounds", "1", "--size", "64")
pytestmark = pytest.mark.timeout(120)


def rows(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("bench", *QUICK, "--json", *words).splitlines()]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_both_libraries_are_measured(pattern: str) -> None:
    found = rows("--pattern", pattern)
    assert [(row["pattern"], row["transport"], row["size"], row["library"]) for row in found] == [
        (pattern, "tcp", 64, "omq"),
        (pattern, "tcp", 64, "pyzmq"),
    ]
    for row in found:
        if pattern == "req-rep":
            assert 0 < row["p50"] <= row["p99"]
        else:
            assert row["megabytes"] == pytest.approx(row["rate"] * 64 / 1e6)
        assert len(row["rounds"]) == 1


def test_a_table_and_a_picture(tmp_path: Path) -> None:
    plot = tmp_path / "bench.svg"
    words = ("--pattern", "push-pull", "--pattern", "req-rep", "--transport", "ipc", "--library", "omq", "--plot", plot)
    head, first, second_head, second = run("bench", *QUICK, *words).decode().splitlines()
    assert head.split() == ["PATTERN", "TRANSPORT", "SIZE", "LIBRARY", "MESSAGES/S", "MB/S", "OMQ", "/", "IT"]
    assert re.fullmatch(r"push-pull +ipc +64 B +omq +[\d,]+ +[\d.]+ +1.00", first)
    assert second_head.split()[4:8] == ["P50", "US", "P99", "US"]
    assert second.startswith("req-rep")
    texts = {text.text for text in ElementTree.fromstring(plot.read_text()).iter("{http://www.w3.org/2000/svg}text")}
    assert {"Messages a second, 64 B", "push-pull ipc", "req-rep ipc", "omq"} <= texts


def test_arguments_that_are_not_valid_are_named() -> None:
    assert "'many'" in failed(start("bench", "--size", "many"), 2)
    assert "--rounds" in failed(start("bench", "--rounds", "0"), 2)


@pytest.fixture
def undisturbed() -> Iterator[None]:
    """Runs this process, and those that it starts, before all others."""
    run_first(os.getpid())
    yield
    run_first(os.getpid(), os.SCHED_OTHER)


def test_a_library_that_is_missing_is_named() -> None:
    code = "import sys; sys.modules['zmq'] = None; from omq.cli.main import main; main(['bench', '--library', 'pyzmq'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "pyzmq is not installed" in done.stderr


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("undisturbed")
def test_the_project_s_own_benchmarks_agree() -> None:
    """The same machine in turns: the ratios of both ways to measure are close to 1."""
    rates, trips = [], []
    for _ in range(7):
        load = Load("tcp", 128, 0.5)
        ours, theirs = measure("omq", "push-pull", "tcp", 128, 0.5), throughput("omq", load)
        rates.append(ours["rate"] / theirs["rate"])
        ours, theirs = measure("omq", "req-rep", "tcp", 128, 0.5), round_trips("omq", load)
        trips.append(ours["p50"] / theirs["p50"])
    assert 0.8 < median(rates) < 1.25
    assert 0.8 < median(trips) < 1.25
