"""`demo_replicated.py` as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from omq.spark import java
from tests.support.nats_servers import binary
from tests.support.optional_packages import require
from tests.support.waits import until
from tests.system.broker.server_process import ROOT

DEMO = ROOT / "docs" / "examples" / "demo_replicated.py"
pytestmark = [pytest.mark.xdist_group("nats"), pytest.mark.slow, pytest.mark.timeout(400)]


class DemoRun:
    """Runs of the demo, and the processes that belong to them.

    Args:
        folder: Where temporary files are.
    """

    def __init__(self, folder: Path) -> None:
        binary()  # the test is skipped without a server
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self._mark = f"OMQ_TEST_MARK={uuid.uuid4()}"
        path = os.pathsep.join(map(str, (ROOT, ROOT / "omq" / "spark" / "top")))
        self._environment = {
            **os.environ,
            "PYTHONPATH": path,
            "COLUMNS": "120",
            "TMPDIR": str(self.scratch),
            **dict([self._mark.split("=")]),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", DEMO, *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment
        )

    def rows(self, *arguments: str) -> dict[str, list[str]]:
        """Returns the counts of each row of the table."""
        output, errors = self.start(*arguments).communicate(timeout=380)
        assert "all that was acknowledged is there, once" in output, output + errors
        assert "is lost (SIGKILL, its disk is gone)" in output
        assert "returns with empty disks" in output
        found = re.findall(r"│ (\w[\w ,-]+?) +│ +([\d,]+) │ +([\d,]+) │ +([\d,]+) │ +([\d,]+) │", output)
        return {name: list(counts) for name, *counts in found}

    def nothing_is_left(self) -> None:
        until(lambda: not self._alive(), lambda: self._alive())
        assert list(self.scratch.iterdir()) == []

    def _alive(self) -> list[str]:
        """Returns the commands of its processes that run."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and self._mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text())
            except OSError:
                continue
        return found


@pytest.fixture
def demo(tmp_path: Path) -> DemoRun:
    return DemoRun(tmp_path)


def check(rows: dict[str, list[str]], names: list[str]) -> None:
    """Checks that the rows have these names, and that nothing is lost or doubled."""
    assert [name.partition(" on machine")[0] for name in rows] == names
    for acknowledged, delivered, doubled, lost in rows.values():
        assert acknowledged == delivered != "0"
        assert doubled == lost == "0"


def test_nothing_is_lost_with_the_machine_of_the_leader(demo: DemoRun) -> None:
    rows = demo.rows("--seconds", "8", "--no-spark")
    check(rows, ["feed, to a subscriber", "jobs, to 2 workers", "feed,"])
    demo.nothing_is_left()


@pytest.mark.skipif(bool(java.missing()), reason=java.missing())
def test_a_spark_query_copies_each_message_once(demo: DemoRun) -> None:
    require("pyspark")
    rows = demo.rows("--seconds", "8")
    check(rows, ["feed, to a subscriber", "jobs, to 2 workers", "feed, copied by Spark", "feed,"])
    demo.nothing_is_left()


def test_an_interruption_leaves_no_process_and_no_file(demo: DemoRun) -> None:
    process = demo.start("--seconds", "60", "--no-spark")
    assert process.stdout is not None
    for line in process.stdout:
        if "workers begin" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted; every process has ended\n")
    demo.nothing_is_left()
