"""The seam of the codecs: connections carry what they carry whatever it looks like on the wire."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import pytest

from omq._core.wire.codec import Codec
from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import encode_frame
from omq._core.wire.websocket import WebSocketCodec
from omq.errors import LocalProtocolError, RemoteProtocolError
from omq.zmtp.command import ping
from tests.support.bare_connection import Driven
from tests.unit.conftest import until
from tests.unit.core.sample_codecs import Raw, Web, Xored

#: Sizes at which something changes: headers, the batch, memory of its own, the slab, the large frame.
SIZES = [0, 1, 122, 123, 124, 125, 126, 252, 253, 254, 255, 256, 257, 4096, 4097, 32_760, 32_768, 32_769]
SIZES += [65_533, 65_536, 65_537, 131_072, 131_080, 1_048_576, 3_000_001]
MORE, COMMAND = 1, 4
WINK = b"\4WINKxx"


def body(size: int, seed: int = 0) -> bytes:
    return random.Random(size + seed).randbytes(size)


def plain() -> tuple[Codec, Codec]:
    return Codec(), Codec()


def curve() -> tuple[Codec, Codec]:
    key = Secret()
    return CurveCipher(key, True, 1, 2), CurveCipher(key, False, 2, 1)


def xored() -> tuple[Codec, Codec]:
    return Xored(), Xored()


def web() -> tuple[Codec, Codec]:
    return Web(as_client=False), Web(as_client=True)


def websocket() -> tuple[Codec, Codec]:
    return WebSocketCodec(as_client=False), WebSocketCodec(as_client=True)


def websocket_curve() -> tuple[Codec, Codec]:
    server, client = WebSocketCodec(as_client=False), WebSocketCodec(as_client=True)
    for codec, cipher in zip((server, client), curve(), strict=True):
        codec.encrypt_with(cipher)
    return server, client


class Joined:
    """Two connections, one at each end of a socket pair."""

    def __init__(self, codecs: tuple[Codec | None, Codec | None], **limits: Any) -> None:
        self.near, self.far = Driven(), Driven()
        ours, theirs = socket.socketpair()
        self.ours = self.near.attach(ours, codec=codecs[0], **limits)
        self.theirs = self.far.attach(theirs, codec=codecs[1], **limits)

    def close(self) -> None:
        self.near.close()
        self.far.close()

    def __enter__(self) -> Joined:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


CODECS = [plain, curve, xored, web, websocket, websocket_curve]
framed = pytest.mark.parametrize("codecs", CODECS, ids=lambda codecs: codecs.__name__)


@framed
@pytest.mark.parametrize("back", [False, True], ids=["out", "back"])
async def test_messages_of_every_size(codecs, back):
    with Joined(codecs()) as link:
        sender, receiver = (link.far, link.near) if back else (link.near, link.far)
        for size in SIZES:
            for data in (body(size), bytearray(body(size, 1))):
                sending = asyncio.create_task(sender.send(data))
                assert await receiver.recv(timeout=10) == bytes(data)
                await sending
        assert link.ours.lost == link.theirs.lost == []


@framed
async def test_parts_of_every_size_among_others(codecs):
    with Joined(codecs()) as link:
        messages = [[body(size, number) for size in SIZES[number::3]] for number in range(3)] * 2
        sending = asyncio.create_task(send_all(link.near, messages))
        for message in messages:
            assert await link.far.recv_multipart(timeout=10) == message
        await sending


async def send_all(core, messages):
    for message in messages:
        await core.send_multipart(message)


@framed
async def test_commands_leave_among_messages_and_are_handled_at_once(codecs):
    with Joined(codecs()) as link:
        for number in range(3):
            await link.near.send(b"%d" % number)
            link.ours.peer.control(encode_frame(WINK, command=True) + encode_frame(WINK + bytes(300), command=True))
        link.ours.peer.control(encode_frame(WINK + bytes(70_000), command=True))
        await until(lambda: len(link.theirs.commands) == 7)
        assert link.theirs.commands == [WINK, WINK + bytes(300)] * 3 + [WINK + bytes(70_000)]
        assert [await link.far.recv(timeout=5) for _ in range(3)] == [b"0", b"1", b"2"]


@framed
async def test_a_ping_is_answered(codecs):
    with Joined(codecs()) as link:
        link.ours.peer.control(ping(0, b"context"))
        link.ours.peer.control(ping(3, b"again"))
        await until(lambda: link.ours.peer.bytes_in)
        assert link.theirs.peer.pings == 2
        assert link.theirs.commands == [ping(3, b"again")[2:]], "a new time to live is for the session"


@framed
async def test_commands_behind_messages_that_are_not_taken_keep_no_memory(codecs):
    """The waiting commands are cut out from among them."""
    with Joined(codecs()) as link:
        await link.near.send(b"waits")
        for number in range(200):
            link.ours.peer.control(encode_frame(b"\4WINK" + bytes(5000), command=True) * 3)
            await until(lambda: len(link.theirs.commands) == 3)
            link.theirs.commands.clear()
            if number % 50 == 0:
                await link.near.send(b"%d" % number)
        assert link.theirs.peer.slabs <= 2
        assert [await link.far.recv(timeout=5) for _ in range(5)] == [b"waits", b"0", b"50", b"100", b"150"]
        assert link.theirs.peer.slabs == 0


@framed
async def test_many_at_once_of_a_size_that_grows(codecs):
    with Joined(codecs()) as link:
        for size in (1, 100, 200, 256, 300):
            messages = [body(size, number) for number in range(1500)]
            sending = asyncio.create_task(send_all(link.near, [[one] for one in messages]))
            assert [await link.far.recv(timeout=10) for _ in messages] == messages
            await sending


@framed
async def test_an_idle_connection_owns_no_slab(codecs):
    with Joined(codecs()) as link:
        await link.near.send(b"one")
        assert await link.far.recv(timeout=5) == b"one"
        link.ours.peer.control(encode_frame(WINK, command=True))
        await until(lambda: link.theirs.commands)
        assert link.theirs.peer.slabs == 0


@framed
async def test_a_large_message_into_the_callers_memory(codecs):
    """Octets that need no decoding are received there at once; either way the message is whole."""
    with Joined(codecs()) as link:
        for size in (100, 500_000, 500_001):
            mine = bytearray(600_000)
            receiving = asyncio.create_task(link.far.recv_into(mine, timeout=10))
            await asyncio.sleep(0)
            await link.near.send(body(size))
            assert await receiving == size
            assert mine[:size] == body(size)
        await link.near.send(b"next")
        assert await link.far.recv(timeout=5) == b"next"


@framed
@pytest.mark.parametrize("size", [1001, 100_000, 100_001])
async def test_a_message_above_the_limit(codecs, size):
    with Joined(codecs(), max_size=1000) as link:
        await link.near.send(body(1000))
        await link.near.send(body(size))
        await until(lambda: link.theirs.lost)
        assert "max_message_size=1000" in str(link.theirs.lost[0])
        assert await link.far.recv(timeout=5) == body(1000)


@framed
async def test_a_message_of_more_parts_than_allowed(codecs):
    with Joined(codecs(), max_parts=2) as link:
        await link.near.send_multipart([b"", body(100_000)])
        await link.near.send_multipart([b"", b"", body(100_000)])
        await until(lambda: link.theirs.lost)
        assert "max_parts=2" in str(link.theirs.lost[0])
        assert await link.far.recv_multipart(timeout=5) == [b"", body(100_000)]


async def test_without_a_codec_the_wire_is_that_of_the_plain_one():
    """The base class and the code that stands inlined for it understand each other."""
    for codecs in ((None, Codec()), (Codec(), None)):
        with Joined(codecs) as link:
            messages = [[body(size), b"", body(size, 1)] for size in SIZES]
            sending = asyncio.create_task(send_all(link.near, messages))
            for message in messages:
                assert await link.far.recv_multipart(timeout=10) == message
            await sending


@pytest.mark.parametrize("size", [10, 300, 70_000])
async def test_the_words_for_what_is_wrong_are_the_codecs(size):
    wire = Xored().encode_frame(0, b"good") + Xored().encode_frame(0, body(size))[:-1] + b"!"
    with Driven() as core:
        other = core.link(codec=Xored())
        await core.feed(other, wire)
        await until(lambda: core.session.lost)
        assert isinstance(core.session.lost[0], RemoteProtocolError)
        assert str(core.session.lost[0]) == "a sum that is wrong (-7)"
        assert await core.recv(timeout=5) == b"good"


async def test_a_codec_that_can_send_no_more_ends_the_connection_with_its_words():
    with Joined((Xored(left=2), Xored())) as link:
        await link.near.send(b"first")
        await link.near.send(b"last")
        assert [await link.far.recv(timeout=5) for _ in range(2)] == [b"first", b"last"]
        await link.near.send(b"one too many")
        await until(lambda: link.ours.lost)
        assert isinstance(link.ours.lost[0], LocalProtocolError)
        assert str(link.ours.lost[0]) == "no frames are left"


class Broken(Xored):
    def measure_frame(self, arrived):
        raise ZeroDivisionError("a mistake")


async def test_a_mistake_in_a_codec_ends_its_connection():
    with Joined((Xored(), Broken())) as link:
        await link.near.send(b"x")
        await until(lambda: link.theirs.lost)
        assert isinstance(link.theirs.lost[0], ZeroDivisionError)


@pytest.mark.parametrize("size", [1, 5, 1000, 200_000])
async def test_raw_octets_are_messages_both_ways(size):
    with Driven() as core:
        other = core.link(codec=Raw())
        data = body(size)
        await core.send(data)
        assert await core.read(other, size) == data
        await core.feed(other, data)
        got = b""
        while len(got) < size:
            got += await core.recv(timeout=5)
        assert got == data


async def test_raw_octets_are_taken_as_they_come():
    with Driven() as core:
        other = core.link(codec=Raw())
        for size in (1, 255, 256, 5000, 40_000, 40_000, 40_000):
            other.sendall(body(size))
            core.poller.dispatch()
        for size in (1, 255, 256, 5000, 40_000):
            assert await core.recv(timeout=5) == body(size)
        assert await core.recv(timeout=5) + await core.recv(timeout=5) == body(40_000) * 2
        core.session.peer.control(ping(0, b""))
        await core.send(b"")
        await core.send(b"behind a command and an empty message")
        behind = b"behind a command and an empty message"
        assert await core.read(other, len(behind)) == behind


@pytest.mark.parametrize("asks", [False, True], ids=["server", "client"])
async def test_codecs_exchange_control_frames_that_no_session_gets(asks):
    """WebSocket's PING and PONG are such commands."""
    codecs = Web(as_client=False), Web(as_client=True)
    with Joined(codecs) as link:
        ours = link.theirs if asks else link.ours
        await link.near.send(b"message")
        ours.peer.control(Web.word(Web.PING, b"are you there"))
        await until(lambda: codecs[asks].answers)
        assert codecs[asks].answers == [b"are you there"]
        assert link.ours.commands == link.theirs.commands == []
        assert await link.far.recv(timeout=5) == b"message"


async def test_a_peer_may_announce_its_end():
    with Joined(web()) as link:
        await link.near.send(b"last")
        link.ours.peer.control(Web.word(Web.CLOSE, b""))
        await until(lambda: link.theirs.lost)
        assert link.theirs.lost == [None]
        assert await link.far.recv(timeout=5) == b"last"


@pytest.mark.parametrize("cut", [1, 7, 100])
async def test_frames_cut_anywhere(cut):
    client = Web(as_client=True)
    wire = b"".join(
        client.encode_frame(flags, data) for flags, data in [(MORE, b"a"), (0, body(300)), (COMMAND, WINK), (0, b"")]
    )
    with Driven() as core:
        other = core.link(codec=Web(as_client=False))
        for at in range(0, len(wire), cut):
            other.sendall(wire[at : at + cut])
            core.poller.dispatch()
        assert await core.recv_multipart(timeout=5) == [b"a", body(300)]
        assert await core.recv(timeout=5) == b""
        assert core.session.commands == [WINK]


def test_a_codec_is_not_copied():
    import copy

    with pytest.raises(TypeError, match="not pickled or copied"):
        copy.copy(Codec())
