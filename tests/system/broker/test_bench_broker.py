"""The bench of brokers measures, reports and draws; what it finds is of no interest here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.broker.drivers.inlet import slide
from bench.broker.plan import SCENARIOS, Case, Load, Row, cases
from bench.broker.replays import Replays
from bench.broker.report import Findings
from bench.plan import RATE, Metric

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_servers_are_measured_told_and_ended(tmp_path):
    words: list[str | Path] = ["--scenarios", "publish,consume,replay,resume", "--peers", "omq,floor", "--rounds", "1"]
    words += ["--seconds", "0.05", "--messages", "5000", "--client", "bare", "--directory", tmp_path]
    for name in ("json", "markdown", "svg"):
        words += [f"--{name}", tmp_path / name]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.broker", *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "json").read_text())["cases"]
    assert [case["left out"] for case in found] == [{}] * 6
    assert all(row["rounds"] for case in found for row in case["rows"].values())
    assert (tmp_path / "markdown").read_text().count("| omq, strong |") == 2
    assert (tmp_path / "svg").read_text().endswith("</svg>\n")
    assert not list(tmp_path.glob("bench-*")), "a server left its directory"


def test_every_scenario_has_a_case():
    assert {case.scenario for case in cases(Load(1024, 1000, 1.0, 1000, 1000))} == set(SCENARIOS)


def test_a_window_slides_and_is_never_exceeded():
    sent, done = [], []

    def acknowledged() -> int:
        assert sum(sent) - sum(done) <= 10
        done.append(min(3, sum(sent) - sum(done)))
        return done[-1]

    slide(25, 10, sent.append, acknowledged)
    assert sum(sent) == sum(done) == 25


def test_servers_of_a_replay_take_turns_only_where_all_have_room(tmp_path):
    small, vast = Load(1024, 1000, 1.0, 1000, 1000), Load(1024, 1000, 1.0, 10**12, 1000)
    rows = next(case for case in cases(small) if case.scenario == "replay").rows
    assert Replays(small, tmp_path).turns(rows) == (rows,)
    apart = Replays(vast, tmp_path).turns(rows)
    assert [row for some in apart for row in some] == list(rows)
    assert [row.label for row in apart[0]] == ["omq, read", "omq, subscribe"], (
        "what reads the same store stays together"
    )


@pytest.mark.parametrize(
    ("rate", "memory", "verdict"), [(10.0, 5.0, "ok"), (9.0, 5.0, "MISSED"), (10.0, 6.0, "MISSED")]
)
def test_every_limit_of_a_row_is_kept(rate, memory, verdict):
    memory_metric = Metric("memory", "MiB", less_is_better=True)
    row = Row("omq", "omq", "omq", ("omq_client",)).aims(rate=10.0, memory=5.0)
    findings = Findings(Case("one", "publish", "one", (row,), (RATE, memory_metric)))
    assert findings.verdict(row) == "not measured"
    findings.samples["omq"] = [{"rate": rate, "memory": memory}]
    assert findings.verdict(row) == verdict
