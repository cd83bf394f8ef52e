"""The benchmark of a cluster runs and reports; its results are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.plan import RATE
from bench.replicated.__main__ import CASES
from bench.replicated.report import PAGE, ClusterTable, write

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.xdist_group("nats")
@pytest.mark.timeout(400)
def test_a_cluster_is_measured_and_stopped(tmp_path: Path) -> None:
    words: list[str | Path] = ["--rounds", "1", "--seconds", "0.1", "--messages", "2000", "--topics", "20"]
    words += ["--lease", "1", "--directory", tmp_path, "--json", tmp_path / "json"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.replicated", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "json").read_text())
    assert list(dict.fromkeys(table["key"] for table in found)) == list(CASES)
    assert all(table["rows"] for table in found)
    assert not list(tmp_path.glob("bench-*")), "a server left its directory"


@pytest.mark.parametrize(("rates", "missed"), [((7.0, 8.0, 60.0), False), ((6.0, 6.9, 60.0), True)])
def test_a_ratio_is_that_of_the_rounds(rates: tuple[float, ...], missed: bool) -> None:
    table = ClusterTable("publish", "a title", (RATE,), "peer", "omq", 0.7)
    for rate in rates:
        table.add("omq", rate=rate)
        table.add("peer", rate=10.0)
    assert table.ratio("omq") == rates[1] / 10
    assert table.missed is missed
    assert ("MISSED" in table.text()) is missed
    assert f"| omq | {rates[1]:,.0f} |" in table.markdown()


def test_a_row_without_a_base_has_no_ratio() -> None:
    table = ClusterTable("publish", "a title", (RATE,), "peer", "omq", 0.7)
    table.add("omq", rate=1.0)
    assert table.ratio("omq") is None
    assert table.missed


def test_the_page_has_a_place_for_every_case_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    for key in CASES:
        table = ClusterTable(key, f"case {key}", (RATE,))
        table.add("omq", rate=12345.0)
        write([table], f"make {key}", page)
    written = page.read_text()
    assert written.count("| omq | 12,345 |") == len(CASES)
    assert written.startswith(PAGE.read_text().partition("<!-- ")[0])
    assert written.count("<!-- ") == 2 * len(CASES)
    with pytest.raises(ValueError, match="no marks for other"):
        write([ClusterTable("other", "x", (RATE,))], "make", page)
