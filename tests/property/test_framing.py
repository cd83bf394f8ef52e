"""Frames: whatever goes in comes out, however the network cuts it; whatever else comes in does no harm."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from omq._core.wire.framing import FrameDecoder, encode_frame
from omq.errors import RemoteProtocolError
from tests.support.hypothesis_profiles import examples

MORE, COMMAND = 1, 4

bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([254, 255, 256, 257, 65535, 65536]).map(lambda size: b"\xa5" * size),
)
frames = st.tuples(st.sampled_from([0, MORE, COMMAND]), bodies)


def encoded(frame: tuple[int, bytes]) -> bytes:
    flags, body = frame
    return encode_frame(body, more=bool(flags & MORE), command=bool(flags & COMMAND))


def drained(decoder: FrameDecoder) -> list[tuple[int, bytes]]:
    taken = []
    while (frame := decoder.next_frame()) is not None:
        taken.append(frame)
    return taken


@examples(50)
@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 2**17), max_size=12))
def test_any_frames_survive_any_cut(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(map(encoded, sent))
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    decoder, received = FrameDecoder(), []
    for start, end in itertools.pairwise(edges):
        decoder.feed(stream[start:end])
        received += drained(decoder)
    assert received == sent
    assert decoder.unread == b""


@examples(50)
@given(frames)
def test_a_header_is_two_octets_or_nine(frame: tuple[int, bytes]) -> None:
    assert len(encoded(frame)) - len(frame[1]) == (2 if len(frame[1]) < 256 else 9)


@examples(50)
@given(st.binary(max_size=64), st.one_of(st.none(), st.integers(0, 100)))
@example(b"\x02" + b"\xff" * 8 + b"data", None)
@example(b"\x02\x7f" + b"\xff" * 7, None)
@example(b"\x05\x00", None)
def test_arbitrary_bytes_give_frames_or_one_kind_of_error(data: bytes, limit: int | None) -> None:
    decoder = FrameDecoder(limit)
    decoder.feed(data)
    try:
        taken = drained(decoder)
    except RemoteProtocolError:
        return
    assert all(flags in (0, MORE, COMMAND) for flags, _ in taken)
    assert all(limit is None or len(body) <= limit for _, body in taken)
    # Nothing is invented and nothing lost: headers, bodies and the rest make up what came in.
    headers = len(data) - len(decoder.unread) - sum(len(body) for _, body in taken)
    assert 2 * len(taken) <= headers <= 9 * len(taken)
    assert data.endswith(decoder.unread)


@examples(50)
@given(st.binary(min_size=1, max_size=40))
def test_the_cut_never_changes_the_verdict(data: bytes) -> None:
    def verdict(pieces: list[bytes]) -> tuple[list[tuple[int, bytes]], bool]:
        decoder, taken = FrameDecoder(), []
        for piece in pieces:
            decoder.feed(piece)
            try:
                while (frame := decoder.next_frame()) is not None:
                    taken.append(frame)
            except RemoteProtocolError:
                return taken, False
        return taken, True

    assert verdict([data]) == verdict([bytes([octet]) for octet in data])
