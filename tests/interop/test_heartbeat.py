"""Heartbeats with libzmq, both ways: no living peer is taken for dead. behaviour.md, "Heartbeats"."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import omq.asyncio as omq
from omq.event import EventKind
from tests.interop.conftest import Fresh
from tests.interop.libzmq import Libzmq, attended
from tests.interop.run_coroutine import on_uvloop
from tests.support.parameters import each_value_once

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


@each_value_once(mechanism=["NULL", "CURVE"], asks=["omq", "libzmq", "both"])
@on_uvloop
async def test_no_false_timeouts(libzmq: Libzmq, fresh: Fresh, asks: str, mechanism: str) -> None:
    """All pairs side by side: they wait."""
    await asyncio.gather(*(_stays(libzmq, fresh, one, other, asks, mechanism) for one, other in PAIRS))


async def _stays(libzmq: Libzmq, fresh: Fresh, one: str, other: str, asks: str, mechanism: str) -> None:
    ours = OURS if asks != "libzmq" else {}
    theirs = THEIRS if asks != "omq" else {}
    if mechanism == "CURVE":
        # PING and PONG are sealed: libzmq and we mark them as commands inside the box.
        (public, secret), (its_public, its_secret) = omq.curve_keypair(), omq.curve_keypair()
        ours = {**ours, "security": omq.CurveServer(secret)}
        theirs = {
            **theirs,
            "curve_serverkey": public,
            "curve_publickey": its_public,
            "curve_secretkey": its_secret,
        }
    async with getattr(omq, one)(bind=fresh("tcp"), linger=0, **ours) as socket:
        zmq_socket = libzmq.open(other, connect=socket.endpoints[0], **theirs)
        await attended(zmq_socket, socket.wait_connected(timeout=5))
        (before,) = socket.peers
        await asyncio.sleep(0.8)  # several intervals
        (after,) = socket.peers
        assert after.since == before.since, f"{one} lost {other} in between"
        # It was not idle: one side asked and the other answered.
        assert after.bytes_in > before.bytes_in + 30, f"{one} has received nothing from {other}"


@on_uvloop
async def test_libzmq_that_is_not_read_gives_up_and_comes_back(libzmq: Libzmq, fresh: Fresh) -> None:
    """Its PINGs stand behind more messages than recv_hwm: as with libzmq, it has no answer. Nothing is lost."""
    async with omq.PULL(bind=fresh("tcp"), linger=0, recv_hwm=2) as pull:
        push = libzmq.open("PUSH", connect=pull.endpoints[0], heartbeat_ivl=150, heartbeat_timeout=400, sndhwm=0)
        await attended(push, pull.wait_connected(timeout=5))
        # The kernel takes them all: what libzmq has in its own hands when it gives a connection up, it drops.
        for number in range(300):
            await push.send(number.to_bytes(2000, "big"))
        async with pull.monitor() as monitor:
            async with asyncio.timeout(10):
                async for event in monitor:
                    if event.kind is EventKind.HANDSHAKE_SUCCEEDED:
                        break
        for number in range(300):
            assert int.from_bytes(await attended(push, pull.recv(timeout=5)), "big") == number


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@on_uvloop
async def test_libzmq_at_its_high_water_mark_loses_nothing(libzmq: Libzmq, fresh: Fresh, transport: str) -> None:
    """Answers to PINGs wait for its reader. If its connection were closed, it would abort over ipc (`!_io_error`)."""
    # A timeout that a busy machine does not reach: here libzmq's abort would be that of the test's process.
    beats: dict[str, Any] = {"heartbeat_interval": 0.05, "heartbeat_timeout": 1.5}
    async with omq.PUSH(bind=fresh(transport), linger=0, **beats) as push:
        pull = libzmq.open("PULL", connect=push.endpoints[0], rcvhwm=2)
        await attended(pull, push.wait_connected(timeout=5))
        for number in range(500):
            await push.send(number.to_bytes(12, "big"))
        await asyncio.sleep(3.5)  # more than twice the timeout
        for number in range(500):
            assert int.from_bytes(await asyncio.wait_for(pull.recv(), 5), "big") == number


class Relay:
    """Passes bytes on between a client and a server, until a command to swallow them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: list[asyncio.StreamWriter] = []
        self._serving: list[Any] = []
        self.swallows = False

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.append(asyncio.current_task())
        others, other = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends += [writer, other]
        await asyncio.gather(self._pump(reader, other), self._pump(others, writer), return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            if not self.swallows:
                writer.write(data)
        writer.close()

    async def close(self) -> None:
        self._server.close()
        for end in self._ends:
            end.transport.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)


@pytest.mark.parametrize("side", ["server", "client"])
@on_uvloop
async def test_a_curve_peer_that_falls_silent_is_lost(fresh: Fresh, side: str) -> None:
    """Without a FIN: PINGs are sealed, and go unanswered."""
    public, secret = omq.curve_keypair()
    beats = {"heartbeat_interval": 0.1, "heartbeat_timeout": 0.3}
    on_server, on_client = (beats, {}) if side == "server" else ({}, beats)
    pull = omq.PULL(bind=fresh("tcp"), linger=0, security=omq.CurveServer(secret), **on_server)
    async with pull:
        relay = Relay(int(pull.endpoints[0].rsplit(":", 1)[1]))
        client = omq.CurveClient(public)
        async with omq.PUSH(connect=await relay.open(), linger=0, security=client, **on_client) as push:
            try:
                await push.send(b"sealed")
                assert await pull.recv(timeout=5) == b"sealed"
                observed = pull if side == "server" else push
                (before,) = observed.peers
                await asyncio.sleep(0.6)  # twice the timeout: PONGs come
                assert observed.peers[0].since == before.since
                async with observed.monitor() as monitor:
                    relay.swallows = True
                    async with asyncio.timeout(5):
                        async for event in monitor:
                            if event.kind is EventKind.DISCONNECTED:
                                break
                    assert "heartbeat" in event.reason.lower(), event.reason
            finally:
                await relay.close()
