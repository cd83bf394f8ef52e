"""Time: what a call does when its time is up, and that nothing is lost or sent then."""

import asyncio
import time

import pytest

import omq.asyncio as omq
from tests.unit.conftest import on_both_loops

pytestmark = on_both_loops


async def test_timeout_zero_works_beyond_one_turn(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=0, recv_hwm=0)
    for number in range(1000):
        await push.send(b"%d" % number, timeout=0)
    for number in range(1000):
        assert await pull.recv(timeout=0) == b"%d" % number
    with pytest.raises(omq.ReceiveTimeout):
        await pull.recv(timeout=0)


async def test_nothing_is_lost_by_many_timeouts(make, endpoint):
    """A receiver that gives up again and again gets every message, once and in order."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)

    async def sending():
        for number in range(300):
            await push.send(b"%d" % number)
            if number % 7 == 0:
                await asyncio.sleep(0.001)

    task = asyncio.create_task(sending())
    got, gave_up = [], 0
    while len(got) < 300:
        try:
            got.append(int(await pull.recv(timeout=0.0002)))
        except omq.ReceiveTimeout:
            gave_up += 1
    await task
    assert got == list(range(300))
    assert gave_up > 0


async def test_whose_time_is_up_does_not_overtake_who_came_first(make, inproc):
    """Room comes after the second one's time was up and before it has noticed: the first one's message goes first."""
    loop = asyncio.get_running_loop()
    pull, push = make(omq.PULL, recv_hwm=1), make(omq.PUSH, send_hwm=1)
    push.bind(inproc)
    await push.send(b"0")
    first = asyncio.ensure_future(push.send(b"1"))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(push.send(b"2", timeout=0.02))
    await asyncio.sleep(0)
    loop.call_later(0.02, pull.connect, inproc)
    time.sleep(0.05)  # noqa: ASYNC251 - both timers are due when the loop goes on
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert results[0] is None
    got = [await pull.recv(timeout=5), await pull.recv(timeout=5)]
    assert got == [b"0", b"1"]
    if results[1] is None:
        assert await pull.recv(timeout=5) == b"2"
    else:
        assert isinstance(results[1], omq.SendTimeout)
        assert await pull.poll(0.01) == 0
