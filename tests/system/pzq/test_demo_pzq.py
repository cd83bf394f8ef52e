"""`demo_pzq.py` as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pzq_nodes import ROOT

DEMO = ROOT / "docs" / "examples" / "demo_pzq.py"


def demo(tmp_path: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "scratch").mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TMPDIR": str(tmp_path / "scratch")}
    command = [sys.executable, DEMO, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nothing_is_lost_while_the_owner_is_killed(tmp_path: Path) -> None:
    tree = tmp_path / "a directory"
    tree.mkdir()
    (tree / "empty").write_bytes(b"")
    (tree / "some").write_bytes(os.urandom(1_500_000))
    done = demo(tmp_path, "--dir", tree, "--seconds", "1.5", "--block", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row[1].strip(): row[2] for row in re.finditer(r"│ ([\w. ,]+?) +│ +([\d,]+) │", done.stdout)}
    assert rows["acknowledged"] == rows["delivered"] == "734"
    assert rows["lost"] == rows["wrong bytes"] == "0"
    assert int(rows["by 127.0.0.2"].replace(",", "")) > 50
    assert "killed (SIGKILL)" in done.stdout
    assert list((tmp_path / "scratch").iterdir()) == []


def test_an_empty_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    done = demo(tmp_path, "--dir", tmp_path / "nothing")
    assert done.returncode == 1
    assert "nothing has no readable file" in done.stderr
