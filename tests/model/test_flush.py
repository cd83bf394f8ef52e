"""Every interleaving of a sending caller, the flusher and the epoll set: what was accepted leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.explorer import explore
from tests.model.flush_model import Case, Leaving

CASES = {
    "one connection": Case(sends=(4,)),
    "no room at first": Case(sends=(3,), room=0),
    "large batches": Case(sends=(4,), large=True),
    "an end": Case(sends=(3,), closes=True),
    "two connections": Case(sends=(2, 2), reads=1),
}

LARGE = {
    "two connections, much": Case(sends=(3, 3), reads=2, large=True),
    "two connections, one ends": Case(sends=(3, 2), reads=2, closes=True),
}

ONE = Case(sends=(4,))
WIDE = Case(sends=(4,), room=2)
TWO = Case(sends=(2, 2), closes=True)

MUTATIONS = {
    "EPOLLOUT is not taken back": (ONE, "room that no caller wants"),
    "forget does not wait": (TWO, "a batch that is gone"),
    "left, and thought to be queued": (WIDE, "a batch stays behind"),
    "parks whatever is left": (WIDE, "sleeps though something was left"),
    "room is not reported": (ONE, "a caller waits for room"),
    "stuck, and the epoll set is not asked": (ONE, "does not report"),
    "the flag is ignored": (Case(sends=(4,), room=2, large=True), "two threads are at one batch"),
    "the flusher is not woken": (WIDE, "a batch stays behind"),
    "what is left again is dropped": (WIDE, "a batch stays behind"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_leaving(case: Case) -> None:
    report = explore(Leaving(case))
    assert report.violation is None, str(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_leaving_large(case: Case) -> None:
    report = explore(Leaving(case), 2_000_000)
    assert report.violation is None, str(report)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation(mutation: str) -> None:
    case, broken = MUTATIONS[mutation]
    report = explore(Leaving(replace(case, mutation=mutation)))
    assert report.violation is not None, f"{report.states} states, and nothing is wrong"
    assert broken in report.violation.what
