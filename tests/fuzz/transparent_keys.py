"""Keys that hide nothing: the fuzzer sees into every box, and makes its own. The parsers behind are the real ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from omq.errors import HandshakeError, RemoteProtocolError
from omq.types import SocketType
from omq.zmtp import curve
from omq.zmtp.command import encode_command
from omq.zmtp.greeting import Greeting
from omq.zmtp.handshake import MAX_HANDSHAKE_FRAME_BYTES, FrameDecoder, Handshake
from omq.zmtp.mechanism import Mechanism

REFUSALS = (RemoteProtocolError, HandshakeError)
MAC = 16
PIECES = 8  # at most, that an input comes in


class TransparentKeys:
    """A stand-in for `Secret` of the core: a box is 16 octets, of which only the first is checked, and its content."""

    def public(self) -> bytes:
        return b"P" * 32

    def shared(self, public: bytes) -> TransparentKeys | None:
        return None if public == bytes(32) else self

    def seal(self, nonce: bytes, data: bytes, tail: TransparentKeys | None = None) -> bytes:
        return bytes(MAC) + data + (b"" if tail is None else bytes(32))

    def open(self, nonce: bytes, box: bytes) -> bytes | None:
        return box[MAC:] if len(box) >= MAC and box[0] == 0 else None

    def open_pair(self, nonce: bytes, box: bytes) -> tuple[bytes, TransparentKeys] | None:
        return (box[MAC : MAC + 32], self) if len(box) == MAC + 64 else None


@contextmanager
def glass() -> Any:
    """Has CURVE use such keys, and the same numbers each time."""
    before = curve.Secret, curve.CurveCipher, curve.random_bytes
    curve.Secret, curve.CurveCipher, curve.random_bytes = TransparentKeys, _session, bytes  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        curve.Secret, curve.CurveCipher, curve.random_bytes = before  # type: ignore[misc]


def _session(key: TransparentKeys, as_server: bool, sent: int, received: int) -> None:
    assert isinstance(key, TransparentKeys)
    assert 0 <= received < 1 << 64


def server() -> curve.CurveServer:
    with glass():
        return curve.CurveServer(b"S" * 32, TransparentKeys(), curve.CookieKeys())  # type: ignore[arg-type]


def client() -> curve.CurveClient:
    with glass():
        return curve.CurveClient(b"S" * 32, b"C" * 32, TransparentKeys())  # type: ignore[arg-type]


HELLO = encode_command(b"HELLO", b"\x01\x00" + bytes(72) + b"P" * 32 + (1).to_bytes(8, "big") + bytes(MAC + 64))
WELCOME = encode_command(b"WELCOME", bytes(16 + MAC) + b"P" * 32 + bytes(96))
INITIATE = bytes(16 + MAC) + b"P" * 32 + bytes(32) + (2).to_bytes(8, "big") + bytes(MAC)
VOUCH = b"C" * 32 + bytes(16 + MAC) + b"P" * 32 + b"S" * 32


class Begun:
    """A handshake that stands somewhere, to be begun from there again and again: that saves the way there.

    Args:
        mechanism: What it speaks.
        messages: What the peer has sent so far, after its greeting.
        through_glass: Whether its keys hide nothing.
    """

    def __init__(self, mechanism: Mechanism, *messages: bytes, through_glass: bool = False) -> None:
        self._through_glass = through_glass
        ours = Handshake(socket_type=SocketType.DEALER, mechanism=mechanism)
        ours.start()
        with glass() if through_glass else _nothing():
            for data in (Greeting((3, 1), mechanism.name, False).encode(), *messages):
                ours.receive(data)
        self._ours, self._mechanism = ours, mechanism

    def again(self) -> Handshake:
        ours, mechanism = Handshake.__new__(Handshake), type(self._mechanism).__new__(type(self._mechanism))
        vars(mechanism).update(vars(self._mechanism))
        vars(mechanism)["_frames"] = []
        vars(ours).update(vars(self._ours))
        vars(ours)["_mechanism"], vars(ours)["_frames"] = mechanism, FrameDecoder(MAX_HANDSHAKE_FRAME_BYTES)
        return ours

    def __call__(self, data: bytes) -> None:
        if self._through_glass:
            with glass():
                feed(self.again(), data)
        else:
            feed(self.again(), data)


@contextmanager
def _nothing() -> Any:
    yield


def feed(ours: Handshake, data: bytes) -> None:
    """Gives bytes to a handshake, in pieces of the input's own choice."""
    first = data[0] if data else 0
    piece = max(1 + first, len(data) // PIECES) if first & 1 else len(data) + 1
    try:
        for at in range(1, len(data), piece):
            if ours.done:
                break
            ours.receive(data[at : at + piece])
            if ours.question is not None:
                ours.answer(b"400" if first & 2 else None)
    except REFUSALS:
        ours.failure()


def whole(make: Callable[[], Mechanism]) -> Callable[[bytes], None]:
    """A target: a handshake from its first octet on."""

    def target(data: bytes) -> None:
        ours = Handshake(socket_type=SocketType.DEALER, mechanism=make())
        ours.start()
        feed(ours, data)

    return target
