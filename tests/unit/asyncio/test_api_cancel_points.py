"""Every call, cut off in every way and at every point where it can be: it has taken nothing and sent nothing."""

import asyncio
import contextlib
import sys

import pytest

import omq.asyncio as omq
from tests.unit.conftest import on_both_loops

pytestmark = on_both_loops

RECEIVING = {
    "recv": lambda socket: socket.recv(),
    "recv_multipart": lambda socket: socket.recv_multipart(),
    "recv_many": lambda socket: socket.recv_many(),
    "recv_into": lambda socket: socket.recv_into(bytearray(10)),
    "recv_message": lambda socket: socket.recv_message(),
    "anext": lambda socket: anext(socket),
    "poll": lambda socket: socket.poll(),
}
SENDING = {
    "send": lambda socket: socket.send(b"cut off"),
    "send_multipart": lambda socket: socket.send_multipart([b"cut", b"off"]),
    "send_many": lambda socket: socket.send_many([b"cut off"]),
    "poll": lambda socket: socket.poll(None, omq.POLL_OUT),
}


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


async def task_cancelled(awaitable, between):
    task = asyncio.ensure_future(awaitable)
    await turns()
    await between()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def wait_for_cut(awaitable, between):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(awaitable, 0.005)
    await between()


async def timeout_cut(awaitable, between):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.005):
            await awaitable
    await between()


async def timeout_past(awaitable, between):
    """The time is up before the call begins; it stops at its first wait."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(-1):
            await awaitable
    await between()


async def group_cancelled(awaitable, between):
    async def work():
        await awaitable

    with contextlib.suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(work())
            await turns()
            await between()
            raise LookupError


async def gather_cancelled(awaitable, between):
    gathered = asyncio.gather(awaitable, asyncio.sleep(60))
    await turns()
    await between()
    gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathered


WAYS = [task_cancelled, wait_for_cut, timeout_cut, timeout_past, group_cancelled, gather_cancelled]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", RECEIVING.values(), ids=RECEIVING)
async def test_receiving_cut_off_takes_nothing(make, endpoint, call, way):
    """The message comes between the call's wait and its cancellation, where the way allows it."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)

    async def arrive():
        await push.send(b"x")

    await way(call(pull), arrive)
    assert await pull.recv(timeout=5) == b"x"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", SENDING.values(), ids=SENDING)
async def test_sending_cut_off_sends_nothing(make, inproc, call, way):
    """Room comes between the call's wait and its cancellation, where the way allows it."""
    push = make(omq.PUSH, connect=inproc, send_hwm=1)
    await push.send(b"first")
    made = []

    async def make_room():
        made.append(make(omq.PULL, bind=inproc))

    await way(call(push), make_room)
    await push.send(b"last", timeout=5)
    assert [await made[0].recv(timeout=5) for _ in range(2)] == [b"first", b"last"]
    assert await made[0].poll(0.01) == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["wait_connected", "wait_subscribed"])
async def test_waiting_cut_off_leaves_nothing(make, inproc, call, way):
    pub = make(omq.PUB, bind=inproc)

    async def nothing():
        await asyncio.sleep(0)

    await way(getattr(pub, call)(), nothing)
    assert not pub._engine._watchers


@pytest.mark.parametrize("way", WAYS)
async def test_closing_cut_off_stops(make, inproc, way):
    push = make(omq.PUSH, connect=inproc)
    await push.send(b"x")

    async def nothing():
        await asyncio.sleep(0)

    await way(push.close(), nothing)
    await turns()
    assert push._engine.closed


async def test_the_one_behind_a_cancelled_receiver_gets_the_message(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    for cut in range(3):
        waiting = [asyncio.ensure_future(pull.recv()) for _ in range(3)]
        await turns()
        await push.send_many([b"1", b"2"])
        waiting[cut].cancel()
        done = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
        assert isinstance(done.pop(cut), asyncio.CancelledError)
        assert done == [b"1", b"2"]


def eagerly(loop, work, *, eager_start=None, **options):
    """asyncio.eager_task_factory; uvloop gives it an argument that it knows from Python 3.13.3 on."""
    return asyncio.eager_task_factory(loop, work, **options)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_eager_tasks(make, endpoint):
    """A task that is started at once runs the call before the task is the loop's."""
    asyncio.get_running_loop().set_task_factory(eagerly)
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)

    async def receive():
        return await pull.recv()

    async def send(data):
        await push.send(data)

    waiting = [asyncio.create_task(receive()) for _ in range(3)]
    sent = asyncio.create_task(send(b"1"))
    assert sent.done()
    await push.send_many([b"2", b"3"])
    assert await asyncio.gather(*waiting) == [b"1", b"2", b"3"]
    cut = asyncio.create_task(receive())
    cut.cancel()
    await asyncio.wait([cut])
    await push.send(b"kept")
    assert await asyncio.create_task(receive()) == b"kept"
