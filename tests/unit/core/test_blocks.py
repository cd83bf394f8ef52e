"""The codec of records and blocks, byte by byte."""

import pickle

import pytest

from omq._core import blocks
from omq._core.blocks import Message
from tests.support.crc32c import crc32c

SIZES = [*range(300), 767, 768, 1023, 1029, 3071, 3072, 3073, 4096, 9216, 100_003]


def test_the_checksum_is_crc_32c() -> None:
    assert blocks.crc32c(b"123456789") == 0xE3069283
    assert blocks.crc32c_by_table(b"123456789") == 0xE3069283
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("function", [blocks.crc32c, blocks.crc32c_by_table])
def test_checksums_of_all_sizes_are_those_of_the_definition(function) -> None:
    data = bytes(i * i % 251 for i in range(SIZES[-1] + 1))
    for size in SIZES:
        for offset in (0, 1):
            piece = data[offset : offset + size]
            assert function(piece) == crc32c(piece), size
            assert function(piece, 0xDEADBEEF) == crc32c(piece, 0xDEADBEEF), size


def test_a_plain_record_byte_by_byte() -> None:
    rest = b"\x00abc"
    assert blocks.encode([b"abc"]) == b"\x00\x00\x00\x08" + crc32c(rest).to_bytes(4, "big") + rest


def test_a_record_with_key_and_headers_byte_by_byte() -> None:
    rest = b"\x03\x00\x00\x00\x01k\x00\x02\x00\x02\xc3\xa4\x00\x00\x00\x01v\x00\x00\x00\x00\x00\x00body"
    record = blocks.encode_record(b"body", b"k", {"ä": b"v", "": b""})
    assert record == (len(rest) + 4).to_bytes(4, "big") + crc32c(rest).to_bytes(4, "big") + rest
    assert blocks.check(record) == 1


def test_a_record_without_key_and_headers_is_a_plain_one() -> None:
    assert blocks.encode_record(b"body") == blocks.encode_record(b"body", None, {}) == blocks.encode([b"body"])


def test_headers_of_a_block_byte_by_byte() -> None:
    header = blocks.header(7, 3, 0x0102030405060708, 99)
    assert len(header) == blocks.HEADER_SIZE
    assert header[:28] == b"\1\0\0\0\0\0\0\3\0\0\0\0\0\0\0\7\1\2\3\4\5\6\7\x08\0\0\0\x63"
    assert header[28:] == crc32c(header[:28]).to_bytes(4, "big")
    assert blocks.read_header(header) == (7, 3, 0x0102030405060708, 99)


def test_a_wrong_header_is_refused() -> None:
    header = blocks.header(7, 3, 5, 99)
    for i in range(32):
        with pytest.raises(ValueError, match="checksum"):
            blocks.read_header(header[:i] + bytes([header[i] ^ 1]) + header[i + 1 :])
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        blocks.read_header(header[:31])
    for i, complaint in ((0, "version 3"), (1, "flags"), (3, "flags")):
        other = bytearray(header[:28])
        other[i] ^= 2
        with pytest.raises(ValueError, match=complaint):
            blocks.read_header(bytes(other) + crc32c(bytes(other)).to_bytes(4, "big"))


def record(rest: bytes) -> bytes:
    """A record whose checksum is right, whatever is in it."""
    return (len(rest) + 4).to_bytes(4, "big") + crc32c(rest).to_bytes(4, "big") + rest


BAD = {
    "ends too early": [b"\0", blocks.encode([b"abc"])[:-1], b"\xff\xff\xff\xff" + bytes(20)],
    "size is too small": [b"\0\0\0\4" + bytes(5)],
    "checksum is wrong": [b"\0\0\0\5" + bytes(5)],
    "unknown flags": [record(b"\x04"), record(b"\x80abc")],
    "key is longer": [record(b"\x01"), record(b"\x01\0\0\0\1"), record(b"\x01\xff\xff\xff\xff")],
    "headers are longer": [
        record(b"\x02"),
        record(b"\x02\0"),
        record(b"\x02\0\1"),
        record(b"\x02\0\1\0\1a"),
        record(b"\x02\0\1\0\1a\0\0\0"),
        record(b"\x02\0\1\0\1a\0\0\0\1"),
        record(b"\x02\0\2\0\1a\0\0\0\0"),
    ],
    "not UTF-8": [
        record(b"\x02\0\1\0" + bytes([len(name)]) + name + b"\0\0\0\0")
        for name in (
            b"\xff",
            b"\x80",
            b"\xc0\x80",
            b"\xc3",
            b"\xe0\x80\x80",
            b"\xed\xa0\x80",
            b"\xf0\x80\x80\x80",
            b"\xf4\x90\x80\x80",
            b"\xf5\x80\x80\x80",
            b"\xe2\x82",
        )
    ],
}


@pytest.mark.parametrize(("complaint", "data"), [(text, data) for text, many in BAD.items() for data in many])
def test_what_is_no_record_is_named_with_its_place(complaint: str, data: bytes) -> None:
    good = blocks.encode([b"one", b"two"])
    with pytest.raises(ValueError, match=rf"^record 2: .*{complaint}"):
        blocks.check(good + data)
    whole = good + data
    with pytest.raises(ValueError, match=rf"^record 2: .*{complaint}|records, and its header"):
        blocks.decode(blocks.header(1, 3, 0, len(whole)), whole, "t")


def test_names_of_headers_may_be_any_text() -> None:
    headers = dict.fromkeys(["", "ä", "€", "𝄞", "\0", "\U0010ffff", "\ud7ff", "\ue000"], b"")
    assert blocks.check(blocks.encode_record(b"", None, headers)) == 1


def test_a_body_above_the_limit_is_distinguished() -> None:
    records = blocks.encode([b"ab", b"abc"])
    assert blocks.check(records, 3) == 2
    with pytest.raises(blocks.BodyTooLarge, match="record 1"):
        blocks.check(records, 2)


def test_bodies_may_be_any_buffers_but_nothing_else() -> None:
    assert blocks.encode(iter([b"ab", bytearray(b"c"), memoryview(b"de")])) == blocks.encode([b"ab", b"c", b"de"])
    assert blocks.encode([]) == b""
    for wrong in ([5], ["text"], [None]):
        with pytest.raises(TypeError):
            blocks.encode(wrong)


def test_headers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="65,535"):
        blocks.encode_record(b"", None, {"x" * 65_536: b""})
    with pytest.raises(ValueError, match="65,535"):
        blocks.encode_record(b"", None, {str(i): b"" for i in range(65_536)})


def test_slices_are_views() -> None:
    records = blocks.encode([b"a", b"bb", b"ccc"])
    view = blocks.slice(records, 1, 3)
    assert view.obj is records
    assert view == blocks.encode([b"bb", b"ccc"])
    assert blocks.slice(records, 3, 3) == b""
    for start, stop in ((0, 4), (4, 4), (2, 1)):
        with pytest.raises(ValueError, match="records"):
            blocks.slice(records, start, stop)
    with pytest.raises(ValueError, match="records"):
        blocks.slice(b"\0\0\0\0" + bytes(8), 0, 1)


def test_cuts_keep_to_the_target_where_they_can() -> None:
    records = blocks.encode([b"a", b"bb", b"c" * 100, b"d", b"e"])  # of 10, 11, 109, 10, 10 bytes
    assert blocks.cuts(records, 21) == [(21, 2), (130, 3), (150, 5)]
    assert blocks.cuts(records, 1) == [(10, 1), (21, 2), (130, 3), (140, 4), (150, 5)]
    assert blocks.cuts(records, 1000) == [(150, 5)]
    assert blocks.cuts(b"", 10) == []
    with pytest.raises(ValueError, match="record 1"):
        blocks.cuts(records[:15], 10)


def test_damage_is_found_record_by_record() -> None:
    pieces = [blocks.encode([b"x" * size]) for size in (5, 6, 7, 8)]
    assert blocks.damaged(b"".join(pieces), 4) == []
    hurt = [pieces[0], pieces[1][:-1] + b"y", pieces[2][:-1] + b"y", pieces[3]]
    assert blocks.damaged(b"".join(hurt), 4) == [(1, 3)]
    hurt = [pieces[0][:-1] + b"y", pieces[1], pieces[2][:-1] + b"y", pieces[3]]
    assert blocks.damaged(b"".join(hurt), 4) == [(0, 1), (2, 3)]
    hurt = [pieces[0], pieces[1], b"\0\0\xff\xff" + pieces[2][4:], pieces[3]]
    assert blocks.damaged(b"".join(hurt), 4) == [(2, 4)]
    merged = (len(pieces[1]) + len(pieces[2]) - 4).to_bytes(4, "big")
    assert blocks.damaged(pieces[0] + merged + pieces[1][4:] + pieces[2] + pieces[3], 4) == [(1, 4)]
    assert blocks.damaged(b"".join(pieces[:3]), 4) == [(3, 4)]
    assert blocks.damaged(b"", 0) == []


def test_messages_have_what_was_encoded() -> None:
    records = blocks.encode([b"plain"]) + blocks.encode_record(b"all", b"key", {"a": b"1", "b": b"2"})
    records += blocks.encode_record(b"", b"", {})
    messages = blocks.decode(blocks.header(41, 3, 1_500_000, len(records)), memoryview(records), "t")
    assert [message.id for message in messages] == [41, 42, 43]
    assert [message.body for message in messages] == [b"plain", b"all", b""]
    assert [message.key for message in messages] == [None, b"key", b""]
    assert [message.headers for message in messages] == [{}, {"a": b"1", "b": b"2"}, {}]
    assert {(message.topic, message.timestamp) for message in messages} == {("t", 1.5)}
    assert messages[1] == Message(42, "t", b"all", b"key", {"a": b"1", "b": b"2"}, 1.5)
    assert messages[1] != messages[0]
    assert pickle.loads(pickle.dumps(messages[1])) == messages[1]
    assert repr(messages[1]) == "<Message t 42 b'all' key=b'key' headers={'a': b'1', 'b': b'2'}>"
    assert "<100 bytes>" in repr(Message(1, "t", bytes(100)))


def test_messages_cannot_be_changed() -> None:
    message = Message(1, "t", b"")
    for name in ("id", "topic", "body", "key", "headers", "timestamp"):
        with pytest.raises(AttributeError):
            setattr(message, name, None)
    message.headers["a"] = b""
    assert message.headers == {}


class Tagged(Message):
    """A kind of its own."""

    tag: int


def test_another_kind_of_message_is_made() -> None:
    records = blocks.encode([b"a", b"b"])
    messages = blocks.decode(blocks.header(1, 2, 0, len(records)), records, "t", Tagged)
    assert all(type(message) is Tagged for message in messages)
    messages[0].tag = 5
    assert not hasattr(messages[1], "tag")
    with pytest.raises(TypeError):
        blocks.decode(blocks.header(1, 2, 0, len(records)), records, "t", dict)


def test_a_block_with_another_number_of_records_is_refused() -> None:
    records = blocks.encode([b"a", b"b"])
    for count, size in ((1, len(records)), (3, len(records)), (2, len(records) + 1), (0xFFFFFFFF, len(records))):
        with pytest.raises(ValueError, match="record"):
            blocks.decode(blocks.header(1, count, 0, size), records, "t")
