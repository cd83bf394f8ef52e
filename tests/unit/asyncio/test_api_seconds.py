"""Whatever takes seconds, in the asyncio twin: ages are for ever, and what is no time is refused by name."""

import asyncio
import math
from functools import partial

import pytest

import omq.asyncio as omq
from tests.unit.conftest import on_both_loops

pytestmark = on_both_loops

AGES = [2**31 / 1000, 1e8, 1e9, 1e10, 1e20, 1e300, math.inf, 10**30, 10**400]
NO_TIME = [-1, -0.001, -math.inf, math.nan, -(10**400)]
NO_OPTION = [*NO_TIME, math.inf, 1e10, 10**400, "1", True]


@pytest.mark.parametrize("ages", AGES, ids=lambda ages: f"{ages:.3g}" if isinstance(ages, float) else "huge")
async def test_a_timeout_of_ages_is_for_ever(make, inproc, ages):
    pull = make(omq.PULL, bind=inproc)
    push = make(omq.PUSH, bind=f"{inproc}-full", send_hwm=1)
    pub = make(omq.PUB, bind=f"{inproc}-pub")
    await push.send(b"0")
    calls = [
        pull.poll(ages),
        pull.recv(timeout=ages),
        pull.monitor().recv(timeout=ages),
        push.send(b"1", timeout=ages),
        pub.wait_connected(timeout=ages),
        pub.wait_subscribed(timeout=ages),
    ]
    waits = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0.01)
    assert not any(wait.done() for wait in waits)
    make(omq.SUB, connect=f"{inproc}-pub", subscribe=b"")
    make(omq.PULL, connect=f"{inproc}-full")
    await make(omq.PUSH, connect=inproc).send_many([b"x", b"y"])
    ready, message, event, *_ = await asyncio.gather(*waits)
    assert (ready, message, event.kind) == (omq.POLL_IN, b"x", omq.EventKind.ACCEPTED)


@pytest.mark.parametrize("bad", NO_TIME, ids=lambda bad: f"{bad:.3g}" if isinstance(bad, float) else "whole")
async def test_what_is_no_time_is_refused(make, inproc, bad):
    pub, sub = await make.linked(omq.PUB, omq.SUB, inproc, subscribe=b"")
    calls = [
        *(partial(call, timeout=bad) for call in (pub.wait_connected, pub.wait_subscribed, sub.recv)),
        partial(pub.send, b"x", timeout=bad),
        partial(pub.monitor().recv, timeout=bad),
        partial(sub.poll, bad),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"timeout=.*: must be seconds, 0 or more, or None"):
            await call()
    assert not await sub.poll(0)


@pytest.mark.parametrize("bad", NO_OPTION, ids=lambda bad: str(bad)[:8])
async def test_an_option_that_is_no_time_is_refused_by_name_wherever_it_is_given(make, inproc, bad):
    pull = make(omq.PULL, bind=inproc, recv_timeout=0.25, send_timeout=0.75)
    for name in ("recv_timeout", "send_timeout", "linger"):
        with pytest.raises(omq.OptionError, match=rf"option {name}=.*: must be seconds from 0 up to 1000000000"):
            pull.set_options(**{name: bad})
    for name in ("recv_timeout", "send_timeout"):
        with pytest.raises(omq.OptionError, match=f"option {name}="):
            setattr(pull, name, bad)
    with pytest.raises(omq.OptionError, match="option linger="):
        await pull.close(bad)
    assert not pull.closed
    assert (pull.recv_timeout, pull.send_timeout) == (0.25, 0.75)


async def test_the_timeouts_of_a_socket_are_its_options(make, inproc):
    pull = make(omq.PULL, bind=inproc)
    pull.recv_timeout = 0
    assert pull.options.recv_timeout == 0
    with pytest.raises(omq.ReceiveTimeout):
        await pull.recv()
    pull.set_options(recv_timeout=1e9, send_timeout=2)
    assert (pull.recv_timeout, pull.send_timeout) == (1e9, 2)
    waiting = asyncio.ensure_future(pull.recv())
    await asyncio.sleep(0)
    await make(omq.PUSH, connect=inproc).send(b"x")
    assert await waiting == b"x"
