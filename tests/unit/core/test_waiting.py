"""Messages that wait for a peer with room, and the thread without the GIL that gives them away."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pytest

import omq
import omq.asyncio
from tests.support import waits
from tests.support.async_waits import stable, until

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\0" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\0\0\0"


def peer(server: socket.socket, socket_type: bytes = b"PULL") -> socket.socket:
    """A connection of omq's whose other side is not read unless the test does."""
    connection, _ = server.accept()
    ready = READY + bytes([len(socket_type)]) + socket_type
    connection.sendall(GREETING + b"\x04" + bytes([len(ready)]) + ready)
    return connection


def read(connections: list[socket.socket], size: int) -> None:
    """Reads *size* bytes of each connection."""
    for connection in connections:
        left = size
        while left:
            left -= len(connection.recv(min(left, 65536)))


@pytest.mark.parametrize("peers", [1, 3])
async def test_a_call_that_waits_for_room_gets_what_the_thread_has_made(peers: int) -> None:
    """The queue empties into the kernels during a blocked turn of the loop; they are full again when it ends."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        async with omq.asyncio.PUSH(send_hwm=20 * peers, linger=0) as push:
            connections = []
            for _ in range(peers):
                push.connect(endpoint)
                connections.append(await loop.run_in_executor(None, peer, server))
            await push.wait_connected(peers, timeout=10)
            accepted = 0

            async def fill() -> None:
                nonlocal accepted
                while True:
                    await push.send(bytes(100_000))
                    accepted += 1

            filling = asyncio.create_task(fill())
            before = await stable(lambda: accepted, quiet=0.2)
            reader = threading.Thread(target=read, args=(connections, 1_000_000))
            reader.start()
            time.sleep(0.5)  # noqa: ASYNC251 - the owner is busy
            reader.join(10)
            assert accepted == before
            await until(lambda: accepted >= before + 5)
            filling.cancel()
            for connection in connections:
                connection.close()


async def test_what_the_thread_has_given_counts_as_sent() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        async with omq.asyncio.PUSH(connect=endpoint, linger=0) as push:
            connection = await loop.run_in_executor(None, peer, server)
            await push.wait_connected(timeout=10)
            for _ in range(200):
                await push.send(bytes(100_000))
            reader = threading.Thread(target=read, args=([connection], 200 * 100_009))
            reader.start()
            reader.join(10)  # the owner is busy: its loop has no turn
            assert not reader.is_alive()
            await until(lambda: push.peers[0].messages_out >= 200)
            assert push.peers[0].messages_out == 200
            connection.close()


def test_a_call_gets_the_room_that_another_call_has_made() -> None:
    """The call that receives handles the events and leaves the kernel full again. The call that sends wakes up, too."""
    accepted = 0

    def fill() -> None:
        nonlocal accepted
        with contextlib.suppress(omq.ClosedError):
            while True:
                dealer.send(bytes(100_000))
                accepted += 1

    def receive() -> None:
        with contextlib.suppress(omq.ClosedError):
            dealer.recv()

    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with omq.DEALER(connect=endpoint, send_hwm=20, linger=0) as dealer, peer(server, b"DEALER") as connection:
            connection.settimeout(10)
            dealer.wait_connected(timeout=10)
            threads = [threading.Thread(target=receive), threading.Thread(target=fill)]
            try:
                threads[0].start()
                waits.until(lambda: dealer.readable.waiting, "the call that receives")
                threads[1].start()
                for _ in range(10):
                    waits.until(lambda: dealer.writable.waiting, "the call that sends")
                    before = waits.stable(lambda: accepted, quiet=0.05)
                    read([connection], 2_000_000)
                    waits.until(lambda before=before: accepted > before, "a call that has room", 5)
            finally:
                dealer.stop()
                for thread in threads:
                    thread.join(10)
