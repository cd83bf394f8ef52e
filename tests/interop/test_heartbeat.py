"""Heartbeats with libzmq, both ways: who asks, who answers, and nobody taken for dead. behaviour.md, "Heartbeats"."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import omq.asyncio as omq
from tests.interop.conftest import Fresh
from tests.interop.libzmq import Libzmq, attended
from tests.interop.loop import on_uvloop

PAIRS = [
    ("PUSH", "PULL"),
    ("PUB", "SUB"),
    ("REQ", "REP"),
    ("DEALER", "ROUTER"),
    ("DEALER", "DEALER"),
    ("PAIR", "PAIR"),
    ("XPUB", "XSUB"),
]
OURS: dict[str, Any] = {"heartbeat_interval": 0.05, "heartbeat_timeout": 0.2, "heartbeat_ttl": 0.3}
THEIRS: dict[str, Any] = {"heartbeat_ivl": 50, "heartbeat_timeout": 200, "heartbeat_ttl": 300}


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda name: str(name))
@pytest.mark.parametrize("asks", ["omq", "libzmq", "both"])
@on_uvloop
async def test_no_false_timeouts(libzmq: Libzmq, fresh: Fresh, one: str, other: str, asks: str) -> None:
    ours = OURS if asks != "libzmq" else {}
    theirs = THEIRS if asks != "omq" else {}
    async with getattr(omq, one)(bind=fresh("tcp"), linger=0, **ours) as socket:
        zmq_socket = libzmq.open(other, connect=socket.endpoints[0], **theirs)
        await attended(zmq_socket, socket.wait_connected(timeout=5))
        (before,) = socket.peers
        await asyncio.sleep(0.8)
        (after,) = socket.peers
        assert after.since == before.since, "the connection was lost in between"
        # It was not idle: somebody asked and somebody answered.
        assert after.bytes_in > before.bytes_in + 30


@on_uvloop
async def test_libzmq_hears_a_peer_that_is_not_read(libzmq: Libzmq, fresh: Fresh) -> None:
    """Its PINGs stand behind more messages than recv_hwm; a PONG that nobody asked for keeps the connection."""
    async with omq.PULL(bind=fresh("tcp"), linger=0, recv_hwm=2) as pull:
        push = libzmq.open(
            "PUSH", connect=pull.endpoints[0], heartbeat_ivl=150, heartbeat_timeout=400, sndhwm=0, sndbuf=8192
        )
        await attended(push, pull.wait_connected(timeout=5))
        for _ in range(3000):
            await push.send(bytes(2000))
        (before,) = pull.peers
        await asyncio.sleep(1.5)
        (after,) = pull.peers
        assert after.since == before.since
        for _ in range(3000):
            assert len(await attended(push, pull.recv(timeout=5))) == 2000
