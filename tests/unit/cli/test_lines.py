"""Lines of a pipe."""

from __future__ import annotations

import io

import pytest

from omq.cli.lines import lines_of


class Arriving(io.BytesIO):
    """A pipe in which the parts arrive one after the other."""

    def __init__(self, *parts: bytes) -> None:
        super().__init__()
        self._parts = list(parts)

    def read1(self, size: int | None = -1, /) -> bytes:
        return self._parts.pop(0) if self._parts else b""


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ((), []),
        ((b"a\n",), [[b"a"]]),
        ((b"a\nb\n\n",), [[b"a", b"b", b""]]),
        ((b"a\r\n", b"b"), [[b"a\r"], [b"b"]]),
        ((b"a", b"b", b"c\nd", b"e"), [[b"abc"], [b"de"]]),
        ((b"a", b"\n"), [[b"a"]]),
    ],
)
def test_lines_are_read_as_they_arrive(parts: tuple[bytes, ...], lines: list[list[bytes]]) -> None:
    assert list(lines_of(Arriving(*parts))) == lines
