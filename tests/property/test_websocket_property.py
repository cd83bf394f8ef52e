"""The frames of WebSockets: whatever is sent arrives, however the network cuts it; what has not left comes back."""

import asyncio
import contextlib
import socket
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import encode_frame
from omq._core.wire.websocket import WebSocketCodec
from tests.support.bare_connection import Driven
from tests.support.hypothesis_profiles import examples
from tests.support.waits import BOUND

KEY = Secret(b"k" * 32)
SEALED = 33  # octets of a box, with the flags in it, next to its payload
#: Octets behind a header where its form changes, or where a slab or a portion ends.
EDGES = (0, 2, 125, 126, 255, 256, 4096, 8192, 32_768, 65_535, 65_536, 131_072)
SIZES = sorted(
    {
        size
        for edge in EDGES
        for extra in (0, 1, SEALED, SEALED + 1)
        for size in range(edge - extra - 2, edge - extra + 3)
        if size >= 0
    }
)

sizes = st.sampled_from(SIZES)
messages = st.lists(st.one_of(st.lists(sizes, min_size=1, max_size=4), st.none()), min_size=1, max_size=12)
roles = pytest.mark.parametrize("as_client", [False, True], ids=["server", "client"])
secured = pytest.mark.parametrize("curve", [False, True], ids=["clear", "curve"])


def codec(*, as_client: bool, curve: bool) -> WebSocketCodec:
    """One side's codec; the client of the WebSocket is that of CURVE."""
    made = WebSocketCodec(as_client=as_client)
    made.encrypt_with(CurveCipher(KEY, not as_client, 1, 1) if curve else None)
    return made


def content(kinds: list[list[int] | None]) -> tuple[list[list[bytes]], list[bytes]]:
    """Messages of parts that all differ, and commands."""
    sent = [
        [(b"%d.%d " % (number, part)).ljust(size, b".")[:size] for part, size in enumerate(some)]
        for number, some in enumerate(kinds)
        if some is not None
    ]
    return sent, [b"\4WINK%d" % number for number, some in enumerate(kinds) if some is None]


async def put(core: Driven, kinds: list[list[int] | None]) -> None:
    """Sends all of `content`."""
    sent, commands = content(kinds)
    left, orders = iter(sent), iter(commands)
    for some in kinds:
        if some is None:
            core.session.peer.control(encode_frame(next(orders), command=True))
        else:
            await core.send_multipart(next(left))


def taken(other: socket.socket) -> bytes:
    """Gives what has arrived at the other end."""
    data = bytearray()
    with contextlib.suppress(BlockingIOError):
        while more := other.recv(1 << 18):
            data += more
    return bytes(data)


async def drained(core: Driven, other: socket.socket) -> bytes:
    """All that a connection has to send."""
    data = b""
    async with asyncio.timeout(BOUND):
        while core.session.peer.unsent_bytes or core.send_queue.queue:
            data += taken(other)
            core.session.peer.flush_now()
            await asyncio.sleep(0)
    return data + taken(other)


def decoded(data: bytes, cuts: list[int], *, as_client: bool, curve: bool) -> tuple[list[list[bytes]], list[bytes]]:
    """The messages and commands of a stream, which comes in pieces."""

    async def play() -> tuple[list[list[bytes]], list[bytes]]:
        edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        with Driven(queue=False) as core:
            other = core.link(codec=codec(as_client=as_client, curve=curve))
            other.setblocking(False)
            for start, end in pairwise(edges):
                at = start
                while at < end:
                    assert core.session.lost == []
                    with contextlib.suppress(BlockingIOError):
                        at += other.send(data[at:end])
                    core.poller.dispatch()
            async with asyncio.timeout(BOUND):
                while core.session.peer.bytes_in < len(data) and not core.session.lost:
                    core.poller.dispatch()
                    await asyncio.sleep(0)
            assert core.session.lost == []
            return core.session.messages, core.session.commands

    return asyncio.run(play())


@roles
@secured
@examples(15)
@given(messages, st.lists(st.integers(0, 1 << 20), max_size=12), st.booleans())
def test_any_messages_and_commands_survive_any_cut(as_client, curve, kinds, cuts, begins):
    async def play() -> bytes:
        with Driven() as core:
            other = core.link(codec=codec(as_client=as_client, curve=curve))
            other.setblocking(False)
            await put(core, kinds)
            return await drained(core, other)

    data = asyncio.run(play())
    if begins:  # each octet of the first frames comes alone
        cuts = [*cuts, *range(40)]
    assert decoded(data, cuts, as_client=not as_client, curve=curve) == content(kinds)


@roles
@secured
@examples(15)
@given(messages, st.integers(0, 200_000))
def test_what_has_not_left_comes_back(as_client, curve, kinds, much):
    async def play() -> tuple[bytes, list[list[bytes]]]:
        with Driven() as core:
            other = core.link(buffer=4096, codec=codec(as_client=as_client, curve=curve))
            other.setblocking(False)
            peer = core.session.peer
            await put(core, kinds)
            data = b""
            while len(data) < much and peer.unsent_bytes:
                data += taken(other)
                peer.flush_now()
            back = [*peer.take_back(), *core.send_queue.queue]
            while peer.unsent_bytes:
                data += taken(other)
                peer.flush_now()
            return data + taken(other), [[held] if isinstance(held, bytes) else list(held) for held in back]

    data, back = asyncio.run(play())
    arrived, _ = decoded(data, [], as_client=not as_client, curve=curve)
    assert arrived + back == content(kinds)[0]


@examples(20)
@given(st.lists(st.sampled_from([0, 1, 124, 125, 126, 65_534, 65_535]), min_size=1, max_size=130))
def test_each_frame_of_a_client_has_a_mask_of_its_own(lengths):
    client, server = WebSocketCodec(as_client=True), WebSocketCodec(as_client=False)
    wire = client.wrap(b"".join(encode_frame(bytes(length)) for length in lengths))
    masks, found = [], []
    while wire:
        frame = server.unwrap(wire, 1 << 20)
        assert frame is not None
        _, _, body, size = frame
        begin = size - len(body) - 1  # of the flags, which are masked with the payload
        masks.append(wire[begin - 4 : begin])
        found.append(len(body))
        wire = wire[size:]
    assert found == lengths
    assert len(set(masks)) >= len(masks) - 1, "two in 130 may be the same by chance, three will not be"
