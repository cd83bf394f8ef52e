"""Each wanted difference is there, and no other difference shows; the page and the list name the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.compare import differences
from tests.differential.differences import DIFFERENCES
from tests.differential.findings import FINDINGS
from tests.differential.rules import covering
from tests.differential.runner import run
from tests.support.parameters import each_value_once

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "differences.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]


def test_the_page_and_the_list_agree() -> None:
    assert [row[0].strip("`") for row in ROWS] == [rule.key for rule in DIFFERENCES]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("`"))
def test_each_row_has_what_both_do_and_why(row: list[str]) -> None:
    assert len(row) == 4
    assert all(cell.endswith((".", "`")) for cell in row)


def test_no_key_is_used_twice() -> None:
    keys = [rule.key for rule in DIFFERENCES + FINDINGS]
    assert len(set(keys)) == len(keys)


RULES = {rule.key: rule for rule in DIFFERENCES}


@pytest.mark.slow
@each_value_once(key=RULES, twin=["omq", "omq.asyncio"])
def test_a_wanted_difference_is_there(key: str, twin: str) -> None:
    rule = RULES[key]
    found = differences(rule.shown, run(rule.shown, twin), run(rule.shown, "libzmq"))
    named = [covering(DIFFERENCES, rule.shown, one) for one in found]
    assert rule.key in named
    assert None not in named
