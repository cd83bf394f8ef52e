"""Frames: one at a time, and a slab full of them."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from omq._core.wire.framing import FrameDecoder, encode_frame

SLAB = 65536  # bytes


@pytest.mark.parametrize("size", [16, 128, 1024])
def test_encode_a_frame(benchmark: BenchmarkFixture, size: int) -> None:
    body = b"x" * size
    assert len(benchmark(encode_frame, body)) > size


@pytest.mark.parametrize("size", [16, 128, 1024])
def test_decode_a_slab(benchmark: BenchmarkFixture, size: int) -> None:
    frame = encode_frame(b"x" * size)
    slab = frame * (SLAB // len(frame))

    def decode() -> int:
        decoder, count = FrameDecoder(), 0
        decoder.feed(slab)
        while decoder.next_frame() is not None:
            count += 1
        return count

    assert benchmark(decode) == SLAB // len(frame)
