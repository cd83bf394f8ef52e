"""Sending on a connection: copies, borrowed payloads, short writes, and nothing torn."""

import asyncio
import contextlib
import gc
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from omq._core.link.connection import Connection
from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import FrameDecoder, encode_frame
from omq.errors import SendTimeout
from tests.support.bare_connection import Driven, Session
from tests.unit.conftest import needs_address_space, until

INLINE = 4096


def wire(parts):
    return b"".join(encode_frame(bytes(part), more=number < len(parts) - 1) for number, part in enumerate(parts))


def body(size):
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", [0, 1, 255, 256, INLINE - 1, INLINE, INLINE + 1, 65_535, 65_536, 1_000_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview], ids=["bytes", "bytearray", "view"])
async def test_every_size_and_kind_arrives_as_it_was(size, kind):
    with Driven() as core:
        other = core.link(buffer=8192)
        reading = asyncio.create_task(core.read(other, len(wire([body(size)])) * 3))
        for _ in range(3):
            await core.send(kind(body(size)))
        assert await reading == wire([body(size)]) * 3
        assert core.session.peer.unsent == 0


@pytest.mark.parametrize("seed", range(10))
async def test_any_messages_through_a_narrow_kernel(seed):
    """Short writes anywhere: in a header, in the arena, in a borrowed payload, between system calls."""
    chance = random.Random(seed)
    sizes = [0, 1, 100, 255, 256, 3000, INLINE, INLINE + 1, 9000, 70_000]
    messages = []
    for _ in range(300):
        kinds = [bytes, bytes, bytes, bytearray, lambda data: memoryview(bytes(data))]
        messages.append([chance.choice(kinds)(body(chance.choice(sizes))) for _ in range(chance.choice([1, 1, 2, 6]))])
    expected = b"".join(wire(parts) for parts in messages)
    with Driven(send_hwm=chance.choice([0, 1, 10])) as core:
        other = core.link(buffer=chance.choice([1, 4096, 60_000]))
        reading = asyncio.create_task(core.read(other, len(expected)))
        for parts in messages:
            await core.send_multipart(parts, timeout=10)
            for part in parts:
                if type(part) is bytearray:
                    part[:] = bytes(len(part))  # ours again once the call has returned
            if chance.random() < 0.1:
                await asyncio.sleep(0)
        assert await reading == expected


async def test_hundreds_of_segments_leave_in_order():
    with Driven() as core:
        other = core.link(buffer=4096)
        parts = [body(5000 + number) for number in range(300)]
        expected = wire(parts)
        reading = asyncio.create_task(core.read(other, len(expected)))
        await core.send_multipart(parts)
        assert await reading == expected


async def test_a_burst_leaves_in_few_system_calls():
    """The first message is written through, the others gather until the turn ends."""
    with Driven() as core:
        other = core.link()
        other.setblocking(False)
        for number in range(100):
            await core.send(b"%03d" % number)
        at_once = other.recv(65536)
        # More than one if this thread was kept from running: what comes after a pause is written through as well.
        assert 1 <= len(at_once) / len(wire([b"000"])) < 10
        await asyncio.sleep(0)
        rest = other.recv(65536)
        assert at_once + rest == b"".join(wire([b"%03d" % number]) for number in range(100))


async def test_a_full_batch_leaves_within_the_turn():
    with Driven() as core:
        other = core.link()
        other.setblocking(False)
        for _ in range(300):
            await core.send(b"x")
        # 256 messages are a batch: they left before the turn ended.
        assert len(other.recv(65536)) >= 256 * 3


async def test_what_waits_leaves_when_the_caller_turns_to_receive():
    with Driven() as core:
        other = core.link()
        other.setblocking(False)
        await core.send(b"1")
        await core.send(b"2")
        with pytest.raises(TimeoutError):
            await core.recv(timeout=0.001)
        assert other.recv(100) == wire([b"1"]) + wire([b"2"])


async def test_the_mark_bounds_what_waits_and_counts_free_again():
    with Driven(send_hwm=10) as core:
        other = core.link(buffer=4096)
        sent = 0
        while sent < 100:
            try:
                await core.send(bytes(3000), timeout=0)
            except SendTimeout:
                break
            sent += 1
        assert 10 <= sent < 100
        data = await core.read(other, len(wire([bytes(3000)])) * sent)
        assert data == wire([bytes(3000)]) * sent
        await until(lambda: core.session.peer.unsent == 0)
        await core.send(b"again", timeout=5)
        assert await core.read(other, 7) == wire([b"again"])


async def test_control_frames_pass_between_messages_never_within():
    with Driven() as core:
        other = core.link(buffer=4096)
        ping = encode_frame(b"\4PING", command=True)
        messages = [[body(20_000), b"x"], [b"y" * 100], [body(9000)]]
        total = sum(len(wire(parts)) for parts in messages) + 3 * len(ping)
        reading = asyncio.create_task(core.read(other, total))
        for parts in messages:
            await core.send_multipart(parts)
            core.session.peer.control(ping)
        decoder = FrameDecoder()
        decoder.feed(await reading)
        seen = []
        while (frame := decoder.next_frame()) is not None:
            seen.append(frame)
        bodies = [data for flags, data in seen if not flags & 4]
        assert bodies == [part for parts in messages for part in parts]
        for (flags, _), (following, _) in itertools.pairwise(seen):
            assert not (flags & 1 and following & 4), "a command within a message"
        assert sum(1 for flags, _ in seen if flags & 4) == 3


async def test_borrowed_payloads_are_let_go_when_the_peer_dies():
    with Driven() as core:
        other = core.link(buffer=4096)
        payload = bytes(500_000)
        before = sys.getrefcount(payload)
        await core.send(payload)
        assert sys.getrefcount(payload) == before + 1
        other.close()
        await until(lambda: core.session.lost != [])
        assert sys.getrefcount(payload) == before


async def test_closing_lets_everything_go():
    payload = bytes(500_000)
    before = sys.getrefcount(payload)
    with Driven() as core:
        core.link(buffer=4096)
        for _ in range(5):
            await core.send(payload)
        assert sys.getrefcount(payload) > before
    del core
    await asyncio.sleep(0)  # a turn that is due holds the core until the loop has come to it
    gc.collect()
    assert sys.getrefcount(payload) == before


async def test_a_write_error_is_not_the_callers():
    with Driven(send_hwm=5) as core:
        core.link().close()
        for _ in range(5):
            await core.send(bytes(100_000), timeout=0)
        await until(lambda: core.session.lost != [])


def test_sigpipe_never_comes():
    """Python ignores the signal; a program that does not must not die of a peer that left."""
    script = """
import asyncio, signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
from tests.support.bare_connection import Driven, Session

async def main():
    for size in (10, 100_000):
        with Driven() as core:
            core.link().close()
            for _ in range(20):
                await core.send(bytes(size))
                await core.send_multipart([bytes(size)] * 3)
                core.session.peer.control(bytes(2))
            await asyncio.sleep(0)
    print("alive")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, cwd=os.getcwd())
    assert done.returncode != -signal.SIGPIPE
    assert done.stdout == "alive\n", done.stderr


async def test_a_burst_for_many_peers_gathers():
    """Each of them gets a message now and then, and is not idle for that."""
    with Driven() as core:
        others = [core.link() for _ in range(100)]
        rounds = 0
        for _ in range(50):  # a pause ends a burst, and another process may cause one
            for _ in range(200):
                await core.send(b"x")
            rounds += 2
            if sum(session.peer.unsent_bytes > 0 for session in core.sessions) > 50:
                break
            await asyncio.sleep(0)
        else:
            pytest.fail("every message has left on its own")
        for other in others:
            assert await core.read(other, rounds * len(wire([b"x"]))) == wire([b"x"]) * rounds


@contextlib.contextmanager
def over_tcp(core):
    """A connection of *core* over tcp; yields the session and the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    core.others.append(theirs)
    ours.setblocking(False)
    session = Session()
    session.peer = Connection(session, ours.detach(), core.poller, core.pool, core.recv_queue, 0)
    core.sessions.append(session)
    core.send_queue.add(session.peer)
    session.peer.start(b"")
    yield session, theirs


async def test_half_close_reads_on_so_that_nothing_is_reset():
    """Closing over unread bytes resets, and a reset destroys what the peer has not got yet."""
    with Driven() as core, over_tcp(core) as (session, theirs):
        theirs.sendall(wire([b"unread"]) * 1000)
        await core.send(b"farewell")
        await until(session.peer.half_close)
        session.peer.close()
        assert await core.read(theirs, 10) == wire([b"farewell"])
        theirs.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(theirs, 1) == b""


async def test_goodbye_to_a_silent_peer_takes_no_time():
    with Driven() as core, over_tcp(core) as (session, _):
        await core.send(b"farewell")
        begun = time.monotonic()
        await until(session.peer.half_close)
        assert time.monotonic() - begun < 0.5


@pytest.mark.parametrize("words", [10, pytest.param(1000, marks=pytest.mark.slow)])
async def test_goodbye_waits_for_the_silence_of_a_peer_that_speaks(words):
    """To be closed while it speaks would reset it; but one that never stops is not waited for."""
    with Driven() as core, over_tcp(core) as (session, theirs):
        theirs.sendall(wire([b"word"]))
        await core.recv()
        await core.send(bytes(10_000))  # more than anybody reads at once
        begun = time.monotonic()
        while not session.peer.half_close():
            if words:
                words -= 1
                theirs.sendall(wire([b"word"]))
            await asyncio.sleep(0.05)
        expected = 5.0 if words else 1.5
        assert expected - 0.1 < time.monotonic() - begun < expected + 2


LITTLE, MUCH = 64 << 20, 256 << 20


@needs_address_space
async def test_a_message_that_memory_is_short_for_is_not_sent_in_part(little_memory):
    """A sealed part has memory of its own: the part before was in the batch, and the next message its rest."""
    key = Secret()
    ours, theirs = CurveCipher(key, True, 0, 0), CurveCipher(key, False, 0, 0)
    with Driven() as core:
        other = core.link(codec=ours)
        parts = [b"head", bytes(MUCH)]
        little_memory(LITTLE)
        with pytest.raises(MemoryError):
            await core.send_multipart(parts)
        little_memory(None)
        assert core.session.peer.unsent_bytes == 0
        await core.send(b"whole")
        size = 2 + 33 + len(b"whole")
        assert theirs.open((await core.read(other, size))[2:]) == (0, b"whole")


@needs_address_space
async def test_the_callers_memory_is_not_read_without_memory_for_the_rest(little_memory):
    with Driven() as core:
        other = core.link()
        mine = bytearray(MUCH)
        little_memory(LITTLE)
        with pytest.raises(MemoryError):
            await core.send(mine)
        little_memory(None)
        mine[:] = b"x" * MUCH
        # The peer has the beginning, so the stream ends there.
        other.setblocking(False)
        loop = asyncio.get_running_loop()
        while got := await loop.sock_recv(other, 1 << 20):
            assert b"x" not in got
        await until(lambda: core.session.lost)
        assert isinstance(core.session.lost[0], MemoryError)


async def test_what_waits_goes_on_leaving_where_a_signal_handler_has_raised():
    with Driven() as core:
        loop, send_queue = asyncio.get_running_loop(), core.send_queue
        messages = [b"%d" % number for number in range(1000)]
        for number in messages[:-1]:
            await core.send(number)

        def interrupted():
            send_queue.set_schedule(lambda: loop.call_soon(send_queue.flush_turn))
            raise KeyboardInterrupt

        send_queue.set_schedule(interrupted)
        with pytest.raises(KeyboardInterrupt):
            core.link()
        core.session.peer.start(b"")
        await core.send(messages[-1])
        expected = b"".join(wire([one]) for one in messages)
        assert await core.read(core.others[0], len(expected)) == expected


@pytest.mark.parametrize("size", [0, 1, 250, 251, 5000])
async def test_a_command_of_the_patterns_leaves_as_one_frame(size):
    data = b"g" * size
    expected = encode_frame(b"\x04JOIN" + data, command=True)
    with Driven() as core:
        other = core.link()
        core.session.peer.command(b"JOIN", data)
        assert await core.read(other, len(expected)) == expected
