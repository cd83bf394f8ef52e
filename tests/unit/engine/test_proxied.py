"""Connecting through a SOCKS proxy in both kinds of loop: the proxy's answers are read in the loop, byte by byte."""

import asyncio
import socket

import pytest

import omq.asyncio as omq
from tests.support.raw_peer import RawPeer
from tests.unit.conftest import on_both_loops
from tests.unit.engine.raw_listeners import FAST, accept, listening, port_of

pytestmark = on_both_loops
REPLY = b"\5\0\0\3\4name\0\1"


async def trickle(sock: socket.socket, data: bytes) -> None:
    for byte in data:
        await asyncio.get_running_loop().sock_sendall(sock, bytes([byte]))
        await asyncio.sleep(0.001)


async def read(sock: socket.socket, size: int) -> bytes:
    data = b""
    async with asyncio.timeout(5):
        while len(data) < size:
            data += await asyncio.get_running_loop().sock_recv(sock, size - len(data))
    return data


async def test_answers_that_come_byte_by_byte_and_the_endpoints_own_bytes_behind_them(make):
    with listening() as server:
        push = make(omq.PUSH, socks_proxy=f"127.0.0.1:{port_of(server)}")
        push.connect("tcp://far.invalid:77")
        with await accept(server) as sock:
            assert await read(sock, 3) == b"\5\1\0"
            await trickle(sock, b"\5\0")
            assert await read(sock, 18) == b"\5\1\0\3\x0bfar.invalid\0\x4d"
            await trickle(sock, REPLY)
            peer = RawPeer(sock)
            await peer.handshake(b"PULL")
            await push.send(b"x")
            assert await peer.next_frame() == (0, b"x")


async def test_a_loop_that_ends_while_the_proxy_is_asked_leaves_nothing_behind(make):
    """The test's own bound: no task, and no descriptor, is left."""
    with listening() as server:
        push = make(omq.PUSH, linger=0, socks_proxy=f"127.0.0.1:{port_of(server)}")
        push.connect("tcp://far.invalid:77")
        with await accept(server) as sock:
            assert await read(sock, 3) == b"\5\1\0"
            push.stop()
            async with asyncio.timeout(5):
                assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""


@pytest.mark.parametrize("answer", [b"", b"\5", b"\5\0\5\0"], ids=len)
async def test_a_proxy_that_hangs_up_is_dialled_again(make, answer):
    with listening() as server:
        push = make(omq.PUSH, linger=0, socks_proxy=f"127.0.0.1:{port_of(server)}", **FAST)
        push.connect("tcp://far.invalid:77")
        for _ in range(3):
            with await accept(server) as sock:
                await read(sock, 3)
                await trickle(sock, answer)
