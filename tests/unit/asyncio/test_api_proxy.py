"""The asyncio proxy alone; forwarding is tested with both twins, in `tests/unit/proxy`."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import omq as blocking
import omq.asyncio as omq
from tests.support.async_waits import stable, until
from tests.support.parameters import each_value_once
from tests.unit.conftest import on_both_loops
from tests.unit.proxy.conftest import TCP, figures_of

pytestmark = on_both_loops


class Steered:
    """A proxy in a task, and what steers it."""

    def __init__(self, make, front, back, **more):
        self.front, self.back = front, back
        control = make(omq.PAIR, bind=TCP)
        self.steer = make(omq.PAIR, connect=control.endpoints[0])
        self.task = asyncio.create_task(omq.proxy(front, back, control=control, **more))

    async def figures(self):
        await self.steer.send(b"STATISTICS")
        return figures_of(await self.steer.recv_multipart(timeout=5))


async def test_inproc_and_a_blocking_peer(make):
    context = blocking.Context()
    front = make(omq.PULL, context, bind="inproc://in")
    proxy = Steered(make, front, make(omq.PUSH, context, bind="inproc://out"))
    with (
        blocking.PUSH(context, connect="inproc://in") as sender,
        blocking.PULL(context, connect="inproc://out") as sink,
    ):
        for number in range(100):
            await asyncio.to_thread(sender.send, b"%d" % number, timeout=5)
            assert await asyncio.to_thread(sink.recv, timeout=5) == b"%d" % number
        assert (await proxy.figures()).back_out == 100
    for one in (proxy.front, proxy.back):
        one.stop()
    with pytest.raises(omq.ClosedError):
        await proxy.task
    await asyncio.to_thread(context.term, 0)


async def test_a_cancelled_proxy_loses_nothing_and_another_may_follow(make):
    front, back = make(omq.PULL, bind=TCP), make(omq.PUSH, bind=TCP)
    sender = make(omq.PUSH, connect=front.endpoints[0])
    receiver = make(omq.PULL, connect=back.endpoints[0])

    async def send():
        for number in range(5000):
            await sender.send(b"%d" % number)

    async def forward():
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.002):
                    await omq.proxy(front, back)

    tasks = [asyncio.create_task(send()), asyncio.create_task(forward())]
    for number in range(5000):
        assert await receiver.recv(timeout=5) == b"%d" % number
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.slow
@each_value_once(
    end=["cancel", "KILL", "TERMINATE", "close"],
    kind__spy__options=[
        (omq.PUSH, omq.PULL, {}),
        (omq.DEALER, omq.DEALER, {}),
        (omq.PAIR, omq.PAIR, {}),
        (omq.XPUB, omq.SUB, {"xpub_nodrop": True}),
    ],
)
async def test_no_copy_is_lost_and_none_is_made_twice_however_it_ends(make, end, kind, spy, options):
    """The proxy ends while the capture has no room."""
    front, back = make(omq.PULL, bind=TCP), make(omq.PUSH, bind=TCP)
    capture = make(kind, bind=TCP, send_hwm=1, **options)
    subscribed = {"subscribe": b""} if spy is omq.SUB else {}
    watcher = make(spy, connect=capture.endpoints[0], recv_hwm=1, **subscribed)
    await capture.wait_connected(timeout=5)
    receiver = make(omq.PULL, connect=back.endpoints[0])
    sender, sent = make(omq.PUSH, connect=front.endpoints[0]), 0

    async def send():
        nonlocal sent
        for number in range(300):
            await sender.send(b"%d:" % number + bytes(50_000))
            sent += 1

    async def take(socket):
        return [int((await socket.recv(timeout=10)).split(b":")[0]) for _ in range(300)]

    sending = asyncio.create_task(send())
    for _ in range(2):
        control = make(omq.PAIR, bind=TCP)
        steer = make(omq.PAIR, connect=control.endpoints[0])
        task = asyncio.create_task(omq.proxy(front, back, capture=capture, control=control))
        await until(lambda: sent)
        await stable(lambda: sent)
        if end == "cancel":
            task.cancel()
        elif end == "close":
            await control.close()
        else:
            await steer.send(end.encode())
        with contextlib.suppress(asyncio.CancelledError, omq.ClosedError):
            await asyncio.wait_for(task, 5)
    task = asyncio.create_task(omq.proxy(front, back, capture=capture))
    forwarded, captured = await asyncio.gather(take(receiver), take(watcher))
    assert forwarded == captured == list(range(300))
    for one in (receiver, watcher):
        with pytest.raises(omq.ReceiveTimeout):
            await one.recv(timeout=0.05)
    for each in (task, sending):
        each.cancel()
    await asyncio.wait([task, sending])


async def test_terminating_ends_it(make):
    context = omq.Context()
    front, back = make(omq.PULL, context, bind=TCP), make(omq.PUSH, context, bind=TCP)
    task = asyncio.create_task(omq.proxy(front, back))
    await asyncio.sleep(0.01)
    await asyncio.to_thread(context.term, 0)
    with pytest.raises(omq.ContextTerminated):
        await asyncio.wait_for(task, 5)


async def test_what_is_refused(make):
    front, back = make(omq.PULL), make(omq.PUSH)
    with (
        blocking.PULL() as other,
        pytest.raises(TypeError, match="frontend: this proxy takes sockets of omq"),
    ):
        await omq.proxy(other, back)
    with pytest.raises(omq.StateError, match="cannot forward"):
        await omq.proxy(front, front)
    with pytest.raises(omq.StateError, match=r"control: .* is the frontend already"):
        await omq.proxy(front, back, control=front)
    task = asyncio.create_task(omq.proxy(front, back))
    await asyncio.sleep(0)
    with pytest.raises(omq.StateError, match="another proxy serves the PULL socket"):
        await omq.proxy(front, make(omq.PUSH))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
