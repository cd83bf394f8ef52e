"""`demo_broker.py` as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waits import stable, until
from tests.system.broker.server_process import ROOT

DEMO = ROOT / "docs" / "examples" / "demo_broker.py"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "a directory"
    root.mkdir()
    (root / "empty").write_bytes(b"")
    (root / "some").write_bytes(os.urandom(300_000))
    return root


def environment(tmp_path: Path) -> dict[str, str]:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TMPDIR": str(scratch)}


def demo(tmp_path: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, DEMO, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment(tmp_path), check=False)


@pytest.mark.slow
def test_nothing_is_lost_while_the_broker_is_killed(tree: Path, tmp_path: Path) -> None:
    done = demo(tmp_path, "--dir", tree, "--seconds", "1", "--limit", "100")
    assert done.returncode == 0, done.stderr
    rows = {row[1]: row[2] for row in re.finditer(r"│ ([a-z ]+?) +│ +([\d,]+) │", done.stdout)}
    assert rows["published"] == rows["acknowledged"] == rows["received"] != "0"
    assert rows["lost"] == rows["came twice"] == "0"
    assert "killed (SIGKILL)" in done.stdout
    assert "byte for byte and in order" in done.stdout
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interruption_leaves_no_process_and_no_file(tree: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, DEMO, "--dir", str(tree), "--seconds", "60"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "the feed begins" in line:
            break
    started = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(started.read_text, "the demo's processes")
    children = stable(started.read_text).split()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "interrupted; every process has ended\n")
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_wrong_directory_is_named(tmp_path: Path) -> None:
    done = demo(tmp_path, "--dir", tmp_path / "missing")
    assert done.returncode == 2
    assert f"'{tmp_path / 'missing'}' does not exist" in done.stderr
    (tmp_path / "file").write_text("")
    assert "is a file" in demo(tmp_path, "--dir", tmp_path / "file").stderr


def test_an_empty_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    done = demo(tmp_path, "--dir", tmp_path / "nothing")
    assert done.returncode == 1
    assert "nothing has no readable file" in done.stderr
