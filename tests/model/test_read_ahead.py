"""Every interleaving of an owner and the background thread at one connection: nothing is lost, overtaken or left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.explorer import explore
from tests.model.read_ahead_model import Case, ReadingAhead

CASES = {
    "room for all": Case(sends=4, hwm=6),
    "recv_hwm": Case(sends=5, hwm=2),
    "short turns": Case(sends=5, hwm=4, turn=1),
    "an end": Case(sends=3, hwm=2, closes=True),
}

MUTATIONS = {
    "detach does not wait": (CASES["an end"], "gone"),
    "the owner ignores the flag": (CASES["room for all"], "two threads"),
    "the kernel comes first": (CASES["room for all"], "overtaken"),
    "a turn ends in silence": (CASES["short turns"], "nothing notifies the owner"),
    "only events are looked at": (CASES["short turns"], "is not read"),
    "nothing is reported": (CASES["room for all"], "nothing notifies the owner"),
    "the set is armed on an edge": (CASES["room for all"], "is not read"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_reading_ahead(case: Case) -> None:
    report = explore(ReadingAhead(case))
    assert report.violation is None, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation(mutation: str) -> None:
    case, broken = MUTATIONS[mutation]
    report = explore(ReadingAhead(replace(case, mutation=mutation)))
    assert report.violation is not None, f"{report.states} states, and nothing is wrong"
    assert broken in report.violation.what
