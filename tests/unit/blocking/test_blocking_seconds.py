"""Whatever takes seconds, on blocking sockets: ages are for ever, and what is no time is refused by name."""

from __future__ import annotations

import math
from functools import partial

import pytest

import omq
from tests.unit.blocking.conftest import BOUND, asleep
from tests.waits import sleeps, until

AGES = [2**31 / 1000, 1e8, 1e9, 9.3e9, 1e10, 1e20, 1e300, math.inf, 10**30, 10**400]
NO_TIME = [-1, -0.001, -math.inf, math.nan, -(10**400)]
NO_OPTION = [*NO_TIME, math.inf, 1e10, 10**400, "1", True]


@pytest.mark.parametrize("ages", AGES, ids=lambda ages: f"{ages:.3g}" if isinstance(ages, float) else "huge")
def test_a_timeout_of_ages_is_for_ever(make, crew, inproc, ages):
    pull = make(omq.PULL, bind=[inproc, "tcp://127.0.0.1:*"])
    push = make(omq.PUSH, bind=f"{inproc}-full", send_hwm=1)
    pub = make(omq.PUB, bind=f"{inproc}-pub")
    push.send(b"0")
    waits = {
        "poll": partial(pull.poll, ages),
        "wait": partial(omq.wait, [pull], ages),
        "recv": partial(pull.recv, timeout=ages),
        "monitor": partial(pull.monitor().recv, timeout=ages),
        "send": partial(push.send, b"1", timeout=ages),
        "connected": partial(pub.wait_connected, timeout=ages),
        "subscribed": partial(pub.wait_subscribed, timeout=ages),
    }
    for wait in waits.values():
        thread = crew(wait)
        until(lambda thread=thread: not thread.is_alive() or sleeps(thread.native_id), "a call that sleeps")
        assert thread.is_alive(), "it waits"
    make(omq.SUB, connect=f"{inproc}-pub", subscribe=b"")
    make(omq.PULL, connect=f"{inproc}-full")
    feeder = make(omq.PUSH, connect=pull.endpoints[1])
    for _ in range(3):
        feeder.send(b"x")  # for whoever polls, and whoever takes
    results = dict(zip(waits, crew.join(), strict=True))
    assert results["poll"] == omq.POLL_IN
    assert results["wait"] == [pull]
    assert results["recv"] == b"x"
    assert results["monitor"].kind == omq.EventKind.ACCEPTED


@pytest.mark.parametrize("bad", NO_TIME, ids=lambda bad: f"{bad:.3g}" if isinstance(bad, float) else "whole")
def test_what_is_no_time_is_refused(make, inproc, bad):
    pub, sub = make.linked(omq.PUB, omq.SUB, inproc, subscribe=b"")
    calls = [
        *(partial(call, timeout=bad) for call in (pub.wait_connected, pub.wait_subscribed, sub.recv)),
        partial(pub.send, b"x", timeout=bad),
        partial(pub.monitor().recv, timeout=bad),
        partial(sub.poll, bad),
        partial(omq.wait, [sub], bad),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"timeout=.*: must be seconds, 0 or more, or None"):
            call()
    assert not sub.poll(0)


@pytest.mark.parametrize("bad", NO_OPTION, ids=lambda bad: str(bad)[:8])
def test_an_option_that_is_no_time_is_refused_by_name_wherever_it_is_given(make, inproc, bad):
    pull = make(omq.PULL, bind=inproc, recv_timeout=0.25, send_timeout=0.75)
    context = omq.Context()
    calls = {
        "recv_timeout": [partial(setattr, pull, "recv_timeout", bad), partial(pull.set_options, recv_timeout=bad)],
        "send_timeout": [partial(setattr, pull, "send_timeout", bad), partial(pull.set_options, send_timeout=bad)],
        "linger": [partial(pull.close, bad), partial(context.term, bad), partial(pull.set_options, linger=bad)],
    }
    for name, some in calls.items():
        for call in some:
            with pytest.raises(omq.OptionError, match=f"option {name}=.*: must be seconds from 0 up to 1000000000"):
                call()
    assert not pull.closed
    assert not context.closed
    assert (pull.recv_timeout, pull.send_timeout) == (0.25, 0.75)


def test_the_timeouts_of_a_socket_are_its_options(make, crew, inproc):
    pull = make(omq.PULL, bind=inproc)
    pull.recv_timeout = 0
    assert pull.options.recv_timeout == 0
    with pytest.raises(omq.ReceiveTimeout):
        pull.recv()
    pull.set_options(recv_timeout=1e9, send_timeout=2)
    assert (pull.recv_timeout, pull.send_timeout) == (1e9, 2)
    crew(pull.recv)
    asleep(pull)
    make(omq.PUSH, connect=inproc).send(b"x")
    assert crew.join(BOUND) == [b"x"]
