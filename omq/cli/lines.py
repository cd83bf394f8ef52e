"""Reads lines as they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

READ_BYTES: Final = 1 << 20  # of lines that are handled together


def chunks_of(source: BinaryIO) -> Iterator[bytes]:
    """Yields the content of a file as it arrives."""
    read = getattr(source, "read1", source.read)  # a file without a buffer has only `read`, which does the same
    while chunk := read(READ_BYTES):
        yield chunk


def lines_of(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yields lists of lines without their line breaks, as they arrive. The last one may lack its line break."""
    parts: list[bytes] = []  # of a line whose end has not arrived
    for chunk in chunks_of(source):
        lines, mark, rest = chunk.rpartition(b"\n")
        if mark:
            yield b"".join((*parts, lines)).split(b"\n")
            parts = []
        parts.append(rest)
    if last := b"".join(parts):
        yield [last]
