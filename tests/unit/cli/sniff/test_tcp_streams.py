"""The bytes of a direction of TCP from segments in any order."""

from __future__ import annotations

import random

import pytest

from omq.cli.sniff.tcp_streams import Segment, StreamAssembler

START = 2**32 - 5  # sequence numbers begin again after 2**32


def segment(at: int, data: bytes, *, starts: bool = False) -> Segment:
    return Segment(0.0, "a:1", "b:2", (1, 2), (START + at) % 2**32, starts, data)


@pytest.mark.parametrize("seed", range(20))
def test_lost_repeated_and_overlapping_segments_make_one_stream(seed: int) -> None:
    shuffle = random.Random(seed)
    data = bytes(range(100))
    pieces = [segment(1 + at, data[at : at + shuffle.randrange(3, 9)]) for at in range(0, 100, 3)]
    pieces += shuffle.sample(pieces, 5)
    shuffle.shuffle(pieces)
    assembler = StreamAssembler()
    found = assembler.add(segment(0, b"", starts=True))
    found += b"".join(map(assembler.add, pieces))
    assert found == data
    assert assembler.from_start
    assert assembler.waiting == 0


def test_bytes_after_a_gap_wait() -> None:
    assembler = StreamAssembler()
    assert assembler.add(segment(0, b"ab")) == b"ab"
    assert assembler.add(segment(5, b"fgh")) == b""
    assert assembler.waiting == 3
    assert assembler.add(segment(1, b"bcde")) == b"cdefgh"
    assert not assembler.from_start
