"""The benchmark of brokers runs, reports and plots; its results are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.broker.__main__ import measure
from bench.broker.drivers.bare_client import slide, slide_batches
from bench.broker.measure import CaseRunner
from bench.broker.page import PAGE, case_keys, write_case
from bench.broker.plan import SCENARIOS, BrokerCase, BrokerLoad, Row, cases
from bench.broker.replay import ReplayRunner
from bench.broker.report import BrokerResult
from bench.plan import RATE, Metric

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_servers_are_measured_and_stopped(tmp_path):
    words: list[str | Path] = [
        "--scenarios",
        "publish,consume,replay,start,resume",
        "--peers",
        "omq,floor",
        "--rounds",
        "1",
    ]
    words += ["--seconds", "0.05", "--messages", "5000", "--client", "bare", "--directory", tmp_path]
    for name in ("json", "markdown", "svg"):
        words += [f"--{name}", tmp_path / name]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.broker", *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "json").read_text())["cases"]
    assert [case["left out"] for case in found] == [{}] * 7
    assert all(row["rounds"] for case in found for row in case["rows"].values())
    assert (tmp_path / "markdown").read_text().count("| omq, strong |") == 2
    assert (tmp_path / "markdown").read_text().count("| omq, strong, bare client |") == 2
    assert (tmp_path / "markdown").read_text().count("| omq, strong, group |") == 1
    assert (tmp_path / "svg").read_text().endswith("</svg>\n")
    assert not list(tmp_path.glob("bench-*")), "a server left its directory"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_neighbors_are_measured():
    words = ["--topics", "30", "--messages", "20000", "--rounds", "1", "--seconds", "1.2"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.broker.neighbors", *words], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("next to a ") == 3


def test_every_scenario_has_a_case():
    assert {case.scenario for case in cases(BrokerLoad(1024, 1000, 1.0, 1000, 1000))} == set(SCENARIOS)


@pytest.mark.parametrize("sliding", [slide, slide_batches])
def test_a_window_slides_and_is_never_exceeded(sliding):
    sent, done = [], []

    def acknowledged() -> int:
        assert sum(sent) - sum(done) <= 10
        done.append(min(3, sum(sent) - sum(done)))
        return done[-1]

    sliding(25, 10, sent.append, acknowledged)
    assert sum(sent) == sum(done) == 25


def test_servers_of_a_replay_take_turns_only_where_all_have_room(tmp_path):
    small, vast = BrokerLoad(1024, 1000, 1.0, 1000, 1000), BrokerLoad(1024, 1000, 1.0, 10**12, 1000)
    rows = next(case for case in cases(small) if case.scenario == "replay").rows
    assert ReplayRunner(small, tmp_path).turns(rows) == (rows,)
    apart = ReplayRunner(vast, tmp_path).turns(rows)
    assert [row for some in apart for row in some] == list(rows)
    assert [row.peer for row in apart[0]] == ["omq"] * 3, "they read the same store"


@pytest.mark.parametrize(
    ("rate", "memory", "verdict"), [(10.0, 5.0, "ok"), (9.0, 5.0, "MISSED"), (10.0, 6.0, "MISSED")]
)
def test_every_limit_of_a_row_is_kept(rate, memory, verdict):
    memory_metric = Metric("memory", "MiB", less_is_better=True)
    row = Row("omq", "omq", "omq", ("omq_client",)).with_targets(rate=10.0, memory=5.0)
    result = BrokerResult(BrokerCase("one", "publish", "one", (row,), (RATE, memory_metric)))
    assert result.verdict(row) == "not measured"
    result.samples["omq"] = [{"rate": rate, "memory": memory}]
    assert result.verdict(row) == verdict


def test_the_page_has_a_place_for_every_case_and_keeps_the_rest(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    row = Row("omq", "omq", "omq", ("omq_client",))
    for key in case_keys():
        result = BrokerResult(BrokerCase(key, "publish", "one", (row,), (RATE,)), {"omq": [{"rate": 12345.0}] * 3})
        write_case(result, f"make {key}", "ext4", page)
        assert (tmp_path / "page" / f"{key}.svg").read_text().endswith("</svg>\n")
    written = page.read_text()
    assert written.count("| omq | 12,345 |") == written.count("medians of 3 rounds") == len(case_keys())
    assert written.count("<!-- ") == 2 * len(case_keys())
    assert written.startswith("# Performance of the broker\n")
    with pytest.raises(ValueError, match="no marks for other"):
        write_case(BrokerResult(BrokerCase("other", "publish", "one", (row,))), "make", "ext4", page)


def test_only_the_first_round_is_sure_where_time_is_short(tmp_path, monkeypatch):
    row = Row("omq", "omq", "omq", ("omq_client",))

    @contextmanager
    def running(*_):
        yield CaseRunner(lambda *_: {"rate": 1.0}, lambda *_: {"rate": 1.0}, ((row,),))

    monkeypatch.setattr("bench.broker.__main__.runner", running)
    case = BrokerCase("one", "publish", "one", (row,), (RATE,))
    load = BrokerLoad(1024, 1000, 1.0, 1000, 1000)
    for until, rounds in ((0.0, 1), (float("inf"), 3)):
        assert len(measure(case, load, tmp_path, 3, "better", until).samples["omq"]) == rounds
