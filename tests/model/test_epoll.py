"""Every interleaving of a few callers, peers and the I/O thread: messages are served, and no caller oversleeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.epoll_model import Serving
from tests.model.explorer import explore
from tests.model.serving_state import Case

CASES = {
    "an owner who asks without waiting, and for a while": Case(calls=(("recv0", "timed"),), peers=(1, 1)),
    "an owner who polls": Case(calls=(("poll0", "poll", "recv0"),), peers=(1,)),
    "an owner and a bound": Case(calls=(("recv0", "recv"),), peers=(3,), hwm=1),
    "an owner, a bound, and reads that take all": Case(calls=(("recv0", "recv"),), peers=(3,), hwm=1, gulp=True),
    "turns of one message": Case(calls=(("recv",),), peers=(2, 1), turn=1, works=True),
    "an owner who sleeps for long": Case(calls=(("recv0", "recv"),), peers=(2,), sleeps_long=True),
    "two callers": Case(calls=(("recv",), ("recv",)), peers=(1, 1)),
    "two callers, and signals": Case(calls=(("recv",), ("recv",)), peers=(1,), main=0),
    "one waits, one asks": Case(calls=(("recv",), ("recv0",)), peers=(2,)),
    "two callers, one for a while": Case(calls=(("recv",), ("timed",)), peers=(1,)),
    "one receives, one sends": Case(calls=(("recv",), ("send",)), peers=(1,), room=1),
    "the end while one waits for a while": Case(calls=(("timed",),), peers=(1,), closes=True),
    "the end while two wait": Case(calls=(("recv",), ("recv",)), peers=(0,), closes=True),
    "the end while one waits for room": Case(calls=(("send",),), peers=(1,), room=1, closes=True),
    "a handler that receives": Case(calls=(("recv",), ("recv",)), peers=(1,), main=0, nested=1),
    "a handler that takes its time": Case(calls=(("recv",), (), ("recv",)), peers=(1,), main=0, nested=1),
    "a descriptor for the user": Case(calls=(("recv", "fileno"),), peers=(1, 1)),
    "a descriptor for the user while another thread waits": Case(calls=(("recv",), ("fileno", "recv0")), peers=(1,)),
    "a descriptor that is given back": Case(calls=(("recv", "fileno", "release"),), peers=(1, 1)),
    "a descriptor that is given back while another thread waits": Case(
        calls=(("recv",), ("fileno", "release")), peers=(1,)
    ),
}

LARGE = {
    "an owner who sleeps for long, and two peers": Case(calls=(("recv0", "recv"),), peers=(2, 1), sleeps_long=True),
    "an owner who does everything": Case(calls=(("recv0", "poll0", "recv", "timed"),), peers=(2, 1)),
    "two callers and two peers": Case(calls=(("recv",), ("recv",)), peers=(2, 1), main=0),
    "three callers": Case(calls=(("recv",), ("recv",), ("recv",)), peers=(1,)),
    "two callers, bounds": Case(calls=(("recv",), ("recv",)), peers=(2, 1), hwm=1),
    "the end while two wait and a message comes": Case(calls=(("recv",), ("recv",)), peers=(1,), closes=True),
    "a handler that receives, and another caller": Case(
        calls=(("recv",), ("recv",), ("recv",)), peers=(2,), main=0, nested=1
    ),
    "one receives, one sends, and the end": Case(calls=(("recv",), ("send",)), peers=(1,), room=1, closes=True),
}

SLEEPER = Case(calls=(("recv", "recv0"),), peers=(3,), sleeps_long=True)
OWNER = Case(calls=(("recv0", "timed"),), peers=(1,), main=0)
BOUNDED = Case(calls=(("recv0", "recv"),), peers=(2,), hwm=1)
SENDER = Case(calls=(("recv",), ("send",)), peers=(0,), room=1)
CLOSED = Case(calls=(("recv",), ("recv",)), peers=(0,), closes=True)
PUBLISHED = Case(calls=(("recv",), ("fileno",)), peers=(1,))
RELEASED = Case(calls=(("recv",), ("fileno", "release")), peers=(1,))
ASKED = Case(calls=(("recv",), ("recv0", "poll0")), peers=(2,))
HANDLED = Case(calls=(("recv",), ("recv",)), peers=(1,), main=0, nested=1)
TWO = Case(calls=(("recv",), ("recv",)), peers=(1, 1))

# What the code might do instead, and which promise it would break.
MUTATIONS = {
    "a call is taken for a look": (OWNER, "an event waits"),
    "a signal is not drained": (ASKED, "an event waits"),
    "a wake-up before the sleep is not seen": (OWNER, "a call sleeps though a message is there"),
    "a wake-up is not passed on": (TWO, "a call sleeps though a message is there"),
    "an arrival is not reported": (OWNER, "a call sleeps though a message is there"),
    "close does not wait": (CLOSED, "the epoll set is closed under a caller"),
    "close wakes no caller": (CLOSED, "close does not end"),
    "reading is not resumed": (BOUNDED, "is not read"),
    "refill does not watch again": (BOUNDED, "is not read"),
    "room is not reported": (SENDER, "a call waits for room that is there"),
    "the I/O thread is not roused": (OWNER, "the I/O thread looks late"),
    "the I/O thread is calmed for good": (SLEEPER, "the I/O thread looks late"),
    "the leader is not signalled": (CLOSED, "close does not end"),
    "two leaders": (CLOSED, "two callers lead"),
    "way is given for good": (OWNER, "is not read"),
    "who runs handlers does not stand aside": (HANDLED, "no thread serves the epoll set"),
    "a refusal leaves the request to make way": (RELEASED, "counts as asked"),
    "way is given though the descriptor is published": (PUBLISHED, "the descriptor is the user's"),
}


#: They take a second or more, and a larger case that is slow, or one that is alike, has their states as well.
SECONDS = (
    "an owner who asks without waiting, and for a while",
    "an owner, a bound, and reads that take all",
    "two callers",
    "two callers, one for a while",
    "a handler that takes its time",
    "a descriptor for the user while another thread waits",
    "a descriptor that is given back",
    "two callers, and signals",
    "the end while two wait",
    "a handler that receives",
)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[pytest.mark.slow] * (name in SECONDS)) for name, case in CASES.items()],
)
def test_serving(case: Case) -> None:
    report = explore(Serving(case))
    assert report.violation is None, str(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_serving_large(case: Case) -> None:
    report = explore(Serving(case), 2_000_000)
    assert report.violation is None, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation(mutation: str) -> None:
    case, broken = MUTATIONS[mutation]
    report = explore(Serving(replace(case, mutation=mutation)))
    assert report.violation is not None, f"{report.states} states, and nothing is wrong"
    assert broken in report.violation.what
