"""Receiving on a connection: slabs, large frames, commands in between, limits, and the end."""

import asyncio
import contextlib
import os
import random
import resource
import socket
from pathlib import Path

import pytest

from omq._core.wire.framing import encode_frame
from omq.errors import MultipartError, RemoteProtocolError
from tests.support.bare_connection import Driven
from tests.unit.conftest import until
from tests.unit.core.test_sending import over_tcp

SLAB, LARGE, STEP = 131_072, 32_768, 1_048_576

#: Sizes at which something changes: the header, the slab, the large frame, the steps in which its memory grows.
SIZES = [
    0,
    1,
    255,
    256,
    LARGE - 1,
    LARGE,
    LARGE + 1,
    SLAB - 20,
    SLAB - 9,
    SLAB,
    SLAB + 1,
    STEP - 1,
    STEP,
    STEP + 1,
    2 * STEP - 1,
    2 * STEP,
    2 * STEP + 1,
    5 * STEP + 3,
]


def body(size, seed=0):
    return random.Random(size + seed).randbytes(size)


def message(*parts):
    return b"".join(encode_frame(part, more=number < len(parts) - 1) for number, part in enumerate(parts))


def command(data):
    return encode_frame(data, command=True)


@pytest.mark.parametrize("size", SIZES)
async def test_frames_of_every_size(size):
    with Driven() as core:
        other = core.link()
        sending = asyncio.create_task(core.feed(other, message(body(size)) + message(b"next") + message(body(size, 1))))
        assert await core.recv(timeout=10) == body(size)
        assert await core.recv(timeout=10) == b"next"
        assert await core.recv(timeout=10) == body(size, 1)
        await sending
        assert core.session.peer.messages_in == 3


@pytest.mark.parametrize("size", [0, 255, 256, 300])
async def test_frames_cut_at_every_byte(size):
    data = message(b"a") + message(b"", body(size)) + command(b"\4WINKxx") + message(b"z" * 256)
    with Driven() as core:
        other = core.link()
        for cut in range(len(data) + 1):
            other.send(data[:cut])
            core.poller.dispatch()
            other.send(data[cut:])
            assert await core.recv(timeout=5) == b"a"
            assert await core.recv_multipart(timeout=5) == [b"", body(size)]
            assert await core.recv(timeout=5) == b"z" * 256
        assert core.session.commands == [b"\4WINKxx"] * (len(data) + 1)


async def test_a_byte_at_a_time():
    data = message(body(LARGE + 5)) + message(b"x", body(300))
    with Driven() as core:
        other = core.link()
        for byte in data[:200]:
            other.send(bytes([byte]))
            core.poller.dispatch()
        for at in range(200, len(data), 97):
            other.send(data[at : at + 97])
            core.poller.dispatch()
        assert await core.recv(timeout=5) == body(LARGE + 5)
        assert await core.recv_multipart(timeout=5) == [b"x", body(300)]


@pytest.mark.parametrize("seed", range(12))
async def test_any_frames_in_any_portions(seed):
    """The frames come out as they went in, commands included, however they are cut and mixed."""
    chance = random.Random(seed)
    sizes = [0, 1, 2, 10, 255, 256, 1000, 5000, LARGE, LARGE + 1, SLAB, 200_000, STEP + 77]
    wanted, commands, stream = [], [], bytearray()
    for _ in range(60):
        if chance.random() < 0.3:
            commands.append(b"\7COMMAND" + body(chance.choice([0, 3, 300, LARGE + 9, 150_000])))
            stream += command(commands[-1])
        parts = []
        for number in range(count := chance.choice([1, 1, 1, 2, 5])):
            part = body(chance.choice(sizes), chance.randrange(1000))
            parts.append(part)
            stream += encode_frame(part, more=number < count - 1)
            if chance.random() < 0.1:
                commands.append(b"\6WITHIN")
                stream += command(commands[-1])
        wanted.append(parts)
    with Driven() as core:
        other = core.link(recv_hwm=chance.choice([0, 1, 3, 50]))

        async def sending():
            at = 0
            while at < len(stream):
                size = chance.choice([1, 10, 1000, 70_000, 300_000])
                await core.feed(other, bytes(stream[at : at + size]))
                at += size
                if chance.random() < 0.3:
                    await asyncio.sleep(0)

        task = asyncio.create_task(sending())
        for parts in wanted:
            assert await core.recv_multipart(timeout=10) == parts
        await task
        await until(lambda: len(core.session.commands) == len(commands))
        assert core.session.commands == commands
        assert core.session.lost == []


@pytest.mark.parametrize("size", [5, 300, 5000, LARGE + 1, 200_000])
async def test_receiving_into_memory(size):
    with Driven() as core:
        other = core.link()
        await core.feed(other, message(body(size)) * 2 + message(b"a", body(size)) + message(b"end"))
        buffer = bytearray(size)
        assert await core.recv_into(buffer, timeout=5) == size
        assert buffer == body(size)
        assert await core.recv_into(buffer, timeout=5) == size
        with pytest.raises(MultipartError):
            await core.recv_into(buffer, timeout=5)
        assert await core.recv_multipart(timeout=5) == [b"a", body(size)]
        assert await core.recv(timeout=5) == b"end"


async def test_bytes_that_came_with_the_handshake_come_first():
    with Driven() as core:
        data = message(b"1") + message(b"2", b"3") + command(b"\4PING") + message(body(3000))
        other = core.link(start=data[:-1000])
        other.send(data[-1000:] + message(b"4"))
        assert await core.recv(timeout=5) == b"1"
        assert await core.recv_multipart(timeout=5) == [b"2", b"3"]
        assert await core.recv(timeout=5) == body(3000)
        assert await core.recv(timeout=5) == b"4"
        assert core.session.commands == [b"\4PING"]


async def test_without_recv_queue_and_send_queue_the_session_gets_the_messages():
    with Driven(queue=False) as core:
        other = core.link()
        other.send(message(b"1") + command(b"\1c") + message(b"2", b"3"))
        core.poller.dispatch()
        assert core.session.messages == [[b"1"], [b"2", b"3"]]
        assert core.session.commands == [b"\1c"]


# The end


@pytest.mark.parametrize("size", [3, 300, LARGE + 1, 2 * STEP])
async def test_the_end_comes_behind_the_data(size):
    with Driven() as core:
        other = core.link()
        data = message(body(size)) * 3
        sending = asyncio.create_task(core.feed(other, data + data[:2]))
        sending.add_done_callback(lambda _: other.close())
        for _ in range(3):
            assert await core.recv(timeout=5) == body(size)
        await until(lambda: core.session.lost != [])
        assert core.session.lost == [None]
        assert core.session.peer.lost


async def test_the_end_is_read_at_once_with_what_came_before():
    with Driven() as core:
        other = core.link()
        other.send(message(b"1") + message(b"2"))
        other.close()
        core.poller.dispatch()
        core.poller.dispatch()
        assert core.session.lost == [None]
        assert [await core.recv(timeout=0), await core.recv(timeout=0)] == [b"1", b"2"]


async def test_a_write_that_fails_leaves_what_is_unread():
    with Driven() as core:
        other = core.link()
        other.send(message(b"1") + message(b"2"))
        other.close()
        # The first write finds the pipe broken before anything was read.
        for _ in range(5):
            await core.send(b"into the void")
        assert [await core.recv(timeout=5), await core.recv(timeout=5)] == [b"1", b"2"]
        await until(lambda: core.session.lost != [])
        assert len(core.session.lost) == 1


async def test_a_half_closed_connection_still_takes():
    with Driven() as core:
        other = core.link()
        other.shutdown(socket.SHUT_RD)
        for _ in range(3):
            await core.send(b"x")
        other.send(message(b"still"))
        assert await core.recv(timeout=5) == b"still"


def low_water(session):
    """Bytes from which the kernel reports that there are some."""
    with socket.socket(fileno=os.dup(session.peer.fd)) as twin:
        return twin.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


async def test_the_rest_of_a_large_frame_comes_in_large_steps():
    """Each report of the kernel wakes a thread, and the sender pays for that."""
    data = message(body(STEP))
    with Driven() as core, over_tcp(core) as (session, theirs):
        theirs.sendall(data[:200_000])
        await until(lambda: low_water(session) > 100_000)
        await core.feed(theirs, data[200_000:])
        assert await core.recv(timeout=10) == body(STEP)
        assert low_water(session) == 1
        await core.feed(theirs, message(b"small"))
        assert await core.recv(timeout=10) == b"small"


@pytest.mark.parametrize("end", ["theirs", "ours"])
async def test_the_end_within_a_large_frame_is_found(end):
    with Driven() as core, over_tcp(core) as (session, theirs):
        theirs.sendall(message(body(STEP))[:200_000])
        await until(lambda: low_water(session) > 100_000)
        if end == "theirs":
            theirs.close()
            await until(lambda: session.lost)
        else:
            await until(session.peer.half_close)
            assert low_water(session) == 1  # further bytes are dropped as they come


# Limits


@pytest.mark.parametrize(
    ("limits", "data", "complaint"),
    [
        ({"max_size": 10}, message(bytes(11)), "max_message_size=10"),
        ({"max_size": 10}, message(b"x", bytes(11)), "max_message_size=10"),
        ({"max_size": 10}, b"\2" + (1 << 62).to_bytes(8, "big"), "max_message_size=10"),
        ({"max_size": 10}, message(b"12345", b"", b"123456"), "max_message_size=10"),
        ({"max_size": 10}, b"\1\5abcde\3" + (1 << 40).to_bytes(8, "big"), "max_message_size=10"),
        ({"max_size": 100_000}, message(bytes(60_000), bytes(40_001)), "max_message_size=100000"),
        ({"max_size": 10}, message(b"12345", b"", b"12345", b"x"), "max_message_size=10"),
        ({"ceiling": 100}, message(bytes(60), bytes(40), b"x"), "larger than 100 bytes"),
        ({"ceiling": 100_000}, message(bytes(60_000), bytes(60_000), b"", b"x"), "larger than 100000 bytes"),
        ({"ceiling": 1 << 20}, b"\2" + (1 << 40).to_bytes(8, "big") + bytes(1 << 20), "larger than 1048576 bytes"),
        ({"max_parts": 2}, message(b"a", b"b", b"c"), "max_parts=2"),
        ({"max_parts": 1}, message(b"", b""), "max_parts=1"),
        ({}, b"\x08\0", "not a valid ZMTP frame"),
        ({}, b"\5\0", "not a valid ZMTP frame"),
        ({}, b"\2\x80" + bytes(7), "not a valid ZMTP frame"),
        ({}, b"\6" + (8_388_609).to_bytes(8, "big"), "a command is larger"),
    ],
)
async def test_what_breaks_a_limit_ends_the_connection(limits, data, complaint):
    with Driven() as core:
        other = core.link(**limits)
        await core.feed(other, message(b"before") + data)
        await until(lambda: core.session.lost != [])
        (reason,) = core.session.lost
        assert isinstance(reason, RemoteProtocolError)
        assert complaint in str(reason)
        assert await core.recv(timeout=0) == b"before"


async def test_what_keeps_the_limits_passes():
    with Driven() as core:
        other = core.link(max_size=10, max_parts=3)
        await core.feed(other, message(bytes(4), b"", bytes(6)) * 2 + command(bytes(100)) + message(bytes(10)))
        assert await core.recv_multipart(timeout=5) == [bytes(4), b"", bytes(6)]
        assert await core.recv_multipart(timeout=5) == [bytes(4), b"", bytes(6)]
        assert await core.recv(timeout=5) == bytes(10)


async def test_the_ceiling_is_for_what_is_not_whole():
    with Driven() as core:
        other = core.link(ceiling=100)
        for parts in ([bytes(1000)], [bytes(50), bytes(1000)], [bytes(100)], [bytes(99), b"", b"x"]):
            await core.feed(other, message(*parts))
            assert await core.recv_multipart(timeout=5) == parts
        assert core.session.lost == []


async def test_large_parts_of_each_message_count_together():
    with Driven() as core:
        other = core.link(max_size=100_000, max_parts=2)
        await core.feed(other, message(bytes(60_000), bytes(40_000)) * 2 + message(bytes(100_000)))
        for _ in range(2):
            assert [len(part) for part in await core.recv_multipart(timeout=5)] == [60_000, 40_000]
        assert len(await core.recv(timeout=5)) == 100_000


@pytest.mark.parametrize("size", [0, 1])
async def test_a_flood_of_tiny_parts_ends_at_the_built_in_bound(size):
    """A message that never ends is one that recv_hwm never counts."""
    with Driven() as core:
        other = core.link()
        flood = (b"\1" + bytes([size]) + bytes(size)) * 65536
        with contextlib.suppress(OSError):
            for _ in range(17):
                await core.feed(other, flood)
        await until(lambda: core.session.lost != [])
        assert "max_parts=1048576" in str(core.session.lost[0])


async def test_as_many_parts_as_the_built_in_bound_pass():
    with Driven() as core:
        other = core.link()
        await core.feed(other, b"\1\0" * (2**20 - 1) + b"\0\0" + message(b"next"))
        assert len(await core.recv_multipart(timeout=5)) == 2**20
        assert await core.recv(timeout=5) == b"next"


# Pausing


@pytest.mark.parametrize("hwm", [1, 2, 10])
async def test_reading_pauses_at_the_mark_and_goes_on(hwm):
    with Driven() as core:
        other = core.link(recv_hwm=hwm)
        total = 400
        sending = asyncio.create_task(core.feed(other, message(body(50_000)) * total))
        await until(lambda: core.session.peer.messages_in >= hwm)
        for _ in range(20):
            await asyncio.sleep(0)
        # The mark, and what one slab held besides.
        assert core.session.peer.messages_in <= hwm + 3
        assert not sending.done()
        for _ in range(total):
            assert len(await core.recv(timeout=5)) == 50_000
        await sending


async def test_a_paused_connection_notices_the_end_when_it_reads_on():
    with Driven() as core:
        other = core.link(recv_hwm=2)
        await core.feed(other, message(b"x") * 100)
        core.poller.dispatch()
        other.close()
        for _ in range(20):
            core.poller.dispatch()
        assert core.session.lost == []
        for _ in range(100):
            assert await core.recv(timeout=5) == b"x"
        await until(lambda: core.session.lost == [None])


# Memory


def resident():
    """KiB that the process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


@pytest.mark.parametrize("unread", [True, False])
async def test_commands_do_not_gather_behind_messages(unread):
    """A peer that pings for ever while its message waits, or right behind the last one, costs no memory."""
    with Driven(queue=True) as core:
        other = core.link()
        ping = command(b"\4PING" + bytes(100))
        block = ping * 600
        await core.feed(other, message(b"first") + ping)
        await until(lambda: core.session.commands != [])
        if not unread:
            assert await core.recv(timeout=5) == b"first"
            assert core.session.peer.slabs == 0
        core.session.on_command = lambda body: None
        for _ in range(100):  # 6 MB, which would be 50 slabs
            await core.feed(other, block)
            await asyncio.sleep(0)
            assert core.session.peer.slabs <= 2
        await core.feed(other, message(b"last", b"parts"))
        if unread:
            assert await core.recv(timeout=5) == b"first"
        assert await core.recv_multipart(timeout=5) == [b"last", b"parts"]
        assert core.session.peer.slabs == 0


async def test_messages_between_commands_survive_their_removal():
    with Driven() as core:
        other = core.link()
        wanted = 0
        for number in range(4000):
            data = command(b"\4WINK" + bytes(number % 200)) * 3
            if number % 3 == 0:
                data += message(b"%d" % number, body(number % 700))
                wanted += 1
            await core.feed(other, data)
        await until(lambda: core.session.peer.messages_in == wanted)
        for number in range(0, 4000, 3):
            assert await core.recv_multipart(timeout=5) == [b"%d" % number, body(number % 700)]
        assert core.session.peer.messages_in == wanted


async def test_an_announcement_is_not_believed():
    with Driven() as core:
        before = resident()
        others = [core.link() for _ in range(20)]
        for other in others:
            other.send(b"\2" + (1 << 40).to_bytes(8, "big") + b"some")
        for _ in range(5):
            core.poller.dispatch()
        assert resident() - before < 40_000
        assert all(session.lost == [] for session in core.sessions)


def attempt(call, step):
    """Awaits a call that need not wait, while the allocation of that number finds no memory; None: it raised."""
    testing = pytest.importorskip("_testcapi")
    testing.set_nomemory(step, step + 1)
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    except MemoryError:
        return None
    finally:
        testing.remove_mem_hooks()
    raise AssertionError("it waits")


@pytest.mark.parametrize("step", range(10))
async def test_no_message_is_torn_where_memory_is_short(step):
    parts = [body(300, seed) for seed in range(3)]
    with Driven() as core:
        await core.feed(core.link(), message(*parts) + message(b"next"))
        await until(lambda: core.session.peer.messages_in == 2)
        attempt(core.recv_multipart(), step)
        assert await core.recv_many() in ([parts, b"next"], [b"next"])


@pytest.mark.parametrize("step", [4, 25, 53])
async def test_what_recv_many_has_taken_is_given_where_memory_is_short_for_more(step):
    messages = [body(300, seed) for seed in range(100)]
    with Driven() as core:
        await core.feed(core.link(), b"".join(map(message, messages)))
        await until(lambda: core.session.peer.messages_in == 100)
        first = attempt(core.recv_many(), step)
        assert first
        assert first + await core.recv_many() == messages
