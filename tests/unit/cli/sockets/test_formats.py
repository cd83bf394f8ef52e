"""Formats of messages in files, standard input and output."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.cli.sockets.formats import FORMATS, InvalidMessage, Parts, format_of, parts_of, quote, unquote
from omq.errors import UsageError

MESSAGES: list[list[bytes]] = [[b"one"], [b"a", b"b"], [b""], [b"\xc3\xa9", b"\x00\xff\n\t\\"], [b"", b""]]
EXACT = ("quoted", "hex", "json", "msgpack")  # formats that keep every byte


def fmt(name: str, delimiter: bytes = b"\t", parts: int = 0) -> Any:
    return format_of(name, delimiter, parts)


def decoded(found: Any, data: bytes) -> list[list[bytes]]:
    return [parts_of(message) for batch in found.decode(io.BytesIO(data)) for message in batch]


@pytest.mark.parametrize("name", EXACT)
def test_messages_are_the_same_after_both_ways(name: str) -> None:
    found = fmt(name)
    assert decoded(found, b"".join(map(found.encode, MESSAGES))) == MESSAGES


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.sampled_from([b"\t", b",", b" | "]))
def test_quoted_keeps_every_byte_with_any_delimiter(parts: list[bytes], delimiter: bytes) -> None:
    found = format_of("quoted", delimiter)
    line = found.encode(parts)
    assert line.count(b"\n") == 1
    assert decoded(found, line) == [parts]


@pytest.mark.parametrize(
    ("name", "message", "line"),
    [
        ("text", [b"a", b"b"], b"a\tb\n"),
        ("text", b"\x00", b"\x00\n"),
        ("quoted", b"a\tb\\\x00\xff\xc3\xa9", b"a\\tb\\\\\\x00\\xff\xc3\xa9\n"),
        ("hex", [b"\x00\xff", b"a"], b"00ff\t61\n"),
        ("json", [b"a", b"\xff"], b'["a", {"base64": "/w=="}]\n'),
        ("raw", [b"a", b"b"], b"ab"),
    ],
)
def test_a_message_is_printed_as(name: str, message: Parts, line: bytes) -> None:
    assert fmt(name).encode(message) == line


@pytest.mark.parametrize(
    ("name", "data", "messages"),
    [
        ("text", b"a\tb\n\nlast", [[b"a", b"b"], [b""], [b"last"]]),
        ("json", b'"alone"\n["a","b"]\n', [[b"alone"], [b"a", b"b"]]),
        ("raw", b"a\nb\n", [[b"a\nb\n"]]),
        ("text", b"", []),
    ],
)
def test_input_is_read_as(name: str, data: bytes, messages: list[list[bytes]]) -> None:
    assert decoded(fmt(name), data) == messages


@pytest.mark.parametrize(("parts", "found"), [(0, [b"a", b"b", b"c"]), (1, [b"a\tb\tc"]), (2, [b"a", b"b\tc"])])
def test_a_line_is_split_into_as_many_parts_as_the_type_has(parts: int, found: list[bytes]) -> None:
    assert decoded(fmt("text", parts=parts), b"a\tb\tc\n") == [found]


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("quoted", b"ok\na\\q\n", "line 2: '\\\\q' is not an escape"),
        ("hex", b"0g\n", "line 1: must be hexadecimal"),
        ("json", b"{}\n", "line 1: must be text"),
        ("json", b"nonsense\n", "line 1: Expecting value"),
        ("json", b"[]\n", "line 1: a message has at least one part"),
        ("json", b'[{"base64": "?"}]\n', "line 1: base64"),
        ("msgpack", b"\x01", "value 1: must be an array"),
        ("msgpack", b"\xc4\x01a\x92\xc4\x01", "value 2 is incomplete"),
    ],
)
def test_invalid_input_is_named_after_what_is_before_it(name: str, data: bytes, text: str) -> None:
    batches = fmt(name).decode(io.BytesIO(data))
    if data.startswith((b"ok", b"\xc4")):
        assert len(next(batches)) == 1
    with pytest.raises(InvalidMessage) as raised:
        list(batches)
    assert text in str(raised.value)


@pytest.mark.parametrize(("name", "delimiter"), [("text", b"\n"), ("quoted", b"x"), ("quoted", b"\\"), ("hex", b"a")])
def test_a_delimiter_that_is_part_of_the_format_is_refused(name: str, delimiter: bytes) -> None:
    with pytest.raises(UsageError, match="delimiter=") as raised:
        format_of(name, delimiter)
    assert raised.value.argument == "delimiter"


@given(st.binary(max_size=60))
def test_quoted_text_has_no_control_characters(data: bytes) -> None:
    text = quote(data)
    assert text.decode().isprintable()
    assert unquote(text) == data


def test_every_format_has_a_name() -> None:
    for name in FORMATS:
        if name != "msgpack":
            assert format_of(name, b"\t")
