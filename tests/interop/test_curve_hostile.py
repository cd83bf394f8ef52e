"""What a stranger may do to a CURVE server in the middle of a handshake: after each case the next client is served.

behaviour.md, "Security": each byte of HELLO and INITIATE, each length, replays, wrong roles, connections that break.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import omq.asyncio as omq
from omq._core.wire.crypto import Secret
from omq.event import EventKind, HandshakeFailure
from omq.types import SocketType
from omq.zmtp import z85
from omq.zmtp.command import encode_command, encode_properties, parse_command
from omq.zmtp.curve import CookieKeys, CurveClient, CurveServer
from omq.zmtp.handshake import Handshake
from tests.interop.conftest import Fresh
from tests.interop.loop import on_uvloop
from tests.interop.rawpeer import RawPeer, dialled, greeting

SERVER_PUBLIC, SERVER_SECRET = omq.curve_keypair()
GREETING = 64  # octets
STEPS = ["HELLO", "INITIATE"]


class Stranger:
    """A good client's handshake over a raw connection, to be spoilt."""

    def __init__(self, peer: RawPeer) -> None:
        self.peer = peer
        secret = Secret()
        client = CurveClient(z85.decode(SERVER_PUBLIC), secret.public(), secret)
        self._handshake = Handshake(socket_type=SocketType.PUSH, mechanism=client)

    async def until(self, step: str) -> bytes:
        """Says all that comes before a command, and gives that command's frame."""
        await self.peer.send(self._handshake.start())
        says = self._handshake.receive(await self.peer.read(GREETING))
        if step == "HELLO":
            return says
        await self.peer.send(says)
        _, welcome = await self.peer.frame()
        return self._handshake.receive(encode_command(b"WELCOME", parse_command(welcome).body))


@asynccontextmanager
async def serving(fresh: Fresh, **options: Any) -> AsyncIterator[tuple[Any, Callable[[], Any]]]:
    """A server, and a proof that the next client is served and that nothing else has arrived."""
    async with omq.PULL(bind=fresh("tcp"), linger=0, security=omq.CurveServer(SERVER_SECRET), **options) as pull:

        async def next_client() -> None:
            async with omq.PUSH(connect=pull.endpoints[0], security=omq.CurveClient(SERVER_PUBLIC)) as push:
                await push.send(b"good", timeout=5)
                assert await pull.recv(timeout=5) == b"good"

        yield pull, next_client


def flipped(says: bytes) -> Iterator[tuple[bytes, bool]]:
    """Each byte changed; and whether the server cannot but find out at once: a header may announce a longer frame."""
    body = 2 if says[0] == 4 else 9
    for at in range(len(says)):
        yield says[:at] + bytes([says[at] ^ 1 << at % 8]) + says[at + 1 :], at >= body


def cut(says: bytes) -> Iterator[tuple[bytes, bool]]:
    """The body at each length, and the bytes at each length, after which the stranger hangs up."""
    command = parse_command(says[2:] if says[0] == 4 else says[9:])
    for size in range(len(command.body)):
        yield encode_command(command.name, command.body[:size]), True
    for size in range(len(says)):
        yield says[:size], False


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("spoil", [flipped, cut], ids=["flipped", "cut"])
@on_uvloop
async def test_each_byte_and_each_length(fresh: Fresh, step: str, spoil: Any) -> None:
    async with serving(fresh) as (pull, next_client):
        async with dialled(pull.endpoints[0]) as peer:
            count = sum(1 for _ in spoil(await Stranger(peer).until(step)))
        assert count > 200
        for number in range(count):
            async with dialled(pull.endpoints[0]) as peer:
                says = await Stranger(peer).until(step)
                spoilt, noticed = list(spoil(says))[number]
                await peer.send(spoilt)
                if noticed:
                    await peer.ended()
            await next_client()
        assert not await pull.poll(timeout=0)


@on_uvloop
async def test_replayed_reordered_and_in_the_wrong_role(fresh: Fresh) -> None:
    welcome = encode_command(b"WELCOME", bytes(160))
    async with serving(fresh) as (pull, next_client):
        async with dialled(pull.endpoints[0]) as peer:
            recorded = await Stranger(peer).until("INITIATE")
            await peer.send(recorded)
            assert parse_command((await peer.frame())[1]).name == b"READY"
            await peer.send(recorded)  # a handshake command where traffic flows
            await peer.ended()
        await next_client()
        cases: list[tuple[str, Callable[[bytes], bytes]]] = [
            ("HELLO", lambda says: recorded),
            ("HELLO", lambda says: welcome),
            ("HELLO", lambda says: encode_command(b"READY", bytes(64))),
            ("HELLO", lambda says: encode_command(b"ERROR", b"\x03400")),
            ("HELLO", lambda says: says + says),
            ("INITIATE", lambda says: recorded),
            ("INITIATE", lambda says: welcome),
            ("INITIATE", lambda says: encode_command(b"HELLO", bytes(194))),
            ("INITIATE", lambda says: encode_command(b"READY", bytes(64))),
            ("INITIATE", lambda says: says + says),
        ]
        for step, says in cases:
            async with dialled(pull.endpoints[0]) as peer:
                await peer.send(says(await Stranger(peer).until(step)))
                await peer.ended()
            await next_client()
        assert not await pull.poll(timeout=0)


class FalseServer:
    """Answers a client with a spoilt command and, when it dials again, with a good one; for each way to spoil it."""

    def __init__(self, step: bytes, spoil: Any) -> None:
        self._step, self._spoil = step, spoil
        self._secret = Secret(SERVER_SECRET)
        self._cookies = CookieKeys()
        self._number, self._count, self._served = 0, 0, True
        self.over = asyncio.Event()
        self.complaint: BaseException | None = None
        self.serving: list[Any] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        try:
            if not self.over.is_set():
                async with asyncio.timeout(10):
                    await self._talk(reader, writer)
        except BaseException as error:
            self.complaint = error
            self.over.set()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mechanism = CurveServer(z85.decode(SERVER_PUBLIC), self._secret, self._cookies)
        ours = Handshake(socket_type=SocketType.PULL, mechanism=mechanism)
        writer.write(ours.start())
        while not ours.done:
            data = await reader.read(4096)
            assert data, "the client hangs up on a good server"
            says = ours.receive(data)
            if ours.question is not None:
                says += ours.answer()
            if self._served and self._step in says:
                ways = list(self._spoil(says))
                self._count = len(ways)
                spoilt, noticed = ways[self._number]
                writer.write(spoilt)
                self._served = False
                if noticed:
                    assert await reader.read() == b"", "it goes on with a spoilt handshake"
                return
            writer.write(says)
        self._served = True
        self._number += 1
        if self._number == self._count:
            self.over.set()


@pytest.mark.parametrize("step", [b"WELCOME", b"READY"], ids=lambda step: step.decode())
@pytest.mark.parametrize("spoil", [flipped, cut], ids=["flipped", "cut"])
@on_uvloop
async def test_a_client_dials_again_after_each_bad_answer(step: bytes, spoil: Any) -> None:
    false = FalseServer(step, spoil)
    listening = await asyncio.start_server(false.serve, "127.0.0.1", 0)
    endpoint = f"tcp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    client = omq.CurveClient(SERVER_PUBLIC)
    async with omq.PUSH(connect=endpoint, security=client, linger=0, reconnect_interval=0.001):
        async with asyncio.timeout(60):
            await false.over.wait()
        assert false.complaint is None, false.complaint
    listening.close()
    await asyncio.gather(*false.serving)


@pytest.mark.parametrize("spoil", [flipped, cut], ids=["flipped", "cut"])
@pytest.mark.parametrize("step", STEPS)
@on_uvloop
async def test_each_byte_and_each_length_of_plain(fresh: Fresh, step: str, spoil: Any) -> None:
    hello = encode_command(b"HELLO", b"\x04user\x04word")
    says = hello if step == "HELLO" else encode_command(b"INITIATE", encode_properties({b"Socket-Type": b"PUSH"}))
    security = omq.PlainServer({"user": "word"})
    async with omq.PULL(bind=fresh("tcp"), linger=0, security=security) as pull:
        for spoilt, noticed in spoil(says):
            async with dialled(pull.endpoints[0]) as peer:
                await peer.send(greeting(mechanism=b"PLAIN"))
                await peer.read(GREETING)
                if step == "INITIATE":
                    await peer.send(hello)
                    assert parse_command((await peer.frame())[1]).name == b"WELCOME"
                await peer.send(spoilt)
                # A length of no octets at all is good where there are only metadata; another value may be good, too.
                if noticed and step == "HELLO":
                    await peer.ended()
            async with omq.PUSH(connect=pull.endpoints[0], security=omq.PlainClient("user", "word")) as push:
                await push.send(b"good", timeout=5)
                assert await pull.recv(timeout=5) == b"good"
        assert not await pull.poll(timeout=0)


@pytest.mark.parametrize("said", ["nothing", "greeting", "HELLO", "INITIATE"])
@on_uvloop
async def test_a_reset_in_the_middle(fresh: Fresh, said: str) -> None:
    async with serving(fresh) as (pull, next_client):
        for _ in range(10):
            async with dialled(pull.endpoints[0]) as peer:
                if said == "greeting":
                    await peer.send(greeting(mechanism=b"CURVE"))
                elif said != "nothing":
                    await peer.send(await Stranger(peer).until(said))
                peer.reset()
            await next_client()


@on_uvloop
async def test_each_failure_has_a_name(fresh: Fresh) -> None:
    spoils: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        "does not open": ("HELLO", lambda says: says[:-1] + bytes([says[-1] ^ 1])),
        "instead of 194": ("HELLO", lambda says: encode_command(b"HELLO", bytes(193))),
        "is not known": ("HELLO", lambda says: encode_command(b"HELLO", b"\x02" + bytes(193))),
        "cookie": ("INITIATE", lambda says: encode_command(b"INITIATE", bytes(400))),
        "does not allow it": ("INITIATE", lambda says: encode_command(b"HELLO", bytes(194))),
    }
    async with serving(fresh) as (pull, next_client), pull.monitor() as monitor:
        for reason, (step, spoil) in spoils.items():
            async with dialled(pull.endpoints[0]) as peer:
                await peer.send(spoil(await Stranger(peer).until(step)))
                await peer.ended()
            async with asyncio.timeout(5):
                async for event in monitor:
                    if event.kind is EventKind.HANDSHAKE_FAILED:
                        break
            assert event.category is HandshakeFailure.PROTOCOL
            assert reason in event.reason, event.reason
            await next_client()
