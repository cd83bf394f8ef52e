"""`make demo-spark` as a user runs it, with ticks and files of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.optional_packages import require
from tests.system.spark.conftest import ROOT, TOP

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(400)]


def demo(*arguments: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(TOP)]), "TZ": "Asia/Tokyo"}
    command = [sys.executable, ROOT / "docs" / "examples" / "demo_spark.py", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=380, check=False)


def test_every_tick_is_in_a_bar_once_though_a_worker_is_killed(tmp_path: Path) -> None:
    rows = [f"{'AB'[n % 2]},{10 + n % 7},{n},{1_700_000_000_000_000 + n * 10_000}" for n in range(800)]
    ticks = tmp_path / "my ticks.csv"
    ticks.write_text("\n".join(["symbol,price,size,time", *rows]))
    files = tmp_path / "files"
    files.mkdir()
    (files / "one").write_bytes(b"x" * 3_000_000)
    ran = demo("--input", str(ticks), "--dir", str(files))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "a worker is killed" in ran.stdout
    assert "ticks to 16 bars" in ran.stdout  # two symbols, eight seconds
    assert "800 in" in ran.stdout
    assert "0 lost, 0 doubled" in ran.stdout
    assert "all match the disk" in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr


def test_every_tick_is_in_a_bar_once_though_the_leader_of_the_cluster_is_lost(tmp_path: Path) -> None:
    require("nats")
    (tmp_path / "one").write_bytes(b"x")
    ran = demo("--replicated", "--dir", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    lost = next(number for number, line in enumerate(lines) if "is lost: the leader of the cluster" in line)
    assert "leads after" in lines[lost + 1]
    assert sum(" open " in line for line in lines[lost:]) > 24  # of 48 bars: the feed was not over
    assert "a worker is killed" in ran.stdout
    assert "24,000 in" in ran.stdout
    assert "0 lost, 0 doubled" in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr


def test_an_invalid_input_is_reported(tmp_path: Path) -> None:
    ran = demo("--input", str(tmp_path / "nowhere.csv"))
    assert ran.returncode == 1
    assert f"INPUT={tmp_path}/nowhere.csv cannot be read" in ran.stderr
    assert "Traceback" not in ran.stderr
