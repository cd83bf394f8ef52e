"""inproc: names, who comes first, two ends in two threads."""

import asyncio
import os
import sys
import threading

import pytest
import uvloop

import omq.asyncio as omq
from omq.engine.inproc import PipeSession
from tests.unit.conftest import until


async def test_names_without_a_waiter_are_forgotten(make, inproc):
    context = omq.Context()
    push = make(omq.PUSH, context, connect=[inproc, inproc])
    push.disconnect(inproc)
    assert context.inproc.waited_for == [inproc]
    push.disconnect(inproc)
    assert not context.inproc.waited_for


async def test_messages_pass_by_reference(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    data = bytes(100_000)
    await push.send(data)
    assert await pull.recv() is data
    parts = [b"a" * 10, b"b" * 1000]
    await push.send_multipart(parts)
    assert [got is sent for got, sent in zip(await pull.recv_multipart(), parts, strict=True)] == [True, True]


class Worker:
    """A thread with a loop of its own."""

    def __init__(self):
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work, timeout=20):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    async def call(self, work):
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@pytest.fixture
def worker():
    thread = Worker()
    yield thread
    thread.stop()


@pytest.mark.parametrize(("send_hwm", "recv_hwm"), [(1000, 1000), (1, 1), (3, 0), (0, 5)])
async def test_order_holds_between_threads(make, inproc, worker, send_hwm, recv_hwm):
    """Back pressure crosses the threads both ways and loses nothing."""
    total = 100_000 if send_hwm == 1000 else 5_000
    pull = make(omq.PULL, bind=inproc, recv_hwm=recv_hwm)

    async def sending():
        async with omq.PUSH(connect=inproc, send_hwm=send_hwm) as push:
            for number in range(total):
                await push.send(b"%d" % number)

    task = asyncio.ensure_future(worker.call(sending()))
    for number in range(total):
        assert await pull.recv() == b"%d" % number
    await task


async def test_word_that_there_is_room_crosses_once(make, inproc, worker):
    """Not once a message, while the sender's thread is busy and cannot handle it."""
    pull = make(omq.PULL, bind=inproc, recv_hwm=100)

    async def begin():
        push = omq.PUSH(connect=inproc, send_hwm=1)
        await push.wait_connected()
        return push, await push.send_many([b"x"] * 500, timeout=0.05)

    push, sent = await worker.call(begin())
    assert sent == 101
    free, busy = threading.Event(), threading.Event()

    def hold():
        busy.set()
        free.wait(10)

    worker.loop.call_soon_threadsafe(hold)
    assert busy.wait(5)
    for _ in range(100):
        await pull.recv(timeout=5)
    bell = push._engine.driver.bell.fd
    rings = os.read(bell, 8)
    assert int.from_bytes(rings, sys.byteorder) == 1
    os.write(bell, rings)
    free.set()
    assert await pull.recv(timeout=5) == b"x"
    await worker.call(push.close())


async def test_ends_that_close_while_they_are_joined(make, inproc, worker):
    """The two ends live in two threads and one of them stops at any moment: no ghost is left behind."""
    push = make(omq.PUSH, bind=inproc, send_hwm=5)

    async def visit(turns):
        pull = omq.PULL(connect=inproc, reconnect_interval=None)
        for _ in range(turns):
            await asyncio.sleep(0)
        pull.stop()

    for turn in range(200):
        await worker.call(visit(turn % 5))
    await until(lambda: not push.peers)
    # There is no peer, so exactly the mark is accepted: a ghost would swallow them.
    sent = await push.send_many([b"%d" % number for number in range(20)], timeout=0)
    assert sent == 5

    async def take():
        async with omq.PULL(connect=inproc) as pull:
            return [await pull.recv(timeout=5) for _ in range(5)]

    assert await worker.call(take()) == [b"%d" % number for number in range(5)]


async def test_an_end_that_closes_in_the_middle_of_joining_leaves_no_ghost(make, inproc, worker, monkeypatch):
    """One thread has looked whether the other's end is still there, and it ends right after."""
    far = []
    real = PipeSession.join

    async def stop():
        far[0].stop()

    def join(self, *arguments):
        worker.run(stop())
        real(self, *arguments)

    async def dial():
        far.append(omq.PULL(connect=inproc, reconnect_interval=None))

    push = make(omq.PUSH, bind=inproc, send_hwm=5)
    monkeypatch.setattr(PipeSession, "join", join)
    await worker.call(dial())
    await until(lambda: far[0].closed)
    await until(lambda: not push.peers)
    assert await push.send_many([b"x"] * 10, timeout=0) == 5


async def test_subscriptions_cross_threads_in_both_directions(make, inproc, worker):
    pub = make(omq.PUB, bind=f"{inproc}-pub")
    sub = make(omq.SUB, bind=f"{inproc}-sub", subscribe=[b"a", b"b"])

    async def far():
        far_sub = omq.SUB(connect=f"{inproc}-pub", subscribe=[b"c", b"d"])
        far_pub = omq.PUB(connect=f"{inproc}-sub")
        await far_pub.wait_subscribed(n=2, timeout=5)
        await far_pub.send(b"a1")
        return far_sub, far_pub

    async def end(*sockets):
        for socket in sockets:
            socket.stop()

    async def subscribed(far_sub):
        return await far_sub.recv(timeout=5)

    far_sub, far_pub = await worker.call(far())
    assert await sub.recv(timeout=5) == b"a1"
    await pub.wait_subscribed(n=2, timeout=5)
    await pub.send(b"d1")
    assert await worker.call(subscribed(far_sub)) == b"d1"
    await worker.call(end(far_sub, far_pub))
    await until(lambda: not pub.peers and not sub.peers)
