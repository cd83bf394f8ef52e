"""The calls of an asyncio socket that are not awaited: they serve what can be served now, and else raise."""

import asyncio
import contextlib
import time

import pytest

import omq.asyncio as omq


@contextlib.asynccontextmanager
async def pair(inproc):
    """A PUSH with room for three messages, and its PULL with room for one."""
    async with omq.PUSH(bind=inproc, send_hwm=3) as push, omq.PULL(connect=inproc, recv_hwm=1) as pull:
        await push.wait_connected(timeout=10)
        yield push, pull


async def fill(push) -> int:
    """Sends until there is no room; returns how many were accepted."""
    for number in range(1000):
        try:
            push.send_nowait(b"%d" % number)
        except omq.SendTimeout:
            return number
    raise AssertionError("there is no end of the room")


async def test_send_nowait_sends_while_there_is_room_and_raises_without(inproc):
    async with pair(inproc) as (push, pull):
        count = await fill(push)
        assert count >= 3
        assert push.poll_nowait(omq.POLL_OUT) == 0
        with pytest.raises(omq.SendTimeout, match="no room"):
            push.send_multipart_nowait([b"a", b"b"])
        with pytest.raises(omq.SendTimeout, match="no room"):
            push.send_many_nowait([b"a", b"b"])
        assert [await pull.recv(timeout=10) for _ in range(count)] == [b"%d" % number for number in range(count)]


async def test_of_many_as_many_go_as_there_is_room_for(inproc):
    async with pair(inproc) as (push, pull):
        messages = [b"%d" % number for number in range(100)]
        sent = push.send_many_nowait(messages)
        assert 3 <= sent < 100
        assert [await pull.recv(timeout=10) for _ in range(sent)] == messages[:sent]
        with pytest.raises(omq.ReceiveTimeout):
            await pull.recv(timeout=0.05)


async def test_a_call_that_waits_goes_first(inproc):
    async with pair(inproc) as (push, pull):
        count = await fill(push)
        waiting = asyncio.create_task(push.send(b"earlier"))
        await asyncio.sleep(0)
        with pytest.raises(omq.SendTimeout):
            push.send_nowait(b"later")
        got = [await pull.recv(timeout=10) for _ in range(count + 1)]
        await waiting
        assert got[-1] == b"earlier"


async def test_thousands_leave_without_a_turn_of_the_loop(inproc):
    """The turns that awaited calls give the loop are left out: nothing else runs between."""
    ran = []
    async with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0], send_hwm=0) as push:
        await push.wait_connected(timeout=10)
        asyncio.get_running_loop().call_soon(ran.append, True)
        for number in range(5000):
            push.send_multipart_nowait([b"%d" % number, b"x"])
        assert not ran
        for number in range(5000):
            assert await pull.recv_multipart(timeout=10) == [b"%d" % number, b"x"]
    assert ran


async def test_poll_nowait_reads_the_kernel(inproc):
    """A program that asks again and again finds the message, without a turn of the loop."""
    async with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
        await push.wait_connected(timeout=10)
        await pull.wait_connected(timeout=10)
        assert pull.poll_nowait() == 0
        push.send_nowait(b"x")
        end = time.monotonic() + 10
        while not pull.poll_nowait():
            assert time.monotonic() < end
        assert pull.poll_nowait() == omq.POLL_IN
        assert await pull.recv(timeout=0) == b"x"


async def test_types_that_name_the_receiver(inproc):
    async with omq.SERVER(bind=inproc) as server, omq.CLIENT(connect=inproc) as client:
        client.send_nowait(b"hello")
        asked = await server.recv_message(timeout=10)
        server.send_nowait(b"one", routing_id=asked.routing_id)
        server.send_multipart_nowait([b"two"], routing_id=asked.routing_id)
        assert [await client.recv(timeout=10) for _ in range(2)] == [b"one", b"two"]
        with pytest.raises(omq.UnroutableError):
            server.send_nowait(b"x", routing_id=asked.routing_id + 1)
        with pytest.raises(omq.StateError, match="routing_id= is missing"):
            server.send_nowait(b"x")
        with pytest.raises(omq.StateError, match="one message at a time"):
            server.send_many_nowait([b"x"])


async def test_what_cannot_be_done_is_refused():
    async with omq.PULL() as pull, omq.PUSH() as push:
        with pytest.raises(omq.StateError, match="does not send"):
            pull.send_nowait(b"x")
        with pytest.raises(TypeError):
            push.send_nowait("text")
        with pytest.raises(ValueError, match="events=7"):
            push.poll_nowait(7)
        other = asyncio.to_thread(asyncio.run, _send(push))
        push.send_nowait(b"mine")
        with pytest.raises(omq.StateError, match="another event loop"):
            await other
        await push.close(0)
        with pytest.raises(omq.ClosedError):
            push.send_nowait(b"x")


async def _send(push) -> None:
    push.send_nowait(b"from elsewhere")
