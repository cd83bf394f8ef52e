"""`disconnect`: out of routing at once, and what was accepted leaves. tests/shutdown/ counts it between processes."""

import asyncio
import time

import pytest

import omq.asyncio as omq
from omq.engine.lifecycle import ConnectionState
from tests.unit.conftest import on_both_loops, until

LARGE = bytes(32 << 20)  # more than the kernels hold


async def laden(make, **options):
    """A PUSH that has left a PULL, which takes nothing, with more on its way than the kernels hold."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=1)
    push = make(omq.PUSH, connect=pull.endpoints[0], **options)
    await push.wait_connected(timeout=5)
    await push.send_many([b"first", LARGE])
    (session,) = push._engine.sessions
    push.disconnect(pull.endpoints[0])
    assert push.peers == []
    return pull, push, session


@on_both_loops
async def test_close_waits_for_who_has_left(make):
    pull, push, session = await laden(make)
    closing = asyncio.create_task(push.close())
    done, _ = await asyncio.wait([closing], timeout=0.2)
    assert not done
    assert session.state is ConnectionState.LEAVING
    assert await pull.recv(timeout=5) == b"first"
    assert len(await pull.recv(timeout=5)) == len(LARGE)
    await asyncio.wait_for(closing, 5)


async def test_stop_does_not_wait(make):
    _, push, session = await laden(make)
    push.stop()
    assert session.state is ConnectionState.OVER


@pytest.mark.parametrize("linger", [0, 0.2])
async def test_linger_bounds_it(make, linger):
    begun = time.monotonic()
    _, _, session = await laden(make, linger=linger)
    await until(lambda: session.state is ConnectionState.OVER)
    assert linger - 0.005 < time.monotonic() - begun < 5  # a loop counts milliseconds


@on_both_loops
async def test_the_next_messages_go_to_others(make):
    pull, push, session = await laden(make)
    other = make(omq.PULL, bind="tcp://127.0.0.1:*")
    push.connect(other.endpoints[0])
    for number in range(10):
        await push.send(b"%d" % number)
    assert [await other.recv(timeout=5) for _ in range(10)] == [b"%d" % number for number in range(10)]
    assert await pull.recv(timeout=5) == b"first"
    assert len(await pull.recv(timeout=5)) == len(LARGE)
    await until(lambda: session.state is ConnectionState.OVER)


async def test_what_waits_for_any_peer_stays_for_the_others(make, free_place):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=1)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.wait_connected(timeout=5)
    await push.send_many([b"first", LARGE, b"queued"])
    other = make(omq.PULL)
    where = other.bind(free_place)
    other.unbind(where)
    push.connect(where)  # there is no listener yet
    push.disconnect(pull.endpoints[0])
    other.bind(where)
    assert await other.recv(timeout=5) == b"queued"


async def test_what_waits_for_any_peer_leaves_with_the_last(make):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=1)
    push = make(omq.PUSH, connect=pull.endpoints[0])
    await push.wait_connected(timeout=5)
    await push.send_many([b"first", LARGE, b"queued"])
    push.disconnect(pull.endpoints[0])
    assert await pull.recv(timeout=5) == b"first"
    assert len(await pull.recv(timeout=5)) == len(LARGE)
    assert await pull.recv(timeout=5) == b"queued"


async def test_what_had_arrived_can_be_taken(make, endpoint):
    one, other = await make.linked(omq.DEALER, omq.DEALER, endpoint)
    for number in range(10):
        await one.send(b"%d" % number)
    await until(lambda: other._engine.sessions[0].peer.messages_in == 10)
    other.disconnect(one.endpoints[0])
    assert [await other.recv(timeout=5) for _ in range(10)] == [b"%d" % number for number in range(10)]


async def test_a_req_whose_server_was_left_may_ask_another(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    await req.send(b"to the first")
    req.disconnect(rep.endpoints[0])
    assert await rep.recv(timeout=5) == b"to the first"
    await until(lambda: not rep.peers)
    second = make(omq.REP, bind="tcp://127.0.0.1:*")
    req.connect(second.endpoints[0])
    await req.send(b"to the second", timeout=5)
    assert await second.recv(timeout=5) == b"to the second"
    await second.send(b"answer")
    assert await req.recv(timeout=5) == b"answer"


async def test_a_pair_has_room_for_another_at_once(make):
    one, other = await make.linked(omq.PAIR, omq.PAIR, "tcp://127.0.0.1:*")
    await other.send(b"farewell")
    other.disconnect(one.endpoints[0])
    third = make(omq.PAIR, bind="tcp://127.0.0.1:*")
    other.connect(third.endpoints[0])
    await other.send(b"hello")
    assert await third.recv(timeout=5) == b"hello"
    assert await one.recv(timeout=5) == b"farewell"


@pytest.mark.parametrize("kind", [omq.SUB, omq.XSUB])
async def test_a_subscriber_may_leave_and_come_back(make, kind):
    pub = make(omq.PUB, bind="tcp://127.0.0.1:*")
    sub = make(kind)
    sub.subscribe(b"")
    for number in range(3):
        sub.connect(pub.endpoints[0])
        await pub.wait_subscribed(timeout=5)
        await pub.send(b"%d" % number)
        assert await sub.recv(timeout=5) == b"%d" % number
        sub.disconnect(pub.endpoints[0])
        await until(lambda: not pub.peers)


async def test_a_peer_that_has_left_is_not_a_subscriber_any_more(make):
    """A SUBSCRIBE that comes while what was published before is still leaving changes nothing."""
    sub = make(omq.SUB, bind="tcp://127.0.0.1:*", subscribe=[b""], recv_hwm=1)
    pub = make(omq.PUB, connect=sub.endpoints[0])
    await pub.wait_subscribed(timeout=5)
    for body in (b"first", LARGE):
        await pub.send(body)
    pub.disconnect(sub.endpoints[0])
    sub.subscribe(b"more")
    await pub.send(b"not received")
    assert await sub.recv(timeout=5) == b"first"
    assert len(await sub.recv(timeout=5)) == len(LARGE)
    with pytest.raises(omq.ReceiveTimeout):
        await sub.recv(timeout=0.2)
