"""WebSockets: their frames on a connection, the upgrade, and the handshake in frames, each in both roles."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from wsproto.utilities import generate_accept_token

from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import encode_frame
from omq._core.wire.websocket import WebSocketCodec
from omq.transport.upgrade import WebSocketUpgrade
from omq.types import SocketType
from omq.zmtp.handshake import MAX_HANDSHAKE_FRAME_BYTES
from omq.zmtp.mechanism import Mechanism
from omq.zmtp.null import Null
from omq.zmtp.plain import PlainClient, PlainServer
from omq.zmtp.websocket import WebSocketHandshake
from tests.fuzz import transparent_keys
from tests.fuzz.stream import feed_stream, pieces, sealed

MASK = b"\1\2\3\4"
ACCEPT = b"$accept"  # stands for the right answer to a client's key, which is another one each time
PROTOCOLS = ("ZWS2.0/NULL", "ZWS2.0")


def frame(first: int, payload: bytes, *, masked: bool) -> bytes:
    """One frame of a WebSocket, whose first octet may be any (RFC 6455, 5.2)."""
    size, bit = len(payload), 0x80 if masked else 0
    if size < 126:
        head = bytes([first, bit | size])
    elif size < 1 << 16:
        head = bytes([first, bit | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, bit | 127]) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    mask = (MASK * (size // 4 + 1))[:size]
    return head + MASK + (int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")


def frames(data: bytes, *, masked: bool, cipher: CurveCipher | None = None) -> bytes:
    """Binary frames out of anything; with bit 4 of the flags, control frames and others."""
    wire = bytearray()
    for flags, size, payload in pieces(data):
        if flags & 0x10:
            wire += frame(0x80 | flags & 0xF, payload, masked=masked)
        elif cipher is not None:
            wire += frame(0x82, b"\0" + sealed(cipher, flags, size, payload), masked=masked)
        else:
            wire += frame(0x82, bytes([flags & 3]) + payload.ljust(size, b"\0"), masked=masked)
    return bytes(wire)


def traffic(data: bytes, key: Secret | None) -> None:
    """The first octet selects which side the connection is; the rest is as `feed_stream` takes it."""
    as_client = bool(data[:1] < b"\x80")
    codec, theirs = WebSocketCodec(as_client=as_client), None
    if key is not None:
        codec.encrypt_with(CurveCipher(key, True, 1, 2))
        theirs = CurveCipher(key, False, 2, 1)
    feed_stream(data[1:], codec, partial(frames, masked=not as_client, cipher=theirs))


def _portions(data: bytes) -> list[bytes]:
    """The input after its first octet, which selects how much of it comes at once."""
    piece = max(1 + data[0], len(data) // transparent_keys.PIECES) if data[:1] and data[0] & 1 else len(data) + 1
    return [data[at : at + piece] for at in range(1, len(data), piece)]


def check(error: Exception) -> None:
    """A refusal quotes what the peer has sent."""
    assert str(error).isprintable()


def upgrade(data: bytes) -> None:
    """A request to a server, or a response to a client."""
    as_client, path = bool(data[:1] < b"\x80"), "/" if data[:1] and data[0] & 2 else "/path"
    ours = WebSocketUpgrade("127.0.0.1:5555", path, as_client=as_client)
    request = ours.start(PROTOCOLS)
    if as_client and ACCEPT in data:
        key = re.search(rb"(?i)sec-websocket-key: *([^\r]*)", request)
        assert key is not None
        data = data.replace(ACCEPT, generate_accept_token(key[1]))
    arrived = b""
    try:
        for portion in _portions(data):
            arrived += portion
            answer = ours.receive(portion)
            if ours.protocol:
                assert ours.protocol in PROTOCOLS
                assert arrived.endswith(ours.unread)
                assert as_client or answer.startswith(b"HTTP/1.1 101")
                return
            assert answer == b""
    except transparent_keys.REFUSALS as error:
        check(error)
        assert as_client or ours.failure().startswith(b"HTTP/1.1 4")


class Agreed:
    """An upgrade that both sides have agreed on, with whatever comes first."""

    unread = b""
    protocol = ""

    def __init__(self, protocol: str, *, as_client: bool) -> None:
        self.as_client = as_client
        self._protocol = protocol

    def start(self, protocols: Sequence[str]) -> bytes:
        assert self._protocol in protocols
        return b""

    def receive(self, data: bytes) -> bytes:
        self.protocol, self.unread = self._protocol, data
        return b""

    def failure(self) -> bytes:
        return b""


#: By the lower bits of an input's first octet.
MECHANISMS: tuple[Callable[[], Mechanism], ...] = (
    Null,
    partial(Null, ask=True),
    PlainServer,
    partial(PlainClient, b"user", b"word"),
    transparent_keys.server,
    transparent_keys.client,
)
NO_MECHANISM = len(MECHANISMS)


def handshake(data: bytes) -> None:
    """The first octet names the mechanism and our side, and selects whether the rest is raw (bit 6)."""
    how = data[0] if data else 0
    as_client, number = bool(how & 0x80), how % 8 % (NO_MECHANISM + 1)
    mechanism = (MECHANISMS[number] if number < NO_MECHANISM else Null)()
    protocol = f"ZWS2.0/{mechanism.name.decode()}" if number < NO_MECHANISM else "ZWS2.0"
    ours = WebSocketHandshake(
        Agreed(protocol, as_client=as_client),
        socket_type=SocketType.DEALER,
        mechanism=mechanism,
        properties={b"Identity": b"me"},
        allow_unsecured=number == NO_MECHANISM,
    )
    wire = data[1:2] + (data[2:] if how & 0x40 else frames(data[2:], masked=not as_client))
    with transparent_keys.glass() if mechanism.name == b"CURVE" else nullcontext():
        try:
            ours.start()
            for portion in _portions(wire):
                if ours.done:
                    break
                ours.receive(portion)
                if ours.question is not None:
                    ours.answer(b"400" if how & 8 else None)
            if ours.done:
                assert ours.peer.over_websocket
            assert len(ours.unread) <= len(wire)
            assert ours.done or len(ours.unread) <= 2 * MAX_HANDSHAKE_FRAME_BYTES + len(wire) // 2
        except transparent_keys.REFUSALS as error:
            check(error)
            ours.failure()


def request(path: str = "/path", protocol: str = "ZWS2.0/NULL, ZWS2.0", more: str = "") -> bytes:
    """Gives what a good client sends, for the corpus."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:5555\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: {protocol}\r\n{more}\r\n"
    ).encode()


def response(protocol: str = "ZWS2.0/NULL", more: str = "") -> bytes:
    """Gives what a good server answers, for the corpus."""
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {ACCEPT.decode()}\r\nSec-WebSocket-Protocol: {protocol}\r\n{more}\r\n"
    ).encode()


def piece(flags: int, payload: bytes) -> bytes:
    """A piece of `frames`, for the corpus."""
    return bytes([flags]) + len(payload).to_bytes(2, "big") + payload


def command(plain: bytes) -> bytes:
    """A piece with the command of a plain frame, for the corpus."""
    size = int.from_bytes(plain[1:9], "big") if plain[0] & 2 else plain[1]
    assert plain == encode_frame(plain[len(plain) - size :], command=True)
    return piece(2, plain[len(plain) - size :])


def seeds() -> dict[str, list[bytes]]:
    """Inputs by target, in the order of the targets."""
    from omq.zmtp.command import encode_command, ping, ready

    good = ready({b"Socket-Type": b"ROUTER", b"Identity": b"me"})
    mixed = piece(1, b"one") + piece(0, b"x" * 130) + piece(2, b"\4PING\0\3x") + piece(0x19, b"hi") + piece(0x19, b"")
    mixed += piece(0x1A, b"") + piece(0, b"x" * 260) + piece(0, b"") + piece(0x19, ping(3, b"x")[2:])
    closed = mixed + piece(0x18, b"\x03\xe8") + piece(0, b"late")
    listen, dial = b"\x80", b"\0"
    return {
        "WebSocket traffic": [
            *(side + how + closed for side in (listen, dial) for how in (b"\1", b"\x3f", b"\xc1")),
            *(side + b"\1" + mixed + b"\0\xff\xf0" for side in (listen, dial)),
            *(side + b"\0" + frames(mixed, masked=side == listen) for side in (listen, dial)),
            *(side + b"\0" + frame(0x82, bytes(70_000), masked=side == listen)[:60] for side in (listen, dial)),
            *(side + b"\1\0\xff\xf0" + b"x" * 40 for side in (listen, dial)),
        ],
        "sealed WebSocket traffic": [
            *(side + how + closed for side in (listen, dial) for how in (b"\1", b"\x3f", b"\xc1")),
            *(side + b"\1" + piece(0x41, b"three") + piece(0x80, b"x" * 40) for side in (listen, dial)),
            *(side + b"\1\0\xff\xf0" + b"x" * 40 + piece(4, b"\4PING\0\0") for side in (listen, dial)),
        ],
        "WebSocket upgrade": [
            b"\x80" + request() + b"behind",
            b"\x81" + request("/path?query", "other, ZWS2.0"),
            b"\x82" + request("/any", more="Sec-WebSocket-Extensions: permessage-deflate\r\n"),
            b"\x80" + request().replace(b"13", b"12"),
            b"\x80" + request("http://host/path", "\xe9"),
            b"\0" + response() + b"behind",
            b"\1" + response("ZWS2.0"),
            b"\0" + response("other"),
            b"\0" + response(more="Sec-WebSocket-Extensions: permessage-deflate\r\n"),
            b"\0HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone",
        ],
        "WebSocket handshake": [
            *(bytes([side | 0]) + b"\0" + command(good) + piece(0, b"next") for side in (0, 0x80)),
            *(bytes([side | 1]) + b"\7" + piece(0x19, b"hi") + command(good) for side in (0, 0x80)),
            *(bytes([side | 0x40]) + b"\0" + frames(command(good), masked=not side) for side in (0, 0x80)),
            b"\2\0"
            + command(encode_command(b"HELLO", b"\4user\4word"))
            + command(encode_command(b"INITIATE", good[8:])),
            b"\x83\0" + command(encode_command(b"WELCOME")) + command(good),
            b"\4\0"
            + command(transparent_keys.HELLO)
            + command(encode_command(b"INITIATE", transparent_keys.INITIATE + transparent_keys.VOUCH)),
            b"\x85\0" + command(transparent_keys.WELCOME),
            *(bytes([side | 6]) + b"\0" + piece(0, b"peer") + piece(0, b"next") for side in (0, 0x80)),
            *(bytes([side | 0]) + b"\0" + piece(0x18, b"\x03\xe9bye") for side in (0, 0x80)),
        ],
    }
