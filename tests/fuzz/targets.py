"""The parsers that read a stranger's bytes: one function for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from omq._core import blocks
from omq._core.link.datagram import parse_datagram
from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import FrameDecoder
from omq.errors import RemoteProtocolError, UsageError
from omq.zmtp import z85
from omq.zmtp.command import encode_command, parse_properties, parse_traffic_command
from omq.zmtp.curve import CookieKeys, CurveClient, CurveServer
from omq.zmtp.greeting import GreetingParser
from omq.zmtp.null import Null
from omq.zmtp.plain import PlainClient, PlainServer
from tests.fuzz import transparent_keys, websocket
from tests.fuzz.stream import feed_stream, plain_frames, sealed_frames
from tests.fuzz.transparent_keys import Begun, whole

# The same keys in every run: a corpus that holds good commands is good for ever.
SERVER = Secret(bytes(range(32)))
CLIENT = Secret(bytes(range(32, 64)))
TRANSIENT = Secret(bytes(range(64, 96)))
KEY = Secret(bytes(range(96, 128)))
COOKIES = CookieKeys()


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


def sealed(data: bytes) -> None:
    CurveCipher(KEY, True, 1, 2).open(data)


def traffic(data: bytes) -> None:
    feed_stream(data, None, plain_frames)


def sealed_traffic(data: bytes) -> None:
    ours, theirs = CurveCipher(KEY, True, 1, 2), CurveCipher(KEY, False, 2, 1)
    feed_stream(data, ours, partial(sealed_frames, cipher=theirs), framed=True)


def websocket_traffic(data: bytes) -> None:
    websocket.traffic(data, None)


def sealed_websocket_traffic(data: bytes) -> None:
    websocket.traffic(data, KEY)


def vouched(data: bytes) -> None:
    """Parses an authenticated INITIATE: the mutation happens inside its box."""
    VOUCHED(data[:1] + encode_command(b"INITIATE", transparent_keys.INITIATE + transparent_keys.VOUCH + data[1:]))


def records(data: bytes) -> None:
    """Parses a publisher's records; then the same with right sizes and checksums, so that the rest is parsed."""
    blocks.damaged(data, 3)
    for some in (data, mended(data)):
        try:
            blocks.cuts(some, 64)
            count = blocks.check(some, 4096)
        except ValueError:
            continue
        assert blocks.damaged(some, count) == []
        messages = blocks.decode(blocks.header(1, count, 0, len(some)), some, "topic")
        again = (blocks.encode_record(message.body, message.key, message.headers) for message in messages)
        assert len(messages) == count == blocks.check(b"".join(again))


def mended(data: bytes) -> bytes:
    """Records out of anything: a byte gives how long each is."""
    some = []
    while len(data) > 1:
        rest = data[1 : 2 + data[0]]
        data = data[2 + data[0] :]
        some.append((len(rest) + 4).to_bytes(4, "big") + blocks.crc32c(rest).to_bytes(4, "big") + rest)
    return b"".join(some)


def datagram(data: bytes) -> None:
    """Datagrams that any program may send to a DISH over UDP."""
    parsed = parse_datagram(data)
    if parsed is None:
        assert not data or data[0] >= len(data)
        return
    group, body = parsed
    assert bytes([len(group)]) + group + body == data


VOUCHED = Begun(transparent_keys.server(), transparent_keys.HELLO, through_glass=True)

#: Their order is that of the corpus: new ones come last.
TARGETS: list[Callable[[bytes], None]] = [
    greeting,
    whole(Null),
    Begun(Null()),
    Begun(PlainServer()),
    Begun(PlainClient(b"user", b"word")),
    Begun(CurveServer(SERVER.public(), SERVER, COOKIES)),
    Begun(CurveClient(SERVER.public(), CLIENT.public(), CLIENT)),
    vouched,
    frames,
    metadata,
    text,
    sealed,
    traffic,
    sealed_traffic,
    Begun(transparent_keys.server(), through_glass=True),
    VOUCHED,
    Begun(transparent_keys.client(), through_glass=True),
    Begun(transparent_keys.client(), transparent_keys.WELCOME, through_glass=True),
    Begun(PlainClient(b"user", b"word"), encode_command(b"WELCOME")),
    records,
    datagram,
    websocket_traffic,
    sealed_websocket_traffic,
    websocket.upgrade,
    websocket.handshake,
]
#: What each is called in a count.
NAMES = (
    "greeting", "handshake NULL", "READY", "PLAIN server", "PLAIN client", "CURVE server", "CURVE client",
    "CURVE INITIATE's metadata", "frames", "metadata", "Z85", "CURVE MESSAGE", "traffic", "sealed traffic",
    "CURVE HELLO", "CURVE INITIATE", "CURVE WELCOME", "CURVE READY", "PLAIN READY",
    "records", "datagram", "WebSocket traffic", "sealed WebSocket traffic", "WebSocket upgrade", "WebSocket handshake",
)  # fmt: skip


def one_input(data: bytes) -> None:
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])
