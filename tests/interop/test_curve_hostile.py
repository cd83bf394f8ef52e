"""A stranger's attacks on a CURVE server: each case ends by a named error, and the next client is served.

behaviour.md, "Security": each byte of HELLO and INITIATE, each length, replays, wrong roles, connections that break.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import omq.asyncio as omq
from omq._core.wire.crypto import Secret
from omq.event import HandshakeFailure
from omq.types import SocketType
from omq.zmtp import z85
from omq.zmtp.command import encode_command, parse_command
from omq.zmtp.curve import CurveClient
from omq.zmtp.handshake import Handshake
from tests.interop.conftest import Fresh
from tests.interop.disconnect_reasons import DisconnectReasons, body_of, cut, ends_by_itself, flipped, judged, verdicts
from tests.interop.run_coroutine import on_uvloop
from tests.support.raw_zmtp import RawPeer, dialled, frame, greeting

SERVER_PUBLIC, SERVER_SECRET = omq.curve_keypair()
GREETING = 64  # octets
STEPS = ["HELLO", "INITIATE"]
NAMED = "does not allow it|without a proper name"

#: A body's fields, their octets, and the report of an altered one (RFC 26, The HELLO and The INITIATE Command).
FIELDS: dict[str, list[tuple[int, str]]] = {
    "HELLO": [
        (6, NAMED),
        (2, "HELLO of CurveZMQ .*, which is not known"),
        (72, "HELLO of CURVE whose padding is not zero"),
        (32 + 8 + 80, "a HELLO that does not open"),
    ],
    "INITIATE": [
        (9, NAMED),
        (16, "an INITIATE with the cookie of another connection"),
        (80, "an INITIATE whose cookie does not open"),
        (8, "an INITIATE whose nonce is not above|an INITIATE that does not open"),
        (10_000, "an INITIATE that does not open"),
    ],
}
#: What is reported of data that are too short, up to how many octets.
SHORT = {"HELLO": (194, "instead of 194"), "INITIATE": (248, "at least 248")}

#: Spoilt bytes, how the handshake ends, and what is reported of it.
Case = tuple[bytes, HandshakeFailure, str]


def altered(step: str, sent: bytes) -> Iterator[Case]:
    """Each byte changed."""
    head = len(sent) - len(body_of(sent))
    fields = [reason for size, reason in FIELDS[step] for _ in range(size)]
    for at, spoilt in enumerate(flipped(sent)):
        yield spoilt, judged(spoilt), "" if at < head else fields[at - head]


def shortened(step: str, sent: bytes) -> Iterator[Case]:
    """The command with data of each length, and the frame cut off at each length by a stranger who hangs up."""
    least, reason = SHORT[step]
    for spoilt in cut(sent):
        if not ends_by_itself(spoilt):
            yield spoilt, HandshakeFailure.HUNG_UP, ""
        elif len(body_of(spoilt)) - 1 - len(step) < least:
            yield spoilt, HandshakeFailure.PROTOCOL, reason
        else:
            yield spoilt, HandshakeFailure.PROTOCOL, f"an? {step} that does not open"


class Stranger:
    """A good client's handshake over a raw connection, to be spoilt."""

    def __init__(self, peer: RawPeer, properties: dict[bytes, bytes] | None = None) -> None:
        self.peer = peer
        secret = Secret()
        client = CurveClient(z85.decode(SERVER_PUBLIC), secret.public(), secret)
        self.handshake = Handshake(socket_type=SocketType.PUSH, mechanism=client, properties=properties)

    async def until(self, step: str) -> bytes:
        """Sends all that comes before a command, and gives that command's frame."""
        await self.peer.send(self.handshake.start())
        sent = self.handshake.receive(await self.peer.read(GREETING))
        if step == "HELLO":
            return sent
        await self.peer.send(sent)
        return self.handshake.receive(await self.answer(b"WELCOME"))

    async def finish(self) -> None:
        """Does the whole handshake."""
        await self.peer.send(await self.until("INITIATE"))
        self.handshake.receive(await self.answer(b"READY"))

    async def answer(self, name: bytes) -> bytes:
        """The frame of the server's next command."""
        found = parse_command((await self.peer.frame())[1])
        assert found.name == name
        return encode_command(name, found.body)


class Server:
    """A server of CURVE, what it reports of its handshakes, and a proof that the next client is served."""

    def __init__(self, pull: Any, reported: DisconnectReasons) -> None:
        self.pull = pull
        self.reported = reported
        self.endpoint: str = pull.endpoints[0]

    async def next_client(self) -> None:
        async with omq.PUSH(connect=self.endpoint, security=omq.CurveClient(SERVER_PUBLIC)) as push:
            await push.send(b"good", timeout=5)
            assert await self.pull.recv(timeout=5) == b"good"
            await self.reported.succeeded()


@asynccontextmanager
async def serving(fresh: Fresh, **options: Any) -> AsyncIterator[Server]:
    """A server; at its end nothing but what the good clients sent has arrived."""
    async with omq.PULL(bind=fresh("tcp"), linger=0, security=omq.CurveServer(SERVER_SECRET), **options) as pull:
        async with verdicts(pull) as reported:
            yield Server(pull, reported)
        assert not await pull.poll(timeout=0)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("spoil", [altered, shortened])
@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))  # of the cases, a test each
@on_uvloop
async def test_each_byte_and_each_length(fresh: Fresh, step: str, spoil: Any, quarter: int) -> None:
    number = quarter
    async with serving(fresh) as server:
        while True:
            async with dialled(server.endpoint) as peer:
                sent = await Stranger(peer).until(step)
                cases = list(spoil(step, sent))
                spoilt, category, reason = cases[number]
                await peer.send(spoilt)
                if category is HandshakeFailure.PROTOCOL:
                    await peer.ended()
            await server.reported.failed(category, reason)
            await server.next_client()
            number += 4
            if number >= len(cases):
                break
    assert number > 200


def sent_twice(sent: bytes, recorded: bytes) -> bytes:
    return sent + sent


def recorded_elsewhere(sent: bytes, recorded: bytes) -> bytes:
    return recorded


def instead(frame: bytes) -> Callable[[bytes, bytes], bytes]:
    return lambda sent, recorded: frame


#: Where, what is sent there, and what that is called.
OUT_OF_PLACE: dict[str, tuple[str, Callable[[bytes, bytes], bytes], str]] = {
    "INITIATE-of-another-first": ("HELLO", recorded_elsewhere, "'INITIATE' where CURVE does not allow it"),
    "WELCOME-from-a-client": ("HELLO", instead(encode_command(b"WELCOME", bytes(160))), "'WELCOME' where"),
    "READY-from-a-client": ("HELLO", instead(encode_command(b"READY", bytes(64))), "'READY' where"),
    "ERROR-from-a-client": ("HELLO", instead(encode_command(b"ERROR", b"\x03400")), "'ERROR' where"),
    "a-MESSAGE-first": ("HELLO", instead(encode_command(b"MESSAGE", bytes(40))), "'MESSAGE' where"),
    "a-message-in-the-clear": ("HELLO", instead(frame(b"evil")), "a message before the handshake is done"),
    "HELLO-twice": ("HELLO", sent_twice, "'HELLO' where CURVE does not allow it"),
    "INITIATE-replayed": ("INITIATE", recorded_elsewhere, "the cookie of another connection: replayed"),
    "HELLO-late": ("INITIATE", instead(encode_command(b"HELLO", bytes(194))), "'HELLO' where"),
    "WELCOME-late": ("INITIATE", instead(encode_command(b"WELCOME", bytes(160))), "'WELCOME' where"),
    "READY-late": ("INITIATE", instead(encode_command(b"READY", bytes(64))), "'READY' where"),
    "a-message-late": ("INITIATE", instead(frame(b"evil")), "a message before the handshake is done"),
    "INITIATE-of-a-cookie-alone": ("INITIATE", instead(encode_command(b"INITIATE", bytes(96))), "at least 248"),
}


@pytest.mark.parametrize("case", OUT_OF_PLACE)
@on_uvloop
async def test_replayed_reordered_and_in_the_wrong_role(fresh: Fresh, case: str) -> None:
    step, spoil, reason = OUT_OF_PLACE[case]
    async with serving(fresh) as server:
        async with dialled(server.endpoint) as peer:
            recorded = await Stranger(peer).until("INITIATE")
        await server.reported.failed(HandshakeFailure.HUNG_UP, "it did not accept WELCOME|reset")
        async with dialled(server.endpoint) as peer:
            await peer.send(spoil(await Stranger(peer).until(step), recorded))
            await peer.ended()
        await server.reported.failed(HandshakeFailure.PROTOCOL, reason)
        await server.next_client()


@pytest.mark.parametrize("at_once", [False, True], ids=["after-READY", "in-one-burst"])
@on_uvloop
async def test_an_initiate_replayed_where_traffic_flows(fresh: Fresh, at_once: bool) -> None:
    async with serving(fresh) as server:
        async with dialled(server.endpoint) as peer:
            stranger = Stranger(peer)
            sent = await stranger.until("INITIATE")
            await peer.send(sent * 2 if at_once else sent)
            if not at_once:
                await stranger.answer(b"READY")
                await peer.send(sent)
            await peer.ended()
        await server.reported.succeeded()
        await server.reported.lost("a frame that is not a MESSAGE command")
        await server.next_client()


@pytest.mark.parametrize("late", [False, True], ids=["replayed", "reordered"])
@on_uvloop
async def test_a_message_that_comes_twice_or_too_late_1189(fresh: Fresh, late: bool) -> None:
    async with serving(fresh) as server:
        async with dialled(server.endpoint) as peer:
            stranger = Stranger(peer)
            await stranger.finish()
            session = stranger.handshake.codec
            assert session is not None
            first, second = (frame(session.seal(body) or b"") for body in (b"first", b"second"))
            await peer.send(second + first if late else first + first)
            await peer.ended()
        assert await server.pull.recv(timeout=5) == (b"second" if late else b"first")
        await server.reported.succeeded()
        await server.reported.lost("a MESSAGE whose nonce is not above the last one's: replayed or reordered")
        await server.next_client()


@pytest.mark.parametrize("size", [256, 257, 500, 60_000])
@on_uvloop
async def test_an_initiate_with_many_metadata_is_read_cve_2019_13132(fresh: Fresh, size: int) -> None:
    """libzmq had 256 bytes of its stack for them. test_zmtp_curve.py has more than we take."""
    async with serving(fresh) as server:
        async with dialled(server.endpoint) as peer:
            stranger = Stranger(peer, {b"X-many": b"m" * size})
            await stranger.finish()
            found = (await server.reported.succeeded()).peer
            assert found is not None
            assert found.properties[b"x-many"] == b"m" * size
        await server.next_client()


@pytest.mark.parametrize("part", ["nothing", "greeting", "HELLO", "INITIATE"])
@on_uvloop
async def test_a_reset_in_the_middle(fresh: Fresh, part: str) -> None:
    async with serving(fresh) as server:
        for _ in range(10):
            async with dialled(server.endpoint) as peer:
                if part == "nothing":
                    await peer.read(GREETING)  # a reset before that may come before the connection is accepted
                elif part == "greeting":
                    await peer.send(greeting(mechanism=b"CURVE"))
                    await peer.read(GREETING)
                else:
                    await peer.send((await Stranger(peer).until(part))[:-1])
                peer.reset()
            await server.reported.failed(HandshakeFailure.HUNG_UP)
            await server.next_client()
