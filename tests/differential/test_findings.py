"""Known defects fail as expected. A finding that passes again is to be taken out of the list."""

from __future__ import annotations

import pytest

from tests.differential.differences import DIFFERENCES
from tests.differential.findings import FINDINGS, MENDED
from tests.differential.rules import Rule
from tests.differential.triage import uncovered
from tests.support.parameters import each_value_once


@pytest.mark.parametrize("twin", ["omq", "omq.asyncio"])
@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(one, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=one.reason))
        for one in FINDINGS
    ],
    ids=lambda rule: rule.key,
)
def test_a_finding(rule: Rule, twin: str) -> None:
    found = uncovered(rule.shown, [dict.fromkeys(rule.shown.seats, twin)], DIFFERENCES, times=1)
    assert not found, "\n".join(found)


@each_value_once(name=MENDED, twin=["omq", "omq.asyncio"])
def test_what_was_mended(name: str, twin: str) -> None:
    program = MENDED[name]
    found = uncovered(program, [dict.fromkeys(program.seats, twin)], DIFFERENCES)
    assert not found, "\n".join(found)
