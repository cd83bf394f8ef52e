"""Writes the first corpus: what good peers send, after the number of the target that gets it."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path

from omq._core import blocks
from omq._core.wire.framing import encode_frame
from omq.types import SocketType
from omq.zmtp.command import cancel, encode_command, encode_properties, ping, ready, subscribe
from omq.zmtp.greeting import Greeting
from tests.fuzz import transparent_keys, websocket
from tests.fuzz.targets import NAMES

CORPUS = Path(__file__).parent / "corpus"
PROPERTIES = encode_properties({b"Socket-Type": b"ROUTER", b"Identity": b"me", b"X-More": bytes(300)})


def seeds() -> list[bytes]:
    """Each a target's number and its input."""
    greet = Greeting((3, 1), b"NULL", False).encode()
    good = ready({b"Socket-Type": SocketType.ROUTER.value.encode(), b"Identity": b"me"})
    frames = encode_frame(b"one", more=True) + encode_frame(bytes(300)) + ping(3, b"x") + subscribe(b"a") + cancel(b"a")
    return [
        b"\x00" + greet,
        b"\x01\x40" + greet + good,
        b"\x02\xff" + good,
        b"\x02\x07" + encode_command(b"ERROR", b"\x03400"),
        b"\x03\xff" + encode_command(b"HELLO", b"\x04user\x04word") + encode_command(b"INITIATE", PROPERTIES),
        b"\x04\xff" + encode_command(b"WELCOME") + good,
        b"\x04\xff" + encode_frame(b"^RROR\x03400", command=True),
        b"\x05\xff" + encode_command(b"HELLO", b"\x01\x00" + bytes(192)) + encode_command(b"INITIATE", bytes(300)),
        b"\x06\xff" + encode_command(b"WELCOME", bytes(160)) + encode_command(b"READY", bytes(40)),
        b"\x07" + PROPERTIES,
        b"\x08" + frames,
        b"\x09" + PROPERTIES,
        b"\x0aHelloWorld",
        b"\x0b\x07MESSAGE" + bytes(40),
        b"\x0c\x3e" + frames,
        b"\x0c\x00" + frames + encode_frame(bytes(3000)),
        b"\x0c\xc3\x00\xff\xff\x01\x00\x03one\x00\x90\x00",
        b"\x0d\x00\x01\x00\x03one\x00\x00\x05three\x02\x00\x06\x04PINGx\x00\x90\x00",
        b"\x0d\x3e\x08\x00\x03one\x41\x00\x03one\x80\x00\x03one",
        b"\x0e\x00" + transparent_keys.HELLO,
        b"\x0f\x00" + encode_command(b"INITIATE", transparent_keys.INITIATE + transparent_keys.VOUCH + PROPERTIES),
        b"\x10\x00" + transparent_keys.WELCOME,
        b"\x11\x00" + encode_command(b"READY", (1).to_bytes(8, "big") + bytes(transparent_keys.MAC) + PROPERTIES),
        b"\x12\x00" + good,
        b"\x13" + blocks.encode([b"one", b"two"]) + blocks.encode_record(b"three", b"key", {"name": b"value"}),
        b"\x13\x03\x00one\x17\x03\x00\x00\x00\x01k\x00\x01\x00\x02\xc3\xa4\x00\x00\x00\x01v" + bytes(9),
        *(bytes([NAMES.index(name)]) + seed for name, some in websocket.seeds().items() for seed in some),
    ]


if __name__ == "__main__":
    CORPUS.mkdir(exist_ok=True)
    for seed in seeds():
        (CORPUS / sha1(seed).hexdigest()).write_bytes(seed)
