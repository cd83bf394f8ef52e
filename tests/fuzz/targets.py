"""What a stranger can say, and who hears it: one function for each parser."""

from __future__ import annotations

from collections.abc import Callable

from omq._core.codec import FrameDecoder
from omq._core.crypto import Secret, Session
from omq.errors import HandshakeError, RemoteProtocolError, UsageError
from omq.types import SocketType
from omq.zmtp import z85
from omq.zmtp.command import parse_properties, parse_traffic_command
from omq.zmtp.curve import CookieKeys, CurveClient, CurveServer
from omq.zmtp.greeting import Greeting, GreetingParser
from omq.zmtp.handshake import Handshake
from omq.zmtp.mechanism import Mechanism
from omq.zmtp.null import Null
from omq.zmtp.plain import PlainClient, PlainServer
from tests.fuzz.stream import feed_stream

# The same keys in every run: a corpus that holds good commands is good for ever.
SERVER = Secret(bytes(range(32)))
CLIENT = Secret(bytes(range(32, 64)))
TRANSIENT = Secret(bytes(range(64, 96)))
KEY = Secret(bytes(range(96, 128)))
COOKIES = CookieKeys()
REFUSALS = (RemoteProtocolError, HandshakeError)


def handshake(make: Callable[[], Mechanism], greet: bytes | None) -> Callable[[bytes], None]:
    """A target: what follows a greeting, or all of it where *greet* is none, in pieces of the input's own choice."""

    def target(data: bytes) -> None:
        ours = Handshake(socket_type=SocketType.DEALER, mechanism=make())
        ours.start()
        try:
            if greet is not None:
                ours.receive(Greeting((3, 1), greet, False).encode())
            piece = 1 + data[0] if data else 1
            for at in range(1, len(data), piece):
                if ours.done:
                    break
                ours.receive(data[at : at + piece])
                if ours.question is not None:
                    ours.answer()
        except REFUSALS:
            ours.failure()

    return target


def greeting(data: bytes) -> None:
    parser = GreetingParser()
    try:
        for at in range(0, len(data), 7):
            if parser.feed(data[at : at + 7]) is not None:
                return
    except RemoteProtocolError:
        pass


def frames(data: bytes) -> None:
    decoder = FrameDecoder(1 << 16)
    decoder.feed(data)
    try:
        while (frame := decoder.next_frame()) is not None:
            if frame[0] & 4:
                parse_traffic_command(frame[1])
    except RemoteProtocolError:
        pass


def metadata(data: bytes) -> None:
    try:
        parse_properties(data)
    except RemoteProtocolError:
        pass


def text(data: bytes) -> None:
    try:
        assert z85.encode(z85.decode(data)) == data
    except UsageError:
        pass


def initiate(data: bytes) -> None:
    """What an authenticated INITIATE may hold: the mutation happens below the encryption."""
    ours = CurveServer(SERVER.public(), SERVER, COOKIES)
    ours.start({})
    key = TRANSIENT.shared(SERVER.public())
    assert key is not None
    nonce = (1).to_bytes(8, "big")
    hello = b"\x01\x00" + bytes(72) + TRANSIENT.public() + nonce + key.seal(b"CurveZMQHELLO---" + nonce, bytes(64))
    ours._on_hello(hello)
    welcome = ours.outgoing()[2 + 8 :]
    opened = key.open(b"WELCOME-" + welcome[:16], welcome[16:])
    assert opened is not None
    inner = TRANSIENT.shared(opened[:32])
    vouching = CLIENT.shared(opened[:32])
    assert inner is not None
    assert vouching is not None
    vouch = bytes(16) + vouching.seal(b"VOUCH---" + bytes(16), TRANSIENT.public() + SERVER.public())
    short = (2).to_bytes(8, "big")
    box = inner.seal(b"CurveZMQINITIATE" + short, CLIENT.public() + vouch + data)
    try:
        ours._on_initiate(opened[32:] + short + box)
    except RemoteProtocolError:
        pass


def sealed(data: bytes) -> None:
    Session(KEY, True, 1, 2).open(data)


def traffic(data: bytes) -> None:
    feed_stream(data, None)


def sealed_traffic(data: bytes) -> None:
    feed_stream(data, KEY)


TARGETS: list[Callable[[bytes], None]] = [
    greeting,
    handshake(Null, None),
    handshake(Null, b"NULL"),
    handshake(PlainServer, b"PLAIN"),
    handshake(lambda: PlainClient(b"user", b"word"), b"PLAIN"),
    handshake(lambda: CurveServer(SERVER.public(), SERVER, COOKIES), b"CURVE"),
    handshake(lambda: CurveClient(SERVER.public(), CLIENT.public(), CLIENT), b"CURVE"),
    initiate,
    frames,
    metadata,
    text,
    sealed,
    traffic,
    sealed_traffic,
]


def one_input(data: bytes) -> None:
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])
