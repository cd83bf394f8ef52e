"""Every interleaving of threads that share a socket's lock."""

from __future__ import annotations

import pytest

from tests.model.explorer import explore
from tests.model.lock_model import Case, Locking

MUTATIONS = {
    "every release posts": "wake-ups pile up",
    "the used wake-up is not noted": "a thread waits for a lock that is free",
    "others run between the try and the note": "what was left to its holder is not done",
    "what was left is forgotten": "what was left to its holder is not done",
}


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_locking(threads: int) -> None:
    report = explore(Locking(Case(threads, asks=1)))
    assert report.violation is None, str(report)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation(mutation: str) -> None:
    report = explore(Locking(Case(3, asks=1, mutation=mutation)))
    assert report.violation is not None, f"{report.states} states, and nothing is wrong"
    assert MUTATIONS[mutation] in report.violation.what
