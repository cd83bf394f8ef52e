"""Frames: one at a time, and a buffer full of them."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from omq._core.wire.framing import FrameDecoder, encode_frame

BUFFER_BYTES = 65536


@pytest.mark.parametrize("size", [16, 128, 1024])
def test_encode_a_frame(benchmark: BenchmarkFixture, size: int) -> None:
    body = b"x" * size
    assert len(benchmark(encode_frame, body)) > size


@pytest.mark.parametrize("size", [16, 128, 1024])
def test_decode_a_buffer(benchmark: BenchmarkFixture, size: int) -> None:
    frame = encode_frame(b"x" * size)
    buffer = frame * (BUFFER_BYTES // len(frame))

    def decode() -> int:
        decoder, count = FrameDecoder(), 0
        decoder.feed(buffer)
        while decoder.next_frame() is not None:
            count += 1
        return count

    assert benchmark(decode) == BUFFER_BYTES // len(frame)
