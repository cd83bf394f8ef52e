"""Frames of a WebSocket that a peer must not send: each ends the connection, with its reason (RFC 6455, RFC 45)."""

from __future__ import annotations

import pytest

from omq._core.wire.websocket import WebSocketCodec
from omq.errors import RemoteProtocolError
from tests.support.bare_connection import Driven
from tests.unit.conftest import until

#: To a client, so without masks: the frame, and a word of the reason.
BAD = {
    "masked": (b"\x82\x82\0\0\0\0\0a", "mask"),
    "fragment": (b"\x02\x02\0a", "fragment"),
    "compressed": (b"\xc2\x02\0a", "reserved bits"),
    "continuation": (b"\x80\x02\0a", "fragment"),
    "text": (b"\x81\x02\0a", "neither binary"),
    "reserved-opcode": (b"\x8b\x00", "neither binary"),
    "long-ping": (b"\x89\x7e\0\x7e", "size"),
    "empty": (b"\x82\x00", "size"),
    "sign-bit": (b"\x82\x7f\x80" + bytes(7), "size"),
    "padded-size": (b"\x82\x7e\0\x02\0a", "size"),
    "reserved-flags": (b"\x82\x02\x04a", "reserved ZMTP flags"),
}


@pytest.mark.parametrize(("frame", "word"), BAD.values(), ids=BAD.keys())
async def test_a_bad_frame_ends_the_connection(frame, word):
    with Driven() as core:
        other = core.link(codec=WebSocketCodec(as_client=True))
        other.sendall(b"\x82\x02\0a" + frame)
        await until(lambda: core.session.lost)
        (reason,) = core.session.lost
        assert isinstance(reason, RemoteProtocolError)
        assert word in str(reason)
        assert await core.recv(timeout=5) == b"a"


async def test_a_server_refuses_a_frame_without_a_mask():
    with Driven() as core:
        other = core.link(codec=WebSocketCodec(as_client=False))
        other.sendall(b"\x82\x02\0a")
        await until(lambda: core.session.lost)
        assert "mask" in str(core.session.lost[0])


async def test_a_close_frame_ends_the_connection_after_its_messages():
    with Driven() as core:
        other = core.link(codec=WebSocketCodec(as_client=True))
        other.sendall(b"\x82\x02\1a\x89\0\x82\x02\0b\x88\x02\x03\xe8")
        await until(lambda: core.session.lost)
        assert core.session.lost == [None]
        assert await core.recv_multipart(timeout=5) == [b"a", b"b"]


async def test_a_ping_is_answered_with_its_payload():
    with Driven() as core:
        other = core.link(codec=WebSocketCodec(as_client=False))
        other.sendall(b"\x89\x82\1\2\3\4" + bytes([ord("h") ^ 1, ord("i") ^ 2]))
        core.poller.dispatch()
        assert await core.read(other, 4) == b"\x8a\x02hi"
