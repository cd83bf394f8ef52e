"""The frames of the device, without a socket."""

from __future__ import annotations

import re
import uuid

import pytest

from omq._core import blocks
from omq.pzq import Malformed, NotReplicated, Refused, wire


@pytest.mark.parametrize("parts", [[b""], [b"a"], [b"", b""], [b"a", b"", b"bc"], [b"x" * 70_000, b"y"] * 300])
def test_what_is_packed_is_unpacked(parts: list[bytes]) -> None:
    record = blocks.encode(parts) if len(parts) == 1 else wire.pack(parts)
    message: blocks.Message
    (message,) = blocks.decode(blocks.header(1, 1, 0, len(record)), record, "")
    assert wire.unpack(message.body, message.key) == parts


def test_keys_are_in_order_and_no_two_are_the_same() -> None:
    how = wire.key_format("0123456789abcdef" * 2, 7)
    numbers = [1, 2, 255, 2**32, 2**48 - 1, 2**48, 2**60]
    keys = [wire.key_of(how, 1_700_000_000_000_000, number) for number in numbers]
    assert keys == sorted(set(keys))
    for key in keys:
        when, _, text = key.decode().partition("|")
        assert when == "1700000000000000"
        assert re.fullmatch(r"01234567-89ab-8007-[89ab].{3}-.{12}", text)
        assert uuid.UUID(text).version == 8
        assert uuid.UUID(text).variant == uuid.RFC_4122
    assert wire.key_of(wire.key_format("0123456789abcdef" * 2, 8), 1_700_000_000_000_000, 1) not in keys


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ([b"p", b"id", b"", b"b"], ([b"b"], b"", 0)),
        ([b"p", b"", b"", b""], ([b""], b"", 0)),
        ([b"p", b"id", b"h", b"", b"b", b"", b"c"], ([b"b", b"", b"c"], b"", 0)),
        ([b"p", b"id", b"DEDUP:a:7", b"", b"b"], ([b"b"], b"a", 7)),
        ([b"p", b"id", b"h", b"DEDUP:a:b:18446744073709551615", b"", b"b"], ([b"b"], b"a:b", 2**64 - 1)),
        ([b"p", b"id", b"", b"DEDUP:a:7"], ([b"DEDUP:a:7"], b"", 0)),
    ],
)
def test_what_a_producer_sends(frames: list[bytes], found: object) -> None:
    assert wire.read_produced(frames) == found


@pytest.mark.parametrize(
    "header",
    [
        *(b"DEDUP:", b"DEDUP:a", b"DEDUP:a:", b"DEDUP:a:-1", b"DEDUP:a: 1", b"DEDUP:a:18446744073709551616"),
        *(b"DEDUP:\0a:1", b"DEDUP:" + b"a" * 97 + b":1", b"DEDUP:a:" + b"1" * 5000, b"DEDUP:a:\xb2", b"REPLICA:"),
    ],
)
def test_headers_with_wrong_values(header: bytes) -> None:
    with pytest.raises(Malformed):
        wire.read_produced([b"p", b"id", header, b"", b"body"])


def test_what_a_device_answers() -> None:
    assert wire.read_reply([b"id", b"1", b""]) == (b"id", None)
    id, error = wire.read_reply([b"id", b"1", b"", b"REPLICATION_FAILED"])
    assert (id, type(error)) == (b"id", NotReplicated)
    id, error = wire.read_reply([b"id", b"0", b"", b"why \xff"])
    assert (id, type(error), str(error)) == (b"id", Refused, "why \\xff")
    assert wire.read_reply([b"id", b"0"])[1] is not None
    for frames in ([b"id"], [b"id", b"2", b""], [b"", b"", b""]):
        with pytest.raises(Malformed):
            wire.read_reply(frames)


def test_what_a_device_delivers() -> None:
    assert wire.read_delivery([b"p", b"k", b"5", b"9", b"", b"b"]) == (b"k", 5, 0, [b"b"])
    assert wire.read_delivery([b"p", b"k", b"5", b"9", b"", b"", b""]) == (b"k", 5, 0, [b"", b""])
    assert wire.read_delivery([b"p", b"k", b"5", b"9", b"3", b"", b"b"]) == (b"k", 5, 3, [b"b"])
    for frames in ([b"p"], [b"p", b"k", b"5", b"9", b""], [b"p", b"k", b"x", b"9", b"", b"b"], [b"p"] * 8):
        with pytest.raises(Malformed):
            wire.read_delivery(frames)
