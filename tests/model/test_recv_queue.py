"""Every interleaving of a caller, its owner and the background thread at the queue of waiting messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.explorer import explore
from tests.model.recv_queue_model import Case, Feeding

CASES = {
    "no room but for one": Case(sends=6, reads=6),
    "an owner that is away": Case(sends=4, hwm=3, reads=4, away=True),
    "a peer that stops reading": Case(sends=6, room=2, reads=2),
    "a connection that is lost": Case(sends=5, reads=5, dies=True),
    "room for many": Case(sends=7, hwm=1, room=3, reads=7, dies=True),
}

MUTATIONS = {
    "counted, and the caller sleeps": (CASES["no room but for one"], "a caller waits"),
    "the owner is not notified": (CASES["no room but for one"], "a caller waits"),
    "the owner's mark is ignored": (Case(sends=6, hwm=3, room=2, reads=6, dies=True), "overtaken"),
    "the wait for room is lost": (CASES["an owner that is away"], "something waits"),
    "put back behind": (CASES["a connection that is lost"], "overtaken"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_feeding(case: Case) -> None:
    report = explore(Feeding(case))
    assert report.violation is None, str(report)
    assert report.states > 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_feeding_large() -> None:
    report = explore(Feeding(Case(sends=14, hwm=4, room=3, reads=14, dies=True)), 2_000_000)
    assert report.violation is None, str(report)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation(mutation: str) -> None:
    case, broken = MUTATIONS[mutation]
    report = explore(Feeding(replace(case, mutation=mutation)))
    assert report.violation is not None, f"{report.states} states, and nothing is wrong"
    assert broken in report.violation.what
