"""Lent memory: nothing is copied, and each loan ends when the last use of its memory has."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest

import omq
import omq.asyncio
from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import encode_frame
from omq._core.wire.loan import Loan, loans
from tests.support.bare_connection import Driven
from tests.unit.conftest import until
from tests.unit.core.test_waiting import peer, read

SIZE = 1_000_000
SUBSCRIBE_TO_ALL = b"\x04\x0a\x09SUBSCRIBE"


def lent(size: int = SIZE, fill: bytes = b"a") -> tuple[bytearray, Loan, threading.Event]:
    event = threading.Event()
    memory = bytearray(fill * size)
    return memory, Loan(memory, event), event


def test_a_loan_ends_with_its_last_reference() -> None:
    memory, loan, event = lent(10)
    assert id(loan) in loans
    with pytest.raises(BufferError):
        memory.append(0)
    del loan
    assert event.is_set()
    memory.append(0)


@pytest.mark.parametrize("size", [0, 100, 4096])
async def test_a_small_part_is_copied(size: int) -> None:
    with Driven() as core:
        other = core.link(buffer=8192)
        memory, loan, event = lent(size)
        await core.send(loan)
        del loan
        assert event.is_set()
        assert await core.read(other, len(encode_frame(bytes(memory)))) == encode_frame(bytes(memory))


@pytest.mark.parametrize("size", [4097, 70_000, SIZE])
async def test_a_large_part_is_not_copied(size: int) -> None:
    """A change before the end of the loan shows on the other side."""
    with Driven() as core:
        other = core.link(buffer=8192)
        await core.send(bytes(100_000))  # the kernel is full
        memory, loan, event = lent(size)
        await core.send(loan)
        del loan
        assert not event.is_set()
        memory[-1:] = b"z"
        await core.read(other, len(encode_frame(bytes(100_000))))
        assert await core.read(other, len(encode_frame(bytes(memory)))) == encode_frame(bytes(memory))
        await until(event.is_set)
        memory.append(0)


async def test_messages_that_wait_keep_the_memory_by_reference() -> None:
    with Driven() as core:
        other = core.link(buffer=8192)
        every = [lent(fill=bytes([number])) for number in range(1, 6)]
        for _, loan, _ in every:
            await core.send_multipart([b"head", loan, loan])
        memories, events = [memory for memory, _, _ in every], [event for _, _, event in every]
        del every, loan
        assert not any(event.is_set() for event in events)
        memories[-1][0] = 0
        for number, memory in enumerate(memories):
            frames = (
                encode_frame(b"head", more=True) + encode_frame(bytes(memory), more=True) + encode_frame(bytes(memory))
            )
            assert await core.read(other, len(frames)) == frames
            await until(events[number].is_set)


async def test_encrypted_memory_is_free_at_once() -> None:
    one, another = Secret(b"1" * 32), Secret(b"2" * 32)
    with Driven() as core:
        core.link(buffer=8192, codec=CurveCipher(one.shared(another.public()), False, 0, 0))
        _, loan, event = lent()
        await core.send(loan)
        del loan
        assert event.is_set()


async def test_loans_end_with_the_connection_or_go_to_the_next_peer() -> None:
    """Nothing of the second message has left: it is given back, and the next peer gets it."""
    with Driven() as core:
        other = core.link(buffer=8192)
        (_, first, began), (memory, second, waited) = lent(), lent(fill=b"b")
        await core.send(first)
        await core.send_multipart([second, b"tail"])
        del first, second
        await core.read(other, 50_000)
        other.close()
        await until(began.is_set)
        again = core.link(buffer=8192)
        frames = encode_frame(bytes(memory), more=True) + encode_frame(b"tail")
        assert await core.read(again, len(frames)) == frames
        await until(waited.is_set)


async def test_loans_of_a_closed_connection_end() -> None:
    events = []
    with Driven() as core:
        core.link(buffer=8192)
        for _ in range(3):
            _, loan, event = lent()
            events.append(event)
            await core.send(loan)
            del loan
        assert not any(event.is_set() for event in events)
    core.send_queue.surrender([])
    await until(lambda: all(event.is_set() for event in events))


@pytest.mark.parametrize("several", [False, True], ids=["part", "parts"])
async def test_the_background_thread_sends_lent_memory(several: bool) -> None:
    """The loop does not run: the thread without the GIL takes messages from the queue, by reference."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with omq.asyncio.PUSH(linger=0) as push:
            push.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
            connection = await loop.run_in_executor(None, peer, server)
            await push.wait_connected(timeout=10)
            every = [lent(fill=bytes([number])) for number in range(30)]
            expected = b""
            for memory, loan, _ in every:
                parts = [bytes(memory), b"x", bytes(memory)] if several else [bytes(memory)]
                await (push.send_multipart([loan, b"x", loan]) if several else push.send(loan))
                expected += b"".join(encode_frame(part, more=part is not parts[-1]) for part in parts)
            events = [event for _, _, event in every]
            del every, loan
            assert not events[-1].is_set()
            got = bytearray()

            def take() -> None:
                connection.settimeout(10)
                with connection:
                    while len(got) < len(expected) or not got.endswith(expected):  # the handshake is first
                        got.extend(connection.recv(65536))

            reader = threading.Thread(target=take)
            reader.start()
            reader.join(20)  # the loop does not run
            assert not reader.is_alive()
            await until(lambda: all(event.is_set() for event in events))


def test_three_subscribers_share_one_loan() -> None:
    with contextlib.ExitStack() as stack:
        pub = stack.enter_context(omq.PUB(linger=0))
        connections = []
        for _ in range(3):
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server.settimeout(10)
            pub.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
            connections.append(stack.enter_context(peer(server, b"SUB")))
            connections[-1].sendall(SUBSCRIBE_TO_ALL)
            connections[-1].settimeout(10)
        pub.wait_subscribed(n=3, timeout=10)
        _, loan, event = lent(20_000_000)  # more than two kernels take
        pub.send(loan)
        del loan
        for connection in connections:
            assert not event.is_set()
            read([connection], 20_000_000)
        assert event.wait(10)


def test_the_receiver_over_inproc_gets_bytes() -> None:
    with omq.PULL() as pull, omq.PUSH() as push:
        endpoint = pull.bind("inproc://loans")
        push.connect(endpoint)
        memory, loan, event = lent()
        push.send(loan)
        del loan
        assert event.is_set()
        assert pull.recv(timeout=10) == bytes(memory)
        content = bytes(SIZE)
        push.send_multipart([b"head", Loan(content, None)])
        assert pull.recv_multipart(timeout=10)[1] is content
