"""PAIR: one peer, and no other until it is gone (RFC 31)."""

import asyncio

import omq.asyncio as omq


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


async def test_a_pending_handshake_does_not_take_the_place(make):
    from tests.support.raw_peer import RawPeer

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
