"""The asyncio proxy: the same in the turns of a loop."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

import omq as blocking
import omq.asyncio as omq
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

    async def end(self):
        await self.steer.send(b"KILL")
        assert await asyncio.wait_for(self.task, 5) is None


async def test_requests_and_answers_of_several(make):
    proxy = Steered(make, make(omq.ROUTER, bind=TCP), make(omq.DEALER, bind=TCP))
    workers = [make(omq.REP, connect=proxy.back.endpoints[0]) for _ in range(2)]

    async def serve(worker):
        while True:
            await worker.send(b"to " + await worker.recv())

    serving = [asyncio.create_task(serve(worker)) for worker in workers]
    clients = [make(omq.REQ, connect=proxy.front.endpoints[0]) for _ in range(4)]
    for number in range(50):
        for client in clients:
            await client.send(b"%d" % number)
        for client in clients:
            assert await client.recv(timeout=5) == b"to %d" % number
    for task in serving:
        task.cancel()
    assert (await proxy.figures()).front_out == 200
    await proxy.steer.send(b"TERMINATE")
    assert await asyncio.wait_for(proxy.task, 5) is None


async def test_a_stream_passes_while_the_loop_goes_on(make):
    proxy = Steered(make, make(omq.PULL, bind=TCP), make(omq.PUSH, bind=TCP))
    sender = make(omq.PUSH, connect=proxy.front.endpoints[0])
    receiver = make(omq.PULL, connect=proxy.back.endpoints[0])

    async def send():
        for number in range(20_000):
            await sender.send(b"%d" % number)

    sending = asyncio.create_task(send())
    for number in range(20_000):
        assert await receiver.recv(timeout=5) == b"%d" % number
    await sending
    assert (await proxy.figures()).back_out == 20_000
    await proxy.end()


async def test_subscriptions_pass(make):
    proxy = Steered(make, make(omq.XSUB, bind=TCP), make(omq.XPUB, bind=TCP))
    publisher = make(omq.PUB, connect=proxy.front.endpoints[0])
    prefixes = [b"%04d" % number for number in range(2000)]
    subscriber = make(omq.SUB, connect=proxy.back.endpoints[0], subscribe=prefixes)
    await publisher.wait_subscribed(n=2000, timeout=10)
    await publisher.send(b"none")
    await publisher.send(b"1999 yes")
    assert await subscriber.recv(timeout=5) == b"1999 yes"
    await proxy.end()


async def test_pause_resume_and_kill(make):
    proxy = Steered(make, make(omq.PULL, bind=TCP), make(omq.PUSH, bind=TCP))
    sender = make(omq.PUSH, connect=proxy.front.endpoints[0])
    receiver = make(omq.PULL, connect=proxy.back.endpoints[0])
    await receiver.wait_connected(timeout=5)
    await proxy.steer.send(b"PAUSE")
    await proxy.figures()
    for number in range(10):
        await sender.send(b"%d" % number)
    with pytest.raises(omq.ReceiveTimeout):
        await receiver.recv(timeout=0.1)
    await proxy.steer.send(b"RESUME")
    for number in range(10):
        assert await receiver.recv(timeout=5) == b"%d" % number
    await proxy.end()


async def test_terminate_forwards_what_was_received(make):
    proxy = Steered(make, make(omq.PULL, bind=TCP), make(omq.PUSH, bind=TCP))
    receiver = make(omq.PULL, connect=proxy.back.endpoints[0])
    await receiver.wait_connected(timeout=5)
    await proxy.steer.send(b"PAUSE")
    await proxy.figures()
    sender = make(omq.PUSH, connect=proxy.front.endpoints[0])
    for number in range(900):
        await sender.send(b"%d" % number)
    await sender.flush(5)
    await proxy.steer.send(b"TERMINATE")
    await asyncio.wait_for(proxy.task, 5)
    for number in range(900):
        assert await receiver.recv(timeout=5) == b"%d" % number


async def test_back_pressure_and_a_capture(make):
    capture = make(omq.PUSH, bind=TCP)
    proxy = Steered(make, make(omq.PULL, bind=TCP), make(omq.PUSH, bind=TCP, send_hwm=10), capture=capture)
    sender = make(omq.PUSH, connect=proxy.front.endpoints[0])
    block = os.urandom(50_000)
    for _ in range(30):
        await sender.send(block)
    assert (await proxy.figures()).back_out <= 10
    receiver = make(omq.PULL, connect=proxy.back.endpoints[0])
    watcher = make(omq.PULL, connect=capture.endpoints[0])
    for _ in range(30):
        assert await receiver.recv(timeout=5) == block
        assert await watcher.recv(timeout=5) == block
    await proxy.end()


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


async def test_a_rep_at_both_ends_replies_with_the_request(make):
    echo = make(omq.REP, bind=TCP)
    proxy = Steered(make, echo, echo)
    clients = [make(omq.REQ, connect=echo.endpoints[0]) for _ in range(3)]
    for request in ([b"hello"], [b"several", b"", b"parts"], [b"large", os.urandom(100_000)]):
        for client in clients:
            await client.send_multipart(request)
        for client in clients:
            assert await client.recv_multipart(timeout=5) == request
    assert (await proxy.figures()).back_out == 9
    await proxy.end()


async def test_a_req_at_both_ends_asks_what_it_was_answered(make):
    req = make(omq.REQ, bind=TCP)
    rep = make(omq.REP, connect=req.endpoints[0])
    await req.send(b"0")
    proxy = Steered(make, req, req)
    for number in range(50):
        assert await rep.recv(timeout=5) == b"%d" % number
        await rep.send(b"%d" % (number + 1))
    await proxy.end()


async def test_messages_pass_beside_commands_that_never_cease(make):
    """All of them wait when the proxy begins, the last one ends it, and the messages were not kept till after that."""
    front, back = make(omq.PULL, bind="inproc://front"), make(omq.PUSH, bind="inproc://back")
    control = make(omq.PULL, bind="inproc://control", recv_hwm=0)
    sender, receiver = make(omq.PUSH, connect="inproc://front"), make(omq.PULL, connect="inproc://back")
    steer = make(omq.PUSH, connect="inproc://control", send_hwm=0)
    for one in (front, back, control):
        await one.wait_connected(timeout=5)
    for number in range(10):
        await sender.send(b"%d" % number)
    for command in [*[b"RESUME"] * 500, b"KILL"]:
        await steer.send(command)
    await asyncio.wait_for(omq.proxy(front, back, control=control), 5)
    for number in range(10):
        assert await receiver.recv(timeout=5) == b"%d" % number


@pytest.mark.parametrize(
    ("kind", "spy", "options"),
    [
        (omq.PUSH, omq.PULL, {}),
        (omq.DEALER, omq.DEALER, {}),
        (omq.PAIR, omq.PAIR, {}),
        (omq.XPUB, omq.SUB, {"xpub_nodrop": True}),
    ],
    ids=lambda param: getattr(param, "__name__", ""),
)
@pytest.mark.parametrize("end", ["cancel", "KILL", "TERMINATE", "close"])
async def test_no_copy_is_lost_and_none_is_made_twice_however_it_ends(make, end, kind, spy, options):
    """It ends while the capture has no room."""
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
        before = 0
        while before != sent or not before:
            before = sent
            await asyncio.sleep(0.1)
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


async def test_closing_and_terminating_end_it(make):
    proxy = Steered(make, make(omq.PULL, bind=TCP), make(omq.PUSH, bind=TCP))
    await asyncio.sleep(0.01)
    await proxy.back.close()
    with pytest.raises(omq.ClosedError, match="PUSH socket was closed"):
        await asyncio.wait_for(proxy.task, 5)
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
