"""`demo_goby.py` as a user runs it."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from omq.goby import Received  # before the demo, which without protobuf ends the process

from demo_goby import BusTrace, table  # isort: skip

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "docs" / "examples" / "demo_goby.py"


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_vehicle_dives_and_its_log_is_played(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TMPDIR": str(tmp_path)}
    command = [sys.executable, DEMO, "--seconds", "1.5", "--speed", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row[1].strip(): row[2] for row in re.finditer(r"│ ([\w., ()]+?) +│ +([\d,.]+) │", done.stdout)}
    assert rows["navigation published"] == rows["seen live"] == rows["in the log"] == rows["played once more"]
    assert int(rows["navigation published"]) > 10
    assert rows["publications that differ"] == "0"
    assert "it waits for" in done.stdout
    assert "byte for byte" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_extra_that_is_missing_is_named() -> None:
    blind = f"import runpy, sys; sys.modules['google.protobuf'] = None; sys.path.insert(0, {str(DEMO.parent)!r}); "
    done = subprocess.run(
        [sys.executable, "-c", f"{blind}runpy.run_path({str(DEMO)!r}, run_name='__main__')"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'omq-zmtp[goby]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_differs_is_counted() -> None:
    def frames(*texts: str) -> list[Received]:
        return [Received("nav", "CSTR", "CSTR", text.encode()) for text in texts]

    trace = BusTrace(2.0)
    trace.live = list(enumerate(frames("a", "b", "c")))  # type: ignore[arg-type]
    trace.recorded = [(number * 10**9, one) for number, one in enumerate(frames("a", "x", "c"))]
    trace.replayed = [(number / 2 + 0.01 * number, one) for number, one in enumerate(frames("a", "b"))]
    assert trace.wrong == 2
    assert math.isnan(trace.jitter)
    assert table(trace).caption == "something was lost"
    trace.recorded.pop()
    assert 0.009 < trace.jitter < 0.011
