"""The decoder of captured ZMTP traffic."""

from __future__ import annotations

import pytest

from omq.cli.sniff.zmtp_decoder import ZmtpDecoder, ZmtpItem


def greeting(mechanism: bytes = b"NULL", version: bytes = b"\x03\x01", server: bytes = b"\0") -> bytes:
    return b"\xff" + bytes(8) + b"\x7f" + version + mechanism.ljust(20, b"\0") + server + bytes(31)


def frame(body: bytes, flags: int = 0) -> bytes:
    return bytes((flags, len(body))) + body


def command(name: bytes, data: bytes = b"") -> bytes:
    return frame(bytes((len(name),)) + name + data, 4)


READY = command(b"READY", b"\x0bSocket-Type\0\0\0\x04PUSH\x08Identity\0\0\0\0")
STREAM = (
    greeting()
    + READY
    + frame(b"a", 1)
    + frame(b"b")
    + b"\x02"
    + (300).to_bytes(8, "big")
    + b"x" * 300
    + command(b"SUBSCRIBE", b"AAPL")
    + command(b"PING", b"\0\x64")
)
ITEMS = [
    ZmtpItem("greeting", values={"version": "3.1", "mechanism": "NULL"}),
    ZmtpItem("command", "READY", {"Socket-Type": "PUSH", "Identity": ""}, size=33),
    ZmtpItem("message", parts=(b"a", b"b"), size=2),
    ZmtpItem("message", parts=(b"x" * 300,), size=300),
    ZmtpItem("command", "SUBSCRIBE", {"prefix": "AAPL"}, size=4),
    ZmtpItem("command", "PING", {"ttl": "10"}, size=2),
]


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_a_direction_is_decoded_in_any_pieces(size: int) -> None:
    decoder = ZmtpDecoder()
    found = [item for at in range(0, len(STREAM), size) for item in decoder.feed(STREAM[at : at + size])]
    assert found == ITEMS
    assert (decoder.is_zmtp, decoder.pending, decoder.ended) == (True, 0, False)


def test_messages_of_curve_are_encrypted() -> None:
    decoder = ZmtpDecoder()
    box = b"\x07MESSAGE" + bytes(8) + bytes(16) + b"\0" + b"hello"
    found = list(decoder.feed(greeting(b"CURVE", server=b"\1") + command(b"WELCOME", bytes(160)) + frame(box)))
    assert [(item.kind, item.name, item.values, item.size) for item in found] == [
        ("greeting", "", {"version": "3.1", "mechanism": "CURVE", "as_server": "yes"}, 0),
        ("command", "WELCOME", {}, 160),
        ("encrypted", "", {}, 5),
    ]


def test_a_password_is_not_shown() -> None:
    decoder = ZmtpDecoder()
    *_, hello = decoder.feed(greeting(b"PLAIN") + command(b"HELLO", b"\x03joe\x06secret"))
    assert hello.values == {"username": "joe", "password": "***"}


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1", b"\xff" + bytes(9)])
def test_other_protocols_are_not_decoded(data: bytes) -> None:
    decoder = ZmtpDecoder()
    assert list(decoder.feed(data)) == []
    assert decoder.ended
    assert not decoder.is_zmtp


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (greeting(version=b"\x01\x00"), "ZMTP 1 is not decoded"),
        (greeting() + frame(b"", 8), "flags 0x08"),
        (greeting() + frame(b"", 5), "flags 0x05"),
        (greeting() + frame(b"", 4), "no name"),
    ],
)
def test_the_first_invalid_bytes_end_the_decoding(data: bytes, reason: str) -> None:
    decoder = ZmtpDecoder()
    *_, last = decoder.feed(data + frame(b"later"))
    assert last.kind == "invalid"
    assert reason in last.values["reason"]
    assert list(decoder.feed(frame(b"later"))) == []
