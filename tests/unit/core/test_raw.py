"""Connections whose peer knows no frames: a read is a message, and a message leaves as its bytes."""

import asyncio
import random

import pytest

from omq._core.queues.routed import StreamSendQueue
from omq._core.queues.wait_queue import WaitQueue
from omq._core.wire.framing import encode_frame
from omq._core.wire.raw import CHUNK, RawCodec
from tests.support.bare_connection import Driven
from tests.unit.conftest import until

SLAB = 131_072


def body(size):
    return random.Random(size).randbytes(size)


def link(core, **options):
    return core.link(codec=RawCodec(), **options)


async def take(core, size):
    found = []
    while sum(map(len, found)) < size:
        found.append(await core.recv(timeout=10))
    return found


def test_a_raw_frame_has_no_header_and_leaves_room_for_one():
    codec = RawCodec()
    assert (codec.overhead, codec.lead, codec.growth, codec.portion) == (0, 9, 0, CHUNK)
    assert codec.borrows
    assert not codec.watchable


@pytest.mark.parametrize("size", [1, 2, 255, 256, CHUNK - 1, CHUNK, CHUNK + 1, SLAB - 9, SLAB, SLAB + 1, 10 * SLAB])
async def test_bytes_come_in_order_and_no_read_brings_more_than_a_chunk(size):
    with Driven() as core:
        other = link(core)
        sending = asyncio.create_task(core.feed(other, body(size)))
        found = await take(core, size)
        assert b"".join(found) == body(size)
        assert all(0 < len(one) <= CHUNK for one in found)
        await sending
        assert core.session.peer.bytes_in == size
        assert core.session.peer.messages_in == len(found)


async def test_reads_that_are_not_taken_stay_apart_and_in_order():
    with Driven() as core:
        other = link(core)
        sizes = [1, 3, 300, 5000, 1, CHUNK, 7, CHUNK + 5, 2] * 5
        for size in sizes:
            await core.feed(other, body(size))
            await asyncio.sleep(0)
        await until(lambda: core.session.peer.bytes_in == sum(sizes))
        found = await take(core, sum(sizes))
        assert b"".join(found) == b"".join(map(body, sizes))


async def test_bytes_that_look_like_frames_are_bytes():
    with Driven() as core:
        other = link(core)
        sent = encode_frame(b"part", more=True) + encode_frame(b"\4PING\0\0", command=True) + b"\xff" * 9
        await core.feed(other, sent)
        assert b"".join(await take(core, len(sent))) == sent
        assert core.session.peer.pings == 0


async def test_reading_stops_at_the_mark_and_goes_on():
    with Driven() as core:
        other = link(core, recv_hwm=2, buffer=4096)
        sending = asyncio.create_task(core.feed(other, body(1_000_000)))
        await until(lambda: core.session.peer.messages_in >= 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert core.session.peer.messages_in == 2
        assert b"".join(await take(core, 1_000_000)) == body(1_000_000)
        await sending


async def test_an_idle_connection_owns_no_block():
    with Driven() as core:
        other = link(core)
        await core.feed(other, b"x" * 100)
        assert len(b"".join(await take(core, 100))) == 100
        await until(lambda: core.session.peer.slabs == 0)


@pytest.mark.parametrize("size", [1, 255, 256, 4096, 4097, CHUNK, 65_536, 65_537, 3_000_000])
@pytest.mark.parametrize("kind", [bytes, bytearray])
async def test_a_message_leaves_as_its_bytes(size, kind):
    with Driven() as core:
        other = link(core)
        reading = asyncio.create_task(core.read(other, 2 * size + 2))
        for _ in range(2):
            await core.send(kind(body(size)))
            await core.send(b"|")
        assert await reading == (body(size) + b"|") * 2


async def test_parts_of_one_message_leave_one_after_the_other():
    with Driven() as core:
        other = link(core)
        await core.send_multipart([b"a", b"", b"b" * 5000, b"c"])
        assert await core.read(other, 5002) == b"a" + b"b" * 5000 + b"c"


async def test_commands_are_not_sent():
    with Driven() as core:
        other = link(core)
        core.session.peer.command(b"PING", b"\0\0")
        await core.send(b"x")
        assert await core.read(other, 1) == b"x"


async def test_nothing_is_taken_back_of_what_has_not_left():
    with Driven() as core:
        link(core, buffer=4096)
        for _ in range(5):
            await core.send(body(100_000))
        assert core.session.peer.take_back() == []


def test_a_queue_of_a_stream_knows_its_peers_only():
    queue = StreamSendQueue(WaitQueue(), 3)
    assert (queue.table, queue.hwm, queue.idle) == ({}, 3, True)
