"""The formats of messages in files, standard input and output."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

from omq.cli.lines import chunks_of, lines_of
from omq.errors import OmqError, UsageError
from omq.serving.extras import missing_extra

#: A message: its part, or its parts.
Parts = bytes | list[bytes]

ESCAPED: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
UNESCAPED: Final = {b"\\": b"\\", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.?))", re.DOTALL)


class InvalidMessage(OmqError):
    """Raised when input is not valid in its format."""


def quote(data: bytes) -> bytes:
    """Escapes backslashes, control characters and bytes that are not UTF-8."""
    text = data.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return data
    return "".join(map(_quoted, text)).encode()


def _quoted(character: str) -> str:
    if character in ESCAPED:
        return ESCAPED[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def unquote(data: bytes) -> bytes:
    r"""Returns the bytes that were escaped: `\\`, `\n`, `\r`, `\t` and `\xHH`.

    Raises:
        InvalidMessage: There is another escape.
    """

    def unescaped(found: re.Match[bytes]) -> bytes:
        if found[1]:
            return bytes.fromhex(found[1].decode())
        if found[2] not in UNESCAPED:
            raise InvalidMessage(f"{found[0].decode(errors='replace')!r} is not an escape; a backslash is \\\\")
        return UNESCAPED[found[2]]

    return ESCAPE.sub(unescaped, data) if b"\\" in data else data


def parts_of(message: Parts) -> list[bytes]:
    """Returns the parts of a message."""
    return [message] if isinstance(message, bytes) else message


class LineFormat:
    """A message is a line, and its parts are separated by a delimiter.

    Args:
        delimiter: The delimiter; empty for messages of one part.
        max_parts: The number of parts that a line is split into at most; 0 for any.
        encode_part: Encodes a part.
        decode_part: Decodes a part; raises `ValueError`, or `InvalidMessage`.
    """

    def __init__(
        self,
        delimiter: bytes,
        max_parts: int = 0,
        encode_part: Callable[[bytes], bytes] | None = None,
        decode_part: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._delimiter = delimiter if max_parts != 1 else b""
        self._separator = delimiter
        self._max_splits = max_parts - 1
        self._encode_part = encode_part
        self._decode_part = decode_part

    def encode(self, message: Parts) -> bytes:
        """Returns the line of a message, with its line break."""
        parts = parts_of(message)
        if self._encode_part is not None:
            parts = [self._encode_part(part) for part in parts]
        return self._separator.join(parts) + b"\n"

    def decode(self, source: BinaryIO) -> Iterator[list[Parts]]:
        """Yields lists of messages as they arrive.

        Raises:
            InvalidMessage: A line is not valid.
        """
        count = 0
        for lines in lines_of(source):
            messages = []
            for line in lines:
                count += 1
                try:
                    messages.append(self._message(line))
                except (InvalidMessage, ValueError) as fault:
                    if messages:
                        yield messages  # those before it are valid
                    raise InvalidMessage(f"line {count}: {fault}") from None
            yield messages

    def _message(self, line: bytes) -> Parts:
        mark = self._delimiter
        parts = line.split(mark, self._max_splits) if mark and mark in line else [line]
        if self._decode_part is not None:
            parts = [self._decode_part(part) for part in parts]
        return parts if len(parts) > 1 else parts[0]


class RawFormat:
    """A message is the whole content of a file; messages are printed without anything between them."""

    def encode(self, message: Parts) -> bytes:
        """Returns the bytes of a message."""
        return message if isinstance(message, bytes) else b"".join(message)

    def decode(self, source: BinaryIO) -> Iterator[list[Parts]]:
        """Yields one message."""
        yield [b"".join(chunks_of(source))]


class JsonFormat(LineFormat):
    """A message is a line with a JSON array of its parts: text, or `{"base64": TEXT}` for bytes that are not UTF-8."""

    def __init__(self) -> None:
        super().__init__(b"")

    def encode(self, message: Parts) -> bytes:
        """Returns the line of a message, with its line break."""
        return json.dumps([json_part(part) for part in parts_of(message)], ensure_ascii=False).encode() + b"\n"

    def _message(self, line: bytes) -> Parts:
        value = json.loads(line)
        parts = [_part_of_json(part) for part in (value if isinstance(value, list) else [value])]
        if not parts:
            raise InvalidMessage("a message has at least one part")
        return parts if len(parts) > 1 else parts[0]


def json_part(part: bytes) -> str | dict[str, str]:
    """Returns a part for JSON: text, or an object with base64 if it is not UTF-8."""
    try:
        return part.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(part).decode()}


def _part_of_json(part: Any) -> bytes:
    match part:
        case str():
            return part.encode()
        case {"base64": str(text), **rest} if not rest:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as fault:
                raise InvalidMessage(f"base64: {fault}") from None
    raise InvalidMessage('must be text, or a JSON array of text and {"base64": TEXT}')


class MsgpackFormat:
    """A message is a MessagePack array of binary values, its parts.

    Raises:
        ImportError: The package msgpack is missing.
    """

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError as missing:
            raise missing_extra("--format msgpack", missing, "cli") from None
        self._msgpack: Any = msgpack

    def encode(self, message: Parts) -> bytes:
        """Returns the array of a message."""
        packed: bytes = self._msgpack.packb(parts_of(message))
        return packed

    def decode(self, source: BinaryIO) -> Iterator[list[Parts]]:
        """Yields lists of messages as they arrive.

        Raises:
            InvalidMessage: A value is not valid, or the last one is incomplete.
        """
        unpacker = self._msgpack.Unpacker(raw=True, max_buffer_size=0)
        count = arrived = complete = 0
        for chunk in chunks_of(source):
            arrived += len(chunk)
            unpacker.feed(chunk)
            messages: list[Parts] = []
            try:
                for value in unpacker:
                    count += 1
                    parts = value if isinstance(value, list) else [value]
                    if not parts or not all(isinstance(part, bytes) for part in parts):
                        raise ValueError("must be an array of binary or text")
                    messages.append(parts)
                    complete = unpacker.tell()
            except Exception as fault:
                yield messages
                raise InvalidMessage(f"value {count}: {fault}") from None
            yield messages
        if arrived > complete:
            raise InvalidMessage(f"value {count + 1} is incomplete")


#: A format of messages.
Format = LineFormat | RawFormat | MsgpackFormat
FORMATS: Final = ("raw", "text", "quoted", "hex", "json", "msgpack")
#: Characters that a delimiter must not have, by format; none of them has a line break.
NOT_IN_DELIMITER: Final = {"quoted": rb"[\\\w]", "hex": rb"[0-9a-fA-F]"}


def format_of(name: str, delimiter: bytes, max_parts: int = 0) -> Format:
    """Returns a format by its name.

    Args:
        name: One of `FORMATS`.
        delimiter: The delimiter between parts of a line.
        max_parts: The number of parts that a line is split into at most; 0 for any.

    Raises:
        UsageError: The delimiter does not fit.
        ImportError: A package is missing.
    """
    if b"\n" in delimiter or re.search(NOT_IN_DELIMITER.get(name, rb"(?!)"), delimiter):
        text = delimiter.decode(errors="replace")
        raise UsageError(f"delimiter={text!r}: is part of the format {name!r}").about("delimiter")
    match name:
        case "raw":
            return RawFormat()
        case "json":
            return JsonFormat()
        case "msgpack":
            return MsgpackFormat()
        case "hex":
            return LineFormat(delimiter, max_parts, _hexadecimal, _of_hexadecimal)
        case "quoted":
            escaped = b"".join(b"\\x%02x" % byte for byte in delimiter)
            if not delimiter or delimiter == b"\t":
                return LineFormat(delimiter, max_parts, quote, unquote)
            return LineFormat(delimiter, max_parts, lambda part: quote(part).replace(delimiter, escaped), unquote)
    return LineFormat(delimiter, max_parts)


def _hexadecimal(part: bytes) -> bytes:
    return part.hex().encode()


def _of_hexadecimal(part: bytes) -> bytes:
    try:
        return bytes.fromhex(part.decode("ascii"))
    except ValueError:
        raise InvalidMessage("must be hexadecimal digits") from None
