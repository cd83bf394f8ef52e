"""PUSH and PULL: one queue that all peers share, fair in both directions (RFC 30)."""

import asyncio
import itertools
from collections import Counter

import pytest

import omq.asyncio as omq
from tests.support.async_waits import stable, until


async def drain(pull):
    """Everything that arrives until nothing comes for a while."""
    got = []
    while await pull.poll(0.05):
        got += await pull.recv_many()
    return got


@pytest.mark.parametrize("at_once", ["send", "send_many"])
async def test_a_burst_is_shared_among_idle_workers(make, endpoint, at_once):
    push = make(omq.PUSH, bind=endpoint)
    pulls = [make(omq.PULL, connect=push.endpoints[0]) for _ in range(4)]
    await push.wait_connected(4, timeout=5)
    messages = [b"%d" % number for number in range(400)]
    if at_once == "send":
        for message in messages:
            await push.send(message)
    else:
        await push.send_many(messages)
    shares = [await drain(pull) for pull in pulls]
    assert sorted(itertools.chain(*shares), key=int) == messages
    assert all(90 <= len(share) <= 110 for share in shares), [len(share) for share in shares]
    assert all(share == sorted(share, key=int) for share in shares)


async def test_messages_that_waited_are_shared_too(make, inproc):
    pulls = [make(omq.PULL, bind=f"{inproc}-{number}") for number in range(4)]
    push = make(omq.PUSH)
    for number in range(400):
        await push.send(b"%d" % number)
    for pull in pulls:
        push.connect(pull.endpoints[0])
    shares = [await drain(pull) for pull in pulls]
    assert sum(len(share) for share in shares) == 400


async def test_one_blocked_sender_goes_on_when_the_first_peer_takes_what_waited(make, inproc):
    push = make(omq.PUSH, bind=inproc, send_hwm=1)
    await push.send(b"1")
    waiting = asyncio.create_task(push.send(b"2"))
    await asyncio.sleep(0)
    assert not waiting.done()
    pull = make(omq.PULL, connect=inproc)
    await asyncio.wait_for(waiting, 5)
    assert [await pull.recv(timeout=5), await pull.recv(timeout=5)] == [b"1", b"2"]


async def test_a_peer_that_was_paused_reads_on_when_its_own_messages_are_taken(make, endpoint):
    """Not only when no other has anything: a steady neighbour would keep it waiting."""
    pull = make(omq.PULL, bind=endpoint, recv_hwm=4)
    pushes = [make(omq.PUSH, connect=pull.endpoints[0], send_hwm=4) for _ in range(2)]
    await pull.wait_connected(2, timeout=5)

    async def sending(push, name):
        while True:
            await push.send(name)

    tasks = [asyncio.create_task(sending(push, b"%d" % name)) for name, push in enumerate(pushes)]
    counts = Counter([await pull.recv() for _ in range(4000)])
    assert min(counts[b"0"], counts[b"1"]) > 1000, counts
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_reading_stops_at_recv_hwm_and_goes_on(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint, recv_hwm=10, send_hwm=10)
    body = bytes(200_000)
    accepted = await push.send_many([body] * 2000, timeout=0.2)
    # Both marks and what the kernel and two batches hold, but by no means all.
    assert 20 <= accepted < 400
    assert pull.peers[0].messages_in <= 10 + 3
    for _ in range(accepted):
        assert len(await pull.recv(timeout=5)) == len(body)
    await push.send(b"goes on", timeout=5)
    assert await pull.recv(timeout=5) == b"goes on"


@pytest.mark.parametrize("kind", [omq.PUSH, omq.DEALER, omq.PUB])
async def test_conflate_keeps_the_last_for_a_peer_that_lags(make, endpoint, kind):
    receiver = {omq.PUSH: omq.PULL, omq.DEALER: omq.DEALER, omq.PUB: omq.SUB}[kind]
    one = make(kind, bind=endpoint, conflate=True, send_hwm=10)
    subscribe = {"subscribe": b""} if kind is omq.PUB else {}
    other = make(receiver, connect=one.endpoints[0], recv_hwm=10, **subscribe)
    await one.wait_connected(timeout=5)
    if kind is omq.PUB:
        await one.wait_subscribed(timeout=5)
    for number in range(5000):
        await one.send(b"%d " % number + bytes(10_000))
    numbers = [-1]
    while numbers[-1] != 4999:
        numbers.append(int((await other.recv(timeout=5)).partition(b" ")[0]))
    assert numbers == sorted(set(numbers))
    assert len(numbers) < 5000
    assert await other.poll(0.01) == 0
    assert one.peers[0].dropped == 0


async def test_conflate_of_a_sender_without_a_peer_keeps_the_last(make, inproc):
    push = make(omq.PUSH, connect=inproc, conflate=True)
    for number in range(20):
        await push.send(b"%d" % number, timeout=0)
    pull = make(omq.PULL, bind=inproc)
    assert await pull.recv(timeout=5) == b"19"
    assert await pull.poll(0.01) == 0


async def test_immediate_accepts_nothing_without_a_peer(make, endpoint):
    push = make(omq.PUSH, bind=endpoint, immediate=True)
    assert await push.poll(0, omq.POLL_OUT) == 0
    with pytest.raises(omq.SendTimeout):
        await push.send(b"x", timeout=0)
    waiting = asyncio.create_task(push.send(b"y"))
    pull = make(omq.PULL, connect=push.endpoints[0])
    await asyncio.wait_for(waiting, 5)
    assert await pull.recv(timeout=5) == b"y"


@pytest.mark.parametrize("size", [2000, 5000, 9000])
async def test_a_sender_goes_on_when_there_is_room(make, size):
    """The kernel may take more before an event shows it: the background thread writes, and wakes the sender."""
    push = make(omq.PUSH, bind="tcp://127.0.0.1:*", linger=0)
    make(omq.PULL, connect=push.endpoints[0], recv_hwm=1)

    async def flood():
        while True:
            await push.send(bytes(size))

    sender = asyncio.create_task(flood())
    await stable(lambda: push.stats.messages_sent)
    async with asyncio.timeout(5):
        await until(lambda: not push.poll_nowait(omq.POLL_OUT))
    sender.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sender
