"""Message calls of the asyncio twin: when their bytes leave. Arguments and results are tested with both twins."""

import asyncio
import contextlib
import inspect
import socket
import struct
from collections.abc import Coroutine

import pytest

import omq.asyncio as omq
from tests.support.raw_peer import RawPeer
from tests.unit.conftest import on_both_loops


async def test_bytes_are_released_when_they_have_left(make):
    import sys

    pull, push = await make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    data = bytes(200_000)
    before = sys.getrefcount(data)
    for _ in range(20):
        await push.send(data)
    for _ in range(20):
        await pull.recv()
    await push.send(b"end")
    assert await pull.recv() == b"end"
    assert sys.getrefcount(data) == before


def segments(sock):
    """Returns how many segments with data have come in (`tcpi_data_segs_in`)."""
    (found,) = struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 152)
    return found


#: What a raw peer is to each type that sends many messages in one call.
MANY = {
    omq.PUSH: b"PULL",
    omq.PAIR: b"PAIR",
    omq.DEALER: b"ROUTER",
    omq.ROUTER: b"DEALER",
    omq.PUB: b"SUB",
    omq.SCATTER: b"GATHER",
    omq.CLIENT: b"SERVER",
    omq.CHANNEL: b"CHANNEL",
}


@on_both_loops
@pytest.mark.parametrize("kind", MANY, ids=lambda kind: kind.__name__)
async def test_what_one_call_sends_leaves_with_it_in_one_piece(make, kind):
    server = make(kind, bind="tcp://127.0.0.1:*")
    raw = await RawPeer.dial(server.endpoints[0])
    with contextlib.closing(raw):
        await raw.handshake(MANY[kind], Identity=b"me")
        if kind is omq.PUB:
            await raw.subscribe(b"")
            await server.wait_subscribed(timeout=5)
        await server.wait_connected(timeout=5)
        given = [(b"me", b"%02d" % number) if kind is omq.ROUTER else b"%02d" % number for number in range(20)]
        before = segments(raw.sock)
        assert await server.send_many(given) == 20
        # The loop had no turn in between.
        assert raw.sock.recv(1000) == b"".join(b"\0\x02%02d" % number for number in range(20))
        assert segments(raw.sock) == before + 1


@pytest.mark.slow
@pytest.mark.alone  # calls that wait for a processor do not come as a flood
@on_both_loops
async def test_a_flood_of_small_calls_gathers_however_many_there_are_to_write_to(make):
    """To write to each of them takes longer than a pause does that shows that there is no flood."""
    pub, count = make(omq.PUB, bind="tcp://127.0.0.1:*"), 500
    with contextlib.ExitStack() as kept:
        for _ in range(200):
            peer = kept.enter_context(contextlib.closing(await RawPeer.dial(pub.endpoints[0])))
            await peer.handshake(b"SUB")
            await peer.subscribe(b"")
        await pub.wait_subscribed(n=200, timeout=5)
        for call in (pub.send, lambda message: pub.send_many([message])):
            taken = []
            while min(taken, default=count) > count // 2:  # where a round was held up, calls in it were not a flood
                assert len(taken) < 5, taken
                before = segments(peer.sock)
                for number in range(count):
                    await call(b"%04d" % number)
                await asyncio.sleep(0)
                assert await peer.read_exactly(6 * count) == b"".join(b"\0\x04%04d" % n for n in range(count))
                taken.append(segments(peer.sock) - before)


def test_an_unknown_option_spawns_nothing():
    with pytest.raises(omq.OptionError, match="send_hwm"):
        omq.PUSH(bind="tcp://127.0.0.1:*", send_hmw=1)


# What a call is


async def test_a_call_is_a_coroutine_and_does_nothing_before_the_await(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    call = push.send(b"later")
    assert isinstance(call, Coroutine)
    assert asyncio.iscoroutine(call)
    assert inspect.isawaitable(call)
    assert await pull.poll(0) == 0
    await call
    assert await pull.recv() == b"later"


async def test_a_task_of_a_call_has_a_repr(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    task = asyncio.create_task(pull.recv(), name="reader")
    await asyncio.sleep(0)
    assert "reader" in repr(task)
    assert task.get_stack() == []
    await push.send(b"x")
    assert await task == b"x"
