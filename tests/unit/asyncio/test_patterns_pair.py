"""PAIR: one peer, and nobody else until it is gone (RFC 31)."""

import asyncio

import pytest

import omq.asyncio as omq
from tests.unit.conftest import until


@pytest.mark.parametrize("parts", [[b"one"], [b"two", b"parts"]])
async def test_a_bounce(make, endpoint, parts):
    one, other = await make.linked(omq.PAIR, omq.PAIR, endpoint)
    for sender, receiver in ((one, other), (other, one)) * 3:
        await sender.send_multipart(parts)
        assert await receiver.recv_multipart() == parts


async def test_both_ways_at_once(make, endpoint):
    one, other = await make.linked(omq.PAIR, omq.PAIR, endpoint)
    messages = [b"%d" % number for number in range(3000)]

    async def sending(socket):
        for message in messages:
            await socket.send(message)

    async def receiving(socket):
        return [await socket.recv() for _ in messages]

    results = await asyncio.gather(sending(one), sending(other), receiving(one), receiving(other))
    assert results[2:] == [messages, messages]


async def test_a_second_peer_is_refused_and_admitted_later(make, endpoint):
    one, first = await make.linked(omq.PAIR, omq.PAIR, endpoint)
    second = make(omq.PAIR, connect=one.endpoints[0], reconnect_interval=0.01)
    await second.send(b"kept until there is room")
    with pytest.raises(omq.Timeout):
        await second.wait_connected(timeout=0.1)
    assert len(one.peers) == 1
    await first.send(b"still the only one")
    assert await one.recv(timeout=5) == b"still the only one"
    assert await one.poll(0.02) == 0
    await first.close()
    await second.wait_connected(timeout=5)
    assert await one.recv(timeout=5) == b"kept until there is room"
    await one.send(b"welcome")
    assert await second.recv(timeout=5) == b"welcome"


async def test_a_pending_handshake_does_not_take_the_place(make):
    from tests.unit.engine.wire import RawPeer

    one = make(omq.PAIR, bind="tcp://127.0.0.1:*")
    silent = await RawPeer.dial(one.endpoints[0])
    slow = await RawPeer.dial(one.endpoints[0])
    await slow.greet()
    good = make(omq.PAIR, connect=one.endpoints[0])
    await good.send(b"through")
    assert await one.recv(timeout=5) == b"through"
    # The slow one finishes its handshake now, and there is no room for it.
    await slow.ready(b"PAIR")
    assert await slow.read_all(timeout=5) is not None
    await good.send(b"still here")
    assert await one.recv(timeout=5) == b"still here"
    silent.close()
    slow.close()


async def test_what_waits_goes_to_the_next_peer(make, endpoint):
    one, first = await make.linked(omq.PAIR, omq.PAIR, endpoint)
    where = one.endpoints[0]
    first.stop()
    await until(lambda: not one.peers)
    for number in range(5):
        await one.send(b"%d" % number, timeout=0)
    second = make(omq.PAIR, connect=where)
    assert [await second.recv(timeout=5) for _ in range(5)] == [b"%d" % number for number in range(5)]


async def test_without_a_peer_exactly_send_hwm_are_accepted(make, inproc):
    one = make(omq.PAIR, bind=inproc, send_hwm=3)
    assert await one.send_many([b"x"] * 10, timeout=0) == 3


async def test_nothing_comes_from_a_peer_that_is_refused(make):
    """Over inproc the end that was dialled is ready first, and has something to send."""
    one = make(omq.PAIR, bind="inproc://pair-one")
    other = make(omq.PAIR, bind="inproc://pair-other")
    await one.send(b"first")
    await other.send(b"second")
    both = make(omq.PAIR, connect=["inproc://pair-one", "inproc://pair-other"], reconnect_interval=0.01)
    assert (await both.recv_message(timeout=5)).parts == [b"first"]
    assert await both.poll(0.05) == 0
    one.stop()
    # The message is still there: it never went to the peer that refused it.
    assert await both.recv(timeout=5) == b"second"
