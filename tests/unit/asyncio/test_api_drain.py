"""`drain` in the asyncio twin: it never waits, so that only a `recv` at the same time can be cancelled."""

import asyncio
import itertools

import omq.asyncio as omq
from tests.unit.conftest import on_both_loops, until

pytestmark = on_both_loops


async def flood(push: omq.PUSH) -> None:
    for number in itertools.count():
        await push.send(b"%d" % number + b" " * 5000)


async def test_a_call_that_is_cancelled_next_to_it_loses_nothing(make):
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*")
    pull = make(omq.PULL, connect=push.endpoints[0], recv_hwm=5)
    task = asyncio.create_task(flood(push))
    got = [int(await pull.recv(timeout=5)) for _ in range(100)]

    async def receive() -> None:
        while True:
            got.append(int(await pull.recv()))

    for _ in range(3):
        receiving = asyncio.create_task(receive())
        await asyncio.sleep(0)
        pull.drain()
        receiving.cancel()
        await asyncio.wait([receiving])
    receiving = asyncio.create_task(receive())
    await until(lambda: not pull.peers)
    # What comes next is the next receiver's first message.
    other = make(omq.PULL, connect=push.endpoints[0])
    first = int(await other.recv(timeout=5))
    await until(lambda: len(got) == first)
    assert got == list(range(first))
    for one in (receiving, task):
        one.cancel()
    await asyncio.wait([receiving, task])


async def test_what_comes_is_taken_in_although_no_call_receives(make):
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*")
    pull = make(omq.PULL, connect=push.endpoints[0], recv_hwm=1)
    await pull.wait_connected(timeout=5)
    await push.wait_connected(timeout=5)
    task = asyncio.create_task(flood(push))
    await until(lambda: push.peers[0].messages_out > 100)
    pull.drain()
    await until(lambda: not pull.peers)
    task.cancel()
    await asyncio.wait([task])
    got = []
    while await pull.poll(0.02, omq.POLL_IN):
        got.append(int(await pull.recv()))
    assert len(got) > 100
    assert got == list(range(len(got)))


async def test_then_close(make):
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*")
    pull = make(omq.PULL, connect=push.endpoints[0])
    await pull.wait_connected(timeout=5)
    pull.drain()
    pull.drain()
    await pull.close()
    await until(lambda: not push.peers)
