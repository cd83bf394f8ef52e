"""The connections of a server's socket, in order with its messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import omq.asyncio as omq
from omq.event import Event, EventKind
from omq.serving.connection_events import MAX_LAST_BATCHES, ConnectionEvents
from tests.unit.conftest import on_both_loops, until

pytestmark = on_both_loops

log = logging.getLogger("omq.test")


class Server:
    """A ROUTER with its events; `notes` has what happened, in order."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.socket = omq.ROUTER(linger=0)
        self.events = ConnectionEvents(self.socket, self.note, log, lambda: self.notes.append("idle"))
        self.endpoint = self.socket.bind("tcp://127.0.0.1:*")

    def note(self, event: Event) -> None:
        assert event.kind is not EventKind.BIND_FAILED
        if event.kind is EventKind.HANDSHAKE_SUCCEEDED and event.peer is not None:
            self.notes.append(f"+{event.peer.identity.decode()}")
        elif event.kind is EventKind.DISCONNECTED and event.peer is not None:
            self.notes.append(f"-{event.peer.identity.decode()}")
            self.events.leave(event.peer.identity)

    def dealer(self, identity: str) -> Any:
        return omq.DEALER(connect=self.endpoint, identity=identity.encode(), linger=1.0)


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    one = Server()
    try:
        yield one
    finally:
        await one.events.stop()
        await one.socket.close()
        one.events.close()


async def test_a_peer_is_known_before_its_first_message_and_leaves_after_its_last() -> None:
    async with server() as one:
        async with one.dealer("a") as a:
            await a.send(b"first")
            await a.send(b"last")
        await until(lambda: not one.socket.peers)
        first = await one.socket.recv_multipart()
        one.events.handle()
        assert (first, one.notes) == ([b"a", b"first"], ["+a", "-a"])
        assert one.events.is_leaving(b"a")
        assert one.events.take_gone() == []
        assert (await one.socket.recv_multipart())[1] == b"last"
        assert one.events.take_gone() == [b"a"]
        assert not one.events.is_leaving(b"a")
        assert one.events.take_gone() == []


async def test_messages_of_others_do_not_keep_a_peer_for_ever() -> None:
    async with server() as one, one.dealer("b") as other:
        await other.send(b"never received")
        await until(one.events.messages_wait)
        one.events.leave(b"a")
        for _ in range(MAX_LAST_BATCHES):
            assert one.events.take_gone() == []
        assert one.events.take_gone() == [b"a"]


async def test_a_peer_that_comes_back_stays() -> None:
    async with server() as one:
        one.events.leave(b"a")
        one.events.stay(b"a")
        assert one.events.take_gone() == []


async def test_events_are_handled_while_no_messages_come() -> None:
    async with server() as one:
        one.events.start("connections")
        async with one.dealer("a"):
            await until(lambda: "+a" in one.notes)
        await until(lambda: "-a" in one.notes)
        await until(lambda: one.notes[-1] == "idle")


async def test_events_wait_while_they_are_held() -> None:
    async with server() as one:
        one.events.start("connections")
        one.events.held = True
        async with one.dealer("a") as a:
            await a.wait_connected()
            await until(lambda: bool(one.socket.peers))
            await asyncio.sleep(0.05)
            assert one.notes == []
            one.events.held = False
            one.events.handle()
            assert one.notes == ["+a"]


async def test_peers_are_counted_again_after_events_were_missed() -> None:
    async with server() as one, one.dealer("new") as new, one.dealer("known") as known:
        for dealer in (new, known):
            await dealer.wait_connected()
        await until(lambda: len(one.socket.peers) == 2)
        assert [peer.identity for peer in one.events.recount({b"known", b"gone"})] == [b"new"]
        assert one.events.take_gone() == [b"gone"]


async def test_an_error_is_logged_and_later_events_are_handled(caplog: pytest.LogCaptureFixture) -> None:
    async with server() as one:

        def fail(event: Event) -> None:
            one.events._on_event = one.note
            raise RuntimeError("an error")

        one.events._on_event = fail
        one.events.start("connections")
        async with one.dealer("a"):
            await until(lambda: "+a" in one.notes)
        await until(lambda: "-a" in one.notes)
    assert "an event of a connection could not be handled" in caplog.text


async def test_a_closed_socket_has_no_messages() -> None:
    async with server() as one:
        one.events.start("connections")
        await one.socket.close()
        assert not one.events.messages_wait()
        one.events.handle()
