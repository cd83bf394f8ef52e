"""Time: what a call does when its time is up, and that nothing is lost or sent then."""

import asyncio
import time

import pytest

import omq.asyncio as omq
from tests.unit.conftest import on_both_loops, until

pytestmark = on_both_loops

RECEIVING = {
    "recv": lambda socket, **timeout: socket.recv(**timeout),
    "recv_multipart": lambda socket, **timeout: socket.recv_multipart(**timeout),
    "recv_many": lambda socket, **timeout: socket.recv_many(**timeout),
    "recv_into": lambda socket, **timeout: socket.recv_into(bytearray(10), **timeout),
    "recv_message": lambda socket, **timeout: socket.recv_message(**timeout),
}
SENDING = {
    "send": lambda socket, **timeout: socket.send(b"x", **timeout),
    "send_multipart": lambda socket, **timeout: socket.send_multipart([b"x", b"y"], **timeout),
    "send_many": lambda socket, **timeout: socket.send_many([b"x", b"y"], **timeout),
}


def full(make, inproc, **options):
    """A socket that accepts no more."""
    return make(omq.PUSH, bind=inproc, send_hwm=1, **options)


def test_the_timeouts_are_the_built_in_timeout_error():
    assert issubclass(omq.SendTimeout, TimeoutError)
    assert issubclass(omq.ReceiveTimeout, TimeoutError)
    assert issubclass(omq.SendTimeout, omq.Timeout)
    assert issubclass(omq.ReceiveTimeout, omq.Timeout)


@pytest.mark.parametrize("call", RECEIVING.values(), ids=RECEIVING)
@pytest.mark.parametrize("timeout", [0, 0.01])
async def test_a_receiving_call_gives_up(make, inproc, call, timeout):
    pull = make(omq.PULL, bind=inproc)
    begun = time.monotonic()
    with pytest.raises(omq.ReceiveTimeout, match="no message"):
        await call(pull, timeout=timeout)
    assert 0.8 * timeout <= time.monotonic() - begun < timeout + 2  # uvloop counts in milliseconds


@pytest.mark.parametrize("call", SENDING.values(), ids=SENDING)
@pytest.mark.parametrize("timeout", [0, 0.01])
async def test_a_sending_call_gives_up_and_has_sent_nothing(make, inproc, call, timeout):
    push = full(make, inproc)
    await push.send(b"1")
    begun = time.monotonic()
    with pytest.raises(omq.SendTimeout, match="no room"):
        await call(push, timeout=timeout)
    assert 0.8 * timeout <= time.monotonic() - begun < timeout + 2  # uvloop counts in milliseconds
    pull = make(omq.PULL, connect=inproc)
    await push.wait_connected(timeout=5)
    await push.send(b"2")
    assert await pull.recv(timeout=5) == b"1"
    assert await pull.recv(timeout=5) == b"2"


@pytest.mark.parametrize("call", RECEIVING.values(), ids=RECEIVING)
async def test_the_receive_timeout_of_the_socket_holds(make, inproc, call):
    pull = make(omq.PULL, bind=inproc, recv_timeout=0.01)
    with pytest.raises(omq.ReceiveTimeout):
        await call(pull)
    pull.set_options(recv_timeout=0)
    with pytest.raises(omq.ReceiveTimeout):
        await call(pull)


@pytest.mark.parametrize("call", SENDING.values(), ids=SENDING)
async def test_the_send_timeout_of_the_socket_holds(make, inproc, call):
    push = full(make, inproc, send_timeout=0.01)
    await push.send(b"1")
    with pytest.raises(omq.SendTimeout):
        await call(push)
    push.set_options(send_timeout=0)
    with pytest.raises(omq.SendTimeout):
        await call(push)


async def test_none_outdoes_the_socket_and_waits(make, inproc):
    pull = make(omq.PULL, bind=inproc, recv_timeout=0)
    push = make(omq.PUSH, connect=inproc)
    waiting = asyncio.ensure_future(pull.recv(timeout=None))
    await asyncio.sleep(0)
    assert not waiting.done()
    await push.send(b"x")
    assert await waiting == b"x"


async def test_a_message_that_is_there_is_taken_without_time(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    await push.send_many([b"1", b"2", b"3", b"4", b"5"])
    await until(lambda: pull.peers[0].messages_in == 5)
    assert await pull.recv(timeout=0) == b"1"
    assert await pull.recv_multipart(timeout=0) == [b"2"]
    assert await pull.recv_into(bytearray(5), timeout=0) == 1
    assert (await pull.recv_message(timeout=0)).body == b"4"
    assert await pull.recv_many(timeout=0) == [b"5"]


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


async def test_send_many_says_how_far_it_came(make, inproc):
    push = make(omq.PUSH, bind=inproc, send_hwm=3)
    assert await push.send_many([b"1", b"2", b"3", b"4", b"5"], timeout=0.01) == 3
    with pytest.raises(omq.SendTimeout):
        await push.send_many([b"4"], timeout=0)
    pull = make(omq.PULL, connect=inproc)
    assert [await pull.recv(timeout=5) for _ in range(3)] == [b"1", b"2", b"3"]
    assert await pull.poll(0) == 0


async def test_whose_time_is_up_does_not_overtake_who_came_first(make, inproc):
    """Room comes after the second one's time was up and before it has heard so: the first one's message goes first."""
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


async def test_poll_gives_nothing_when_its_time_is_up(make, inproc):
    pull = make(omq.PULL, bind=inproc, recv_timeout=0)
    begun = time.monotonic()
    assert await pull.poll(0.02) == 0
    assert time.monotonic() - begun >= 0.015
    assert not await pull.poll(0)


async def test_wait_connected_and_wait_subscribed_give_up(make, inproc):
    pub = make(omq.PUB, bind=inproc)
    for timeout in (0, 0.01):
        with pytest.raises(omq.Timeout, match="connected"):
            await pub.wait_connected(timeout=timeout)
        with pytest.raises(TimeoutError, match="subscriptions"):
            await pub.wait_subscribed(timeout=timeout)
    sub = make(omq.SUB, connect=inproc, subscribe=[b"a", b"b"])
    await pub.wait_subscribed(n=2, timeout=5)
    await pub.wait_connected(timeout=0)
    with pytest.raises(omq.Timeout, match="2 connected"):
        await pub.wait_connected(2, timeout=0.01)
    assert len(sub.peers) == 1
