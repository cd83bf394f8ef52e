"""The codec of records and blocks, for any input."""

from hypothesis import given, settings
from hypothesis import strategies as st

from omq._core import blocks
from omq._core.blocks import Message
from tests.support.crc32c import crc32c

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
RECORD = st.tuples(
    st.binary(max_size=300),
    st.none() | st.binary(max_size=20),
    st.dictionaries(NAMES, st.binary(max_size=20), max_size=3),
)


def encoded(some: list[tuple[bytes, bytes | None, dict[str, bytes]]]) -> bytes:
    return b"".join(blocks.encode_record(*one) for one in some)


@settings(deadline=None)
@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1))
def test_checksums_are_those_of_the_definition(data: bytes, start: int) -> None:
    assert blocks.crc32c(data, start) == blocks.crc32c_by_table(data, start) == crc32c(data, start)


@settings(deadline=None)
@given(st.lists(RECORD, max_size=12), st.integers(1, 2**62), st.integers(0, 2**50))
def test_what_is_encoded_is_decoded(some, first: int, timestamp: int) -> None:
    records = encoded(some)
    assert blocks.check(records) == len(some)
    assert blocks.damaged(records, len(some)) == []
    messages = blocks.decode(blocks.header(first, len(some), timestamp, len(records)), records, "t")
    assert messages == [Message(first + i, "t", *one, timestamp / 1e6) for i, one in enumerate(some)]


@settings(deadline=None)
@given(st.lists(RECORD, max_size=12), st.data())
def test_slices_and_cuts_lie_between_records(some, data) -> None:
    records = encoded(some)
    start = data.draw(st.integers(0, len(some)))
    stop = data.draw(st.integers(start, len(some)))
    assert blocks.slice(records, start, stop) == encoded(some[start:stop])
    target = data.draw(st.integers(1, 800))
    before = (0, 0)
    for size, count in blocks.cuts(records, target):
        assert records[before[0] : size] == encoded(some[before[1] : count])
        assert size - before[0] <= target or count == before[1] + 1
        before = size, count
    assert before == (len(records), len(some))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_anything_is_checked_without_harm(data: bytes) -> None:
    cuts, slices = lambda data: blocks.cuts(data, 50), lambda data: blocks.slice(data, 0, 2)
    for function in (blocks.check, blocks.read_header, cuts, slices):
        try:
            function(data)
        except ValueError:
            pass
    assert all(start < stop <= 3 for start, stop in blocks.damaged(data, 3))


@settings(deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=6), st.data())
def test_one_changed_bit_is_found_and_what_is_left_is_true(some, data) -> None:
    records = bytearray(encoded(some))
    bit = data.draw(st.integers(0, 8 * len(records) - 1))
    records[bit // 8] ^= 1 << bit % 8
    try:
        blocks.check(records)
    except ValueError:
        pass
    else:
        raise AssertionError("not found")
    damaged = blocks.damaged(records, len(some))
    assert damaged
    where, at = 0, [0]
    for one in some:
        where += len(blocks.encode_record(*one))
        at.append(where)
    hurt = {i for start, stop in damaged for i in range(start, stop)}
    for i, one in enumerate(some):
        if i not in hurt:
            assert records[at[i] : at[i + 1]] == blocks.encode_record(*one)
