"""The bytes that omq sends and accepts, against peers made by hand: greeting, handshake, traffic."""

from __future__ import annotations

import asyncio
import re
import struct
from contextlib import AsyncExitStack
from typing import Any

import pytest
import zmq

import omq.asyncio as omq
from omq.errors import Timeout
from tests.interop.conftest import Fresh
from tests.interop.libzmq import Libzmq, endpoint_of
from tests.interop.payloads import octets
from tests.interop.run_coroutine import on_uvloop
from tests.support.raw_zmtp import COMMAND, MORE, command, dialled, frame, greeting, listening, ready

#: Every version that a peer may announce, and whether it takes subscriptions as commands.
VERSIONS = pytest.mark.parametrize(
    ("version", "commands"),
    [
        pytest.param((3, 0), False, id="3.0"),
        pytest.param((3, 1), True, id="3.1"),
        pytest.param((3, 2), True, id="3.2"),
        pytest.param((4, 0), True, id="4.0"),
    ],
)


# --- greeting and handshake -------------------------------------------------------------------------


@on_uvloop
async def test_omq_greets_with_64_bytes(fresh: Fresh) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        theirs = await peer.greet()
        assert theirs[:1] == b"\xff"
        assert theirs[9:12] == b"\x7f\x03\x01"
        assert theirs[12:] == b"NULL" + bytes(16) + b"\0" + bytes(31)


@on_uvloop
async def test_libzmq_names_its_own_properties_as_it_likes(libzmq: Libzmq, fresh: Fresh) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull:
        push = libzmq.open("PUSH")
        for text in ("X-my key:1", "X-Name:2", "X-NAME:3", "X-\u00e4:4"):
            push.setsockopt(zmq.METADATA, text.encode())
        push.connect(pull.endpoints[0])
        await push.send(b"hello")
        assert await pull.recv(timeout=5) == b"hello"
        properties = dict(pull.peers[0].properties)
        assert properties.pop(b"x-name") in (b"2", b"3")
        assert properties == {b"socket-type": b"PUSH", b"x-my key": b"1", "x-\u00e4".encode(): b"4"}


@pytest.mark.parametrize(
    ("kind", "peer_kind", "options", "expected"),
    [
        pytest.param("PULL", "PUSH", {}, {b"socket-type": b"PULL"}, id="PULL"),
        pytest.param("PUB", "SUB", {}, {b"socket-type": b"PUB"}, id="PUB"),
        pytest.param(
            "DEALER",
            "ROUTER",
            {"identity": b"me"},
            {b"socket-type": b"DEALER", b"identity": b"me"},
            id="DEALER-named",
        ),
    ],
)
@on_uvloop
async def test_omq_sends_its_type_and_identity(
    fresh: Fresh, kind: str, peer_kind: str, options: dict[str, bytes], expected: dict[bytes, bytes]
) -> None:
    make = getattr(omq, kind)
    async with make(bind=fresh("tcp"), linger=0.0, **options) as sock, dialled(sock.endpoints[0]) as peer:
        body = await peer.shake(peer_kind)
    found = {}
    while body:
        name, body = body[1 : 1 + body[0]], body[1 + body[0] :]
        (size,) = struct.unpack(">I", body[:4])
        found[name.lower()], body = body[4 : 4 + size], body[4 + size :]
    assert found.pop(b"identity", b"") == expected.pop(b"identity", b"")
    assert found == expected


@pytest.mark.parametrize("step", [1, 2, 7, 63, 65, 1000])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@on_uvloop
async def test_everything_in_small_pieces(fresh: Fresh, step: int, transport: str) -> None:
    large = octets(20_000)
    before = greeting() + ready("PUSH")
    after = frame(b"one") + frame(b"two", MORE) + frame(b"parts") + frame(large[:300]) + frame(b"")
    async with omq.PULL(bind=fresh(transport), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        for start in range(0, len(before), step):
            await peer.send(before[start : start + step])
            await asyncio.sleep(0)  # a turn of the loop, so that the pieces arrive as pieces
        await peer.read(64)
        await peer.frame()
        for start in range(0, len(after), step):
            await peer.send(after[start : start + step])
            await asyncio.sleep(0)
        assert await pull.recv(timeout=5) == b"one"
        assert await pull.recv_multipart(timeout=5) == [b"two", b"parts"]
        assert await pull.recv(timeout=5) == large[:300]
        assert await pull.recv(timeout=5) == b""


@on_uvloop
async def test_everything_in_one_piece(fresh: Fresh) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.send(greeting() + ready("PUSH") + frame(b"one") + frame(b"two"))
        assert [await pull.recv(timeout=5) for _ in range(2)] == [b"one", b"two"]


@on_uvloop
async def test_nothing_follows_ready_before_the_peer_is_ready(fresh: Fresh) -> None:
    async with omq.PUSH(bind=fresh("tcp"), linger=0.0) as push, dialled(push.endpoints[0]) as peer:
        await push.send(b"early")
        await peer.greet()
        assert await peer.frame() == (COMMAND, ready("PUSH")[2:])
        assert await peer.is_silent()
        await peer.send(ready("PULL"))
        assert await peer.frame() == (0, b"early")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([(b"Identity", b"")], id="empty-identity"),
        pytest.param([(b"Identity", b"push")], id="identity-of-a-type-that-has-none"),
        pytest.param([(b"Resource", b"a/b"), (b"X-app", b"")], id="unknown-properties"),
        pytest.param([(b"X-large", bytes(300))], id="long-READY"),
        pytest.param([(b"X-larger", bytes(5000))], id="READY-of-5000-bytes"),
    ],
)
@on_uvloop
async def test_properties_that_are_fine(fresh: Fresh, more: list[tuple[bytes, bytes]]) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.shake("PUSH", *more)
        await peer.send(frame(b"hello"))
        assert await pull.recv(timeout=5) == b"hello"


@on_uvloop
async def test_property_names_have_no_case(fresh: Fresh) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.greet()
        await peer.send(re.sub(b"Socket-Type", b"sOCKET-tYPE", ready("PUSH")) + frame(b"hello"))
        assert await pull.recv(timeout=5) == b"hello"


@on_uvloop
async def test_greeting_padding_and_filler_mean_nothing(fresh: Fresh) -> None:
    strange = bytearray(greeting((3, 9)))
    strange[1:9] = b"anything"
    strange[33:] = b"\x55" * 31
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.send(bytes(strange))
        await peer.read(64)
        await peer.send(ready("PUSH"))
        await peer.frame()
        await peer.send(frame(b"hello"))
        assert await pull.recv(timeout=5) == b"hello"


@on_uvloop
async def test_omq_dials_again_after_a_failed_handshake() -> None:
    async with (
        listening() as listener,
        omq.PUSH(connect=listener.endpoint, reconnect_interval=0.01, linger=0.0) as push,
    ):
        await push.send(b"patience")
        bad = await listener.accept()
        await bad.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await bad.ended()
        good = await listener.accept()
        await good.shake("PULL")
        assert await good.frame() == (0, b"patience")


# --- subscriptions ----------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("kind", ["SUB", "XSUB"])
@pytest.mark.parametrize("omq_binds", [True, False], ids=["omq-binds", "omq-connects"])
@on_uvloop
async def test_omq_subscribes_in_the_form_of_the_peer_version(
    fresh: Fresh, version: tuple[int, int], commands: bool, kind: str, omq_binds: bool
) -> None:
    async with listening() as listener, getattr(omq, kind)(linger=0.0) as sub:
        if omq_binds:
            connection = dialled(sub.bind(fresh("tcp")))
            peer = await connection.__aenter__()
        else:
            sub.connect(listener.endpoint)
            peer = await listener.accept()
        sub.subscribe(b"A")
        await peer.shake("XPUB", version=version)
        expected = b"\x04\x0b\x09SUBSCRIBEA" if commands else b"\x00\x02\x01A"
        assert await peer.read(len(expected)) == expected
        sub.subscribe(b"")
        expected = b"\x04\x0a\x09SUBSCRIBE" if commands else b"\x00\x01\x01"
        assert await peer.read(len(expected)) == expected
        sub.unsubscribe(b"A")
        expected = b"\x04\x08\x06CANCELA" if commands else b"\x00\x02\x00A"
        assert await peer.read(len(expected)) == expected
        await peer.send(b"\x00\x04ALOL")
        assert await sub.recv(timeout=5) == b"ALOL"
        if omq_binds:
            await connection.__aexit__(None, None, None)


@VERSIONS
@pytest.mark.parametrize("kind", ["SUB", "XSUB"])
@on_uvloop
async def test_long_topics_go_out_in_long_frames(version: tuple[int, int], commands: bool, kind: str) -> None:
    topic = octets(256)
    make = getattr(omq, kind)
    async with listening() as listener, make(connect=listener.endpoint, subscribe=topic, linger=0.0):
        peer = await listener.accept()
        await peer.shake("PUB", version=version)
        expected = (COMMAND, b"\x09SUBSCRIBE" + topic) if commands else (0, b"\x01" + topic)
        assert await peer.frame() == expected


@pytest.mark.parametrize("version", [(3, 0), (3, 1)], ids=["3.0", "3.1"])
@pytest.mark.parametrize("as_command", [False, True], ids=["as-message", "as-command"])
@pytest.mark.parametrize("kind", ["PUB", "XPUB"])
@on_uvloop
async def test_omq_takes_subscriptions_in_either_form(
    fresh: Fresh, version: tuple[int, int], as_command: bool, kind: str
) -> None:
    on, off = (b"SUBSCRIBE", b"CANCEL") if as_command else (b"\x01", b"\x00")

    def subscription_frame(what: bytes, prefix: bytes) -> bytes:
        return command(what, prefix) if as_command else frame(what + prefix)

    async with getattr(omq, kind)(bind=fresh("tcp"), linger=0.0) as pub, dialled(pub.endpoints[0]) as peer:
        await peer.shake("SUB", version=version)
        await peer.send(subscription_frame(on, b"A"))
        if kind == "XPUB":
            assert await pub.recv(timeout=5) == b"\x01A"
        await pub.wait_subscribed(b"A", timeout=5)
        await pub.send(b"B")
        await pub.send_multipart([b"ALOL", b"more"])
        assert await peer.frame() == (MORE, b"ALOL")
        assert await peer.frame() == (0, b"more")
        await peer.send(subscription_frame(off, b"A") + subscription_frame(on, b"C"))
        await pub.wait_subscribed(b"C", timeout=5)
        await pub.send(b"A is gone")
        await pub.send(b"C")
        assert await peer.frame() == (0, b"C")


@pytest.mark.parametrize("library", ["omq", "zmq"])
@on_uvloop
async def test_one_cancel_ends_repeated_subscriptions(libzmq: Libzmq, fresh: Fresh, library: str) -> None:
    # RFC 37 would have them counted; libzmq never has, and a peer that counts does so before sending.
    async with AsyncExitStack() as stack:
        xpub: Any
        if library == "zmq":
            xpub = libzmq.open("XPUB", bind=fresh("tcp"))
            endpoint = endpoint_of(xpub)
        else:
            xpub = await stack.enter_async_context(omq.XPUB(bind=fresh("tcp"), linger=0.0))
            (endpoint,) = xpub.endpoints
        peer = await stack.enter_async_context(dialled(endpoint))
        await peer.shake("SUB")
        await peer.send(command(b"SUBSCRIBE", b"A") * 3 + command(b"CANCEL", b"A"))
        assert [await xpub.recv() for _ in range(2)] == [b"\x01A", b"\x00A"]
        await peer.send(command(b"SUBSCRIBE", b"fence"))
        assert await xpub.recv() == b"\x01fence"
        await xpub.send(b"A is gone")
        await xpub.send(b"fence")
        assert await peer.frame() == (0, b"fence")


@on_uvloop
async def test_cancels_of_nothing_are_no_news(fresh: Fresh) -> None:
    async with omq.XPUB(bind=fresh("tcp"), linger=0.0) as xpub, dialled(xpub.endpoints[0]) as peer:
        await peer.shake("SUB")
        await peer.send(command(b"CANCEL", b"A") * 3 + command(b"CANCEL") + command(b"SUBSCRIBE", b"A"))
        assert await xpub.recv(timeout=5) == b"\x01A"
        await xpub.send(b"A")
        assert await peer.frame() == (0, b"A")


# --- traffic ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 254, 255, 256, 257, 65535, 65536, 1 << 20], ids=lambda size: f"{size}-bytes")
@on_uvloop
async def test_frames_are_short_up_to_255_bytes(fresh: Fresh, size: int) -> None:
    body = octets(size)
    head = b"\x00" + bytes((size,)) if size < 256 else b"\x02" + struct.pack(">Q", size)
    async with omq.PAIR(bind=fresh("tcp"), linger=0.0) as pair, dialled(pair.endpoints[0]) as peer:
        await peer.shake("PAIR")
        await pair.send(body)
        assert await peer.read(len(head)) == head
        assert await peer.read(size) == body
        await peer.send(head + body)
        assert await pair.recv(timeout=5) == body


@pytest.mark.parametrize("size", [0, 5, 255], ids=lambda size: f"{size}-bytes")
@on_uvloop
async def test_long_frames_with_little_in_them_are_read(fresh: Fresh, size: int) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.shake("PUSH")
        await peer.send(b"\x02" + struct.pack(">Q", size) + octets(size) + frame(b"next"))
        assert await pull.recv(timeout=5) == octets(size)
        assert await pull.recv(timeout=5) == b"next"


@on_uvloop
async def test_req_and_rep_on_the_wire(fresh: Fresh) -> None:
    async with omq.REP(bind=fresh("tcp"), linger=0.0) as rep, dialled(rep.endpoints[0]) as peer:
        await peer.shake("REQ")
        await peer.send(frame(b"", MORE) + frame(b"ask"))
        assert await rep.recv(timeout=5) == b"ask"
        await rep.send(b"answer")
        assert [await peer.frame() for _ in range(2)] == [(MORE, b""), (0, b"answer")]
    async with omq.REQ(bind=fresh("tcp"), linger=0.0) as req, dialled(req.endpoints[0]) as peer:
        await peer.shake("REP")
        await req.send(b"ask")
        assert [await peer.frame() for _ in range(2)] == [(MORE, b""), (0, b"ask")]
        await peer.send(frame(b"", MORE) + frame(b"answer"))
        assert await req.recv(timeout=5) == b"answer"


@pytest.mark.parametrize("context", [b"", b"x", b"sixteen bytes !!"], ids=["empty", "1-byte", "16-bytes"])
@on_uvloop
async def test_ping_is_answered_between_messages(fresh: Fresh, context: bytes) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.shake("PUSH")
        await peer.send(frame(b"before") + command(b"PING", b"\0\0" + context) + frame(b"after"))
        assert await peer.frame() == (COMMAND, b"\x04PONG" + context)
        assert [await pull.recv(timeout=5) for _ in range(2)] == [b"before", b"after"]


@on_uvloop
async def test_ping_between_the_parts_of_a_message(fresh: Fresh) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.shake("PUSH")
        await peer.send(frame(b"one", MORE) + command(b"PING", b"\0\0") + frame(b"message"))
        assert await peer.frame() == (COMMAND, b"\x04PONG")
        assert await pull.recv_multipart(timeout=5) == [b"one", b"message"]


@on_uvloop
async def test_half_a_message_is_never_delivered(fresh: Fresh) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull:
        async with dialled(pull.endpoints[0]) as peer:
            await peer.shake("PUSH")
            await peer.send(frame(b"whole") + frame(b"half", MORE) + frame(b"of it", MORE))
            assert await pull.recv(timeout=5) == b"whole"
        async with dialled(pull.endpoints[0]) as peer:
            await peer.shake("PUSH")
            await peer.send(frame(b"good"))
            assert await pull.recv_multipart(timeout=5) == [b"good"]
        with pytest.raises(Timeout):
            await pull.recv(timeout=0)
