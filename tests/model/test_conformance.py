"""The real socket takes the same steps as the model, and shows the same at every one of them."""

from __future__ import annotations

import pytest

from tests.model.real_threads import Deviation, follow
from tests.model.serving_state import Case

STEPS = 40
TURN_MESSAGES = 256  # messages, as in the core

CASES = {
    "an owner and a bound": Case(
        calls=(("recv0", "poll0", "recv"),), peers=(3, 2), hwm=1, gulp=True, turn=TURN_MESSAGES
    ),
    "an owner who sleeps for long": Case(
        calls=(("recv0", "poll0", "recv"),), peers=(3, 2), gulp=True, turn=TURN_MESSAGES, sleeps_long=True
    ),
    "two callers": Case(calls=(("recv", "recv0"), ("recv", "poll")), peers=(3, 2), gulp=True, turn=TURN_MESSAGES),
    "three callers": Case(calls=(("recv",), ("recv",), ("poll", "recv0")), peers=(3, 2), gulp=True, turn=TURN_MESSAGES),
    "an end": Case(calls=(("recv", "recv0"), ("recv", "poll")), peers=(2,), gulp=True, turn=TURN_MESSAGES, closes=True),
    "a descriptor": Case(calls=(("recv", "recv0", "fileno"), ("recv",)), peers=(2, 2), gulp=True, turn=TURN_MESSAGES),
    "a descriptor that is given back": Case(
        calls=(("recv", "recv0", "fileno", "release"), ("recv",)), peers=(2, 2), gulp=True, turn=TURN_MESSAGES
    ),
}

# Of the mutations that break a promise of the model, those that show where everybody is at rest: the socket has none.
MUTATIONS = {
    "a call is taken for a look": "an owner and a bound",
    "a wake-up is not passed on": "three callers",
    "close wakes no caller": "an end",
    "reading is not resumed": "an owner and a bound",
    "refill does not watch again": "an owner and a bound",
    "the I/O thread is not roused": "an owner and a bound",
    "the I/O thread is calmed for good": "an owner who sleeps for long",
    "the leader is not signalled": "an end",
    "way is given for good": "an owner and a bound",
    "way is given though the descriptor is published": "a descriptor",
}


@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str) -> None:
    assert sum(len(follow(CASES[name], seed, STEPS)) for seed in range(10)) > 50


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_conformance_long(name: str) -> None:
    assert sum(len(follow(CASES[name], seed, 4 * STEPS)) for seed in range(1000, 1500)) > 2000


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation(mutation: str) -> None:
    with pytest.raises(Deviation):
        _follow_all(CASES[MUTATIONS[mutation]], mutation)


def _follow_all(case: Case, mutation: str) -> None:
    for seed in range(100):
        follow(case, seed, STEPS, mutation=mutation, bound=0.3)
