"""Nothing is allocated per message on the asyncio path but what the user gets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from itertools import repeat
from pathlib import Path

import pytest
import uvloop

import omq.asyncio as omq
from omq._core.debug import DEBUG, Allocations

MESSAGES = 100_000
PER_SEND, PER_RECV = 0.05, 2.05  # the bytes and the StopIteration; and what a batch costs, shared by its messages
PER_WAIT = 0.2

counted = pytest.mark.skipif(not DEBUG, reason="allocations are counted in a build with OMQ_DEBUG=1: make test-debug")

#: The other side, in a process of its own: bytes only, so that nothing of it is counted here.
OTHER_SIDE = """
import socket, sys
from tests.support.raw_peer import GREETING, frames, ready
port, kind, size, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with socket.create_connection(("127.0.0.1", port)) as sock:
    sock.sendall(GREETING + ready(kind.encode()))
    data = b""
    while b"READY" not in data:
        data += sock.recv(4096)
    if kind == "PUSH":
        frame = frames(bytes(size))
        block = frame * max(1, 262144 // len(frame))
        whole, rest = divmod(count, len(block) // len(frame))
        for _ in range(whole):
            sock.sendall(block)
        sock.sendall(frame * rest)
    buffer = bytearray(1 << 20)
    while sock.recv_into(buffer):
        pass
"""


def run(main: Callable[[], Awaitable[int]]) -> int:
    async def bounded() -> int:
        async with asyncio.timeout(50):
            return await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


def other_side(endpoint: str, kind: str, size: int, count: int) -> subprocess.Popen[bytes]:
    port = endpoint.rpartition(":")[2]
    root = Path(__file__).parents[3]
    return subprocess.Popen([sys.executable, "-c", OTHER_SIDE, port, kind, str(size), str(count)], cwd=root)


@counted
@pytest.mark.parametrize("size", [16, 128, 16_384])
def test_a_send_allocates_nothing_of_its_own(size: int) -> None:
    async def main() -> int:
        async with omq.PUSH(bind="tcp://127.0.0.1:*") as push:
            with other_side(push.endpoints[0], "PULL", size, 0):
                await push.wait_connected(timeout=20)
                message = bytes(size)
                for _ in repeat(None, 5000):
                    await push.send(message)
                with Allocations() as allocations:
                    for _ in repeat(None, MESSAGES):
                        await push.send(message)
                await push.close()
        return allocations.calls

    # Large messages fill the kernel's buffer: a wait for room allocates some, shared by as many as there is room for
    # then; on a busy machine that is for few at a time.
    assert run(main) / MESSAGES <= (PER_SEND if size < 4096 else PER_WAIT)


@counted
@pytest.mark.parametrize("size", [16, 128, 16_384])
def test_a_recv_allocates_what_it_gives(size: int) -> None:
    async def main() -> int:
        async with omq.PULL(bind="tcp://127.0.0.1:*") as pull:
            with other_side(pull.endpoints[0], "PUSH", size, MESSAGES + 5000):
                for _ in repeat(None, 5000):
                    await pull.recv()
                with Allocations() as allocations:
                    for _ in repeat(None, MESSAGES):
                        await pull.recv()
                await pull.close()
        return allocations.calls

    assert run(main) / MESSAGES <= PER_RECV


@counted
def test_inproc_allocates_what_it_gives() -> None:
    async def main() -> int:
        async with omq.PULL(bind="inproc://allocations") as pull, omq.PUSH(connect="inproc://allocations") as push:
            await push.wait_connected(timeout=5)
            message = bytes(128)
            with Allocations() as allocations:
                for _ in repeat(None, MESSAGES):
                    await push.send(message)
                    await pull.recv()
        return allocations.calls

    assert run(main) / MESSAGES <= PER_SEND


@counted
def test_the_counter_counts() -> None:
    with Allocations() as allocations:
        for _ in repeat(None, 1000):
            bytearray(100)
    assert 1000 <= allocations.calls < 3500
    with Allocations() as allocations:
        pass
    assert allocations.calls < 10


@counted
def test_one_counts_at_a_time() -> None:
    with Allocations(), pytest.raises(omq.StateError, match="already"):
        Allocations().start()
    one = Allocations()
    one.start()
    del one
    with Allocations():
        pass


@pytest.mark.skipif(DEBUG, reason="for a build without OMQ_DEBUG")
def test_a_usual_build_does_not_count() -> None:
    with pytest.raises(omq.StateError, match="OMQ_DEBUG"):
        Allocations().start()


def test_stop_without_start_is_refused() -> None:
    with pytest.raises(omq.StateError, match="not being counted"):
        Allocations().stop()
