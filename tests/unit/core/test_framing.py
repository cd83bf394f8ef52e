"""Frames on the wire (RFC 23, section "Framing"), octet by octet."""

import pytest

from omq._core.wire.framing import FrameDecoder, encode_frame
from omq.errors import RemoteProtocolError

MORE, LONG, COMMAND = 1, 2, 4


def decoded(data: bytes, max_size: int | None = None) -> tuple[int, bytes] | None:
    decoder = FrameDecoder(max_size)
    decoder.feed(data)
    return decoder.next_frame()


@pytest.mark.parametrize(
    ("body", "more", "command", "header"),
    [
        (b"", False, False, "00 00"),
        (b"a", False, False, "00 01"),
        (b"a", True, False, "01 01"),
        (b"a", False, True, "04 01"),
        (b"x" * 255, False, False, "00 ff"),
        (b"x" * 255, False, True, "04 ff"),
        (b"x" * 256, False, False, "02 00 00 00 00 00 00 01 00"),
        (b"x" * 256, True, False, "03 00 00 00 00 00 00 01 00"),
        (b"x" * 256, False, True, "06 00 00 00 00 00 00 01 00"),
        (b"x" * 0x012345, False, False, "02 00 00 00 00 00 01 23 45"),
    ],
    ids=lambda value: f"{len(value)}B" if isinstance(value, bytes) else str(value),
)
def test_a_frame_has_the_shortest_header(body: bytes, more: bool, command: bool, header: str) -> None:
    frame = encode_frame(body, more=more, command=command)
    assert frame == bytes.fromhex(header) + body
    assert decoded(frame) == ((MORE if more else 0) | (COMMAND if command else 0), body)


def test_a_long_header_around_a_small_body_is_legal() -> None:
    assert decoded(bytes.fromhex("02 00 00 00 00 00 00 00 01") + b"a") == (0, b"a")
    assert decoded(bytes.fromhex("02 00 00 00 00 00 00 00 00")) == (0, b"")


@pytest.mark.parametrize("body", [b"", b"a", b"x" * 255, b"x" * 256, b"x" * 1000], ids=len)
def test_every_split_gives_the_frame_and_not_before_its_last_octet(body: bytes) -> None:
    frame = encode_frame(body, more=True)
    for cut in range(len(frame)):
        decoder = FrameDecoder()
        decoder.feed(frame[:cut])
        assert decoder.next_frame() is None, cut
        assert decoder.unread == frame[:cut]
        decoder.feed(frame[cut:])
        assert decoder.next_frame() == (MORE, body), cut
        assert decoder.unread == b""


def test_octet_by_octet() -> None:
    stream = encode_frame(b"x" * 300, more=True) + encode_frame(b"") + encode_frame(b"READY", command=True)
    decoder, frames = FrameDecoder(), []
    for octet in stream:
        decoder.feed(bytes([octet]))
        while (frame := decoder.next_frame()) is not None:
            frames.append(frame)
    assert frames == [(MORE, b"x" * 300), (0, b""), (COMMAND, b"READY")]


def test_what_follows_a_frame_stays_unread() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(b"first") + b"\x00\x09sec")
    assert decoder.next_frame() == (0, b"first")
    assert decoder.next_frame() is None
    assert decoder.unread == b"\x00\x09sec"


@pytest.mark.parametrize("flags", range(256))
def test_every_flags_octet(flags: int) -> None:
    # Bits 7 to 3 are reserved, and a command never has MORE.
    legal = flags in (0, MORE, LONG, LONG | MORE, COMMAND, COMMAND | LONG)
    if legal:
        size = bytes(7) + b"\x01" if flags & LONG else b"\x01"
        assert decoded(bytes([flags]) + size + b"a") == (flags & ~LONG, b"a")
    else:
        with pytest.raises(RemoteProtocolError, match=f"^not a ZMTP frame header: {flags:02x}"):
            decoded(bytes([flags]))


@pytest.mark.parametrize("top", [0x80, 0xFF])
def test_a_size_of_64_bits_is_refused_at_its_first_octet(top: int) -> None:
    with pytest.raises(RemoteProtocolError, match="Framing"):
        decoded(bytes([LONG, top]))
    with pytest.raises(RemoteProtocolError, match="Framing"):
        decoded(bytes([LONG, top]) + b"\xff" * 7 + b"data")


def test_the_largest_size_is_waited_for_without_memory() -> None:
    decoder = FrameDecoder()
    decoder.feed(bytes([LONG, 0x7F]) + b"\xff" * 7 + b"data")
    assert decoder.next_frame() is None
    assert len(decoder.unread) == 13


@pytest.mark.parametrize("size", [0, 1, 255, 256, 1000])
def test_a_limit_admits_its_own_size_and_no_octet_more(size: int) -> None:
    assert decoded(encode_frame(b"x" * size), max_size=size) == (0, b"x" * size)
    with pytest.raises(RemoteProtocolError, match=f"announces {size + 1} bytes, more than the {size} "):
        decoded(encode_frame(b"x" * (size + 1)), max_size=size)


def test_a_frame_above_the_limit_is_refused_by_its_header_alone() -> None:
    with pytest.raises(RemoteProtocolError, match="announces 9223372036854775807 bytes"):
        decoded(bytes([LONG, 0x7F]) + b"\xff" * 7, max_size=1000)


def test_a_refused_header_stays_refused() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"\xff\x01a")
    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            decoder.next_frame()


def test_encode_takes_bytes_only() -> None:
    with pytest.raises(TypeError):
        encode_frame(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        encode_frame("text")  # type: ignore[arg-type]
