"""The connections of a user count from the end of their handshakes to their own end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import omq
import omq.asyncio as aio
from omq.broker.core.user_limits import HANDSHAKE_TIMEOUT_S
from omq.broker.server import AsyncServer
from omq.broker.zmtp.server import ZmtpServer
from omq.event import Event, EventKind
from tests.support.async_waits import until

pytestmark = pytest.mark.timeout(60)


class Connections:
    """Connections of users to a broker, and what it counts."""

    def __init__(self, server: AsyncServer) -> None:
        assert server._zmtp is not None
        self.zmtp: ZmtpServer = server._zmtp
        self._dealers: list[aio.DEALER] = []
        self._broker = server.broker
        self._endpoint = server.endpoints["zmtp"]

    def open(self, user: str = "alice", identity: bytes = b"") -> aio.DEALER:
        security = omq.PlainClient(user, "secret")
        dealer = aio.DEALER(connect=self._endpoint, identity=identity, security=security, linger=0)
        self._dealers.append(dealer)
        return dealer

    def counted(self, user: str = "alice") -> int:
        return self._broker.user_limits.of(user).connections

    def failed(self) -> int:
        return sum(self._broker.handshake_failures.values())

    def close(self) -> None:
        for dealer in self._dealers:
            dealer.stop()


@asynccontextmanager
async def limited() -> AsyncIterator[Connections]:
    """Runs a broker whose users may have two connections each."""
    async with AsyncServer(
        memory=True,
        security=omq.PlainServer({"alice": "secret", "bob": "secret"}),
        user_limits=[{"who": "*", "connections": 2}],
    ) as server:
        connections = Connections(server)
        try:
            yield connections
        finally:
            connections.close()


async def test_connections_with_one_identity_count_each() -> None:
    async with limited() as connections:
        connections.open(identity=b"me")
        await until(lambda: connections.counted() == 1)
        connections.open(identity=b"me")
        await until(lambda: connections.counted() == 2)
        assert len(connections.zmtp.sessions) == 1
        third = connections.open()
        await until(connections.failed)
        assert not third.peers
        assert connections.counted() == 2


async def test_a_connection_that_is_not_served_counts() -> None:
    async with limited() as connections:
        connections.open("bob", identity=b"me")
        await until(lambda: connections.counted("bob"))
        alices = [connections.open(identity=b"me") for _ in range(2)]
        await until(lambda: connections.counted() == 2)
        alices[0].stop()
        await until(lambda: connections.counted() == 1)
        assert connections.counted("bob") == 1


async def test_a_connection_counts_after_its_session_has_ended() -> None:
    async with limited() as connections:
        dealer = connections.open()
        await until(lambda: connections.zmtp.sessions)
        (session,) = connections.zmtp.sessions.values()
        session.connection_lost()
        session.connection_lost()
        assert connections.counted() == 1
        dealer.stop()
        await until(lambda: not connections.counted())


async def test_connections_are_counted_again_after_missed_events() -> None:
    async with limited() as connections:
        dealers = [connections.open(identity=identity) for identity in (b"me", b"other")]
        await until(lambda: connections.counted() == 2)
        del connections.zmtp.sessions[b"other"]  # as if its event had been missed
        connections.zmtp._on_event(Event(kind=EventKind.MISSED, time=0.0, count=1))
        assert connections.counted() == len(connections.zmtp.sessions) == 2
        for dealer in dealers:
            dealer.stop()
        await until(lambda: not connections.counted())
        await until(lambda: not connections.zmtp.sessions)


async def test_an_admitted_client_counts_until_its_handshake_times_out() -> None:
    async with limited() as connections:
        assert connections.zmtp._socket.options.handshake_timeout == HANDSHAKE_TIMEOUT_S
