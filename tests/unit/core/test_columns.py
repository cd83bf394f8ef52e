"""Records from and to columns: nothing is lost, nothing is read beyond its end."""

import struct
from array import array
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from omq._core.blocks import BodyTooLarge, decode, encode_record, header
from omq._core.columns import Gatherer, Strings, encode_columns

Row = tuple[bytes, bytes | None, dict[str, bytes] | None]

rows = some.lists(
    some.tuples(
        some.binary(max_size=40),
        some.none() | some.binary(max_size=10),
        some.none() | some.dictionaries(some.text(max_size=5), some.binary(max_size=10), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=30,
)


def ends_of(sizes: list[int], wide: bool = False) -> array:
    return array("q" if wide else "i", accumulate(sizes, initial=0))


def bits_of(flags: list[bool]) -> bytes:
    found = bytearray((len(flags) + 7) // 8)
    for number, one in enumerate(flags):
        found[number // 8] |= one << number % 8
    return bytes(found)


def strings(values: list[bytes | None], **more: Any) -> Strings:
    data = b"".join(value or b"" for value in values)
    ends = ends_of([len(value or b"") for value in values], more.get("wide", False))
    return Strings(ends, data, len(values), valid=bits_of([value is not None for value in values]), **more)


def block(some_rows: list[Row], first: int = 7, timestamp: int = 99) -> tuple[bytes, bytes]:
    records = b"".join(encode_record(*row) for row in some_rows)
    return header(first, len(some_rows), timestamp, len(records)), records


def gathered(found: tuple[Any, ...], memory: bytes | bytearray) -> list[tuple[int, int, Row]]:
    """Rows as Arrow would read them."""
    count, ids, timestamps, ends, size, keys, headers = found

    def column(texts: tuple[bytes, bytes, bytes | None, int]) -> list[bytes | None]:
        positions = struct.unpack(f"={len(texts[0]) // 4}i", texts[0])
        values: list[bytes | None] = [texts[1][a:b] for a, b in pairwise(positions)]
        if texts[2] is None:
            assert texts[3] == 0
            return values
        shown = [value if texts[2][n // 8] >> n % 8 & 1 else None for n, value in enumerate(values)]
        assert shown.count(None) == texts[3]
        return shown

    bodies = column((ends, bytes(memory[:size]), None, 0))
    names, values = column(headers[1]), column(headers[2])
    shown: list[dict[str, bytes] | None] = []
    for n, (a, b) in enumerate(pairwise(struct.unpack(f"={count + 1}i", headers[0]))):
        there = headers[3] is None or headers[3][n // 8] >> n % 8 & 1
        pairs = zip(names[a:b], values[a:b], strict=True)
        shown.append({name.decode(): value for name, value in pairs} if there else None)  # type: ignore[union-attr, misc]
    numbers = struct.unpack(f"={count}q", ids), struct.unpack(f"={count}q", timestamps)
    return list(zip(*numbers, zip(bodies, column(keys), shown, strict=True), strict=True))  # type: ignore[arg-type]


@given(rows)
def test_what_is_gathered_is_what_was_encoded(some_rows: list[Row]) -> None:
    memory = bytearray(10_000)
    gatherer = Gatherer(10_000)
    gatherer.begin(memory)
    gatherer.load(*block(some_rows))
    assert gatherer.fill() is None
    assert gatherer.count == len(some_rows)
    assert gathered(gatherer.take(), memory) == [(7 + n, 99, row) for n, row in enumerate(some_rows)]
    assert gatherer.count == 0


@given(rows, some.integers(1, 200))
def test_columns_end_at_the_limit_and_go_on_with_the_next_row(some_rows: list[Row], limit: int) -> None:
    gatherer = Gatherer(limit)
    found: list[tuple[int, int, Row]] = []
    memory = bytearray(limit)
    gatherer.begin(memory)
    gatherer.load(*block(some_rows))
    while (wanted := gatherer.fill()) is not None:
        if not gatherer.count:
            memory = bytearray(wanted)
        else:
            count = gatherer.count
            one = gathered(gatherer.take(), memory)
            sizes = [
                len(b) + len(k or b"") + sum(2 + 6 + len(n.encode()) + len(v) for n, v in (h or {}).items())
                for _, _, (b, k, h) in one
            ]
            assert count == 1 or sum(sizes) <= limit + 30
            found += one
            memory = bytearray(max(limit, wanted))
        gatherer.begin(memory)
    if gatherer.count:
        found += gathered(gatherer.take(), memory)
    assert [row for _, _, row in found] == some_rows
    assert [id for id, _, _ in found] == list(range(7, 7 + len(some_rows)))


def test_what_is_not_wanted_is_left_out() -> None:
    gatherer = Gatherer(100, bodies=False, keys=False, headers=False)
    gatherer.load(*block([(b"body", b"key", {"n": b"v"})] * 3))
    assert gatherer.fill() is None
    count, ids, _, ends, size, keys, headers = gatherer.take()
    assert (count, len(ids), ends, size, keys, headers) == (3, 24, b"", 0, None, None)


@pytest.mark.parametrize("spoiled", [4, 8, 10, -1])
def test_a_damaged_record_is_named_and_the_gatherer_goes_on(spoiled: int) -> None:
    head, records = block([(b"one", None, None), (b"two", None, None)])
    bad = bytearray(records)
    bad[spoiled if spoiled < 0 else spoiled + 12] ^= 1
    gatherer = Gatherer(100)
    gatherer.begin(bytearray(100))
    gatherer.load(head, bytes(bad))
    with pytest.raises(ValueError, match="record 1"):
        gatherer.fill()
    gatherer.load(head, records)
    assert gatherer.fill() is None
    assert gatherer.count == 3  # that before the damage, too


def test_a_block_of_other_records_is_refused() -> None:
    head, records = block([(b"one", None, None), (b"two", None, None)])
    gatherer = Gatherer(100)
    with pytest.raises(ValueError, match="its header"):
        gatherer.load(head, records[:-1])
    with pytest.raises(ValueError, match="header"):
        gatherer.load(head[:-1], records)
    gatherer.begin(bytearray(100))
    gatherer.load(header(1, 1, 0, len(records)), records)
    with pytest.raises(ValueError, match="more records than the 1 in its header"):
        gatherer.fill()


def test_calls_out_of_order_are_refused() -> None:
    gatherer = Gatherer(100)
    with pytest.raises(RuntimeError):
        gatherer.take()
    with pytest.raises(RuntimeError):
        gatherer.fill()
    gatherer.load(*block([(b"one", None, None)]))
    with pytest.raises(RuntimeError):
        gatherer.load(*block([(b"one", None, None)]))
    with pytest.raises(RuntimeError, match="memory"):
        gatherer.fill()
    with pytest.raises((BufferError, TypeError)):
        gatherer.begin(b"read only")
    gatherer.begin(bytearray(3))
    assert gatherer.fill() is None
    with pytest.raises(RuntimeError):
        gatherer.begin(bytearray(3))
    gatherer.take()
    with pytest.raises(RuntimeError):
        gatherer.take()


def test_memory_is_given_back() -> None:
    memory = bytearray(3)
    gatherer = Gatherer(100)
    gatherer.begin(memory)
    with pytest.raises(BufferError):
        memory.append(1)
    gatherer.load(*block([(b"one", None, None)]))
    gatherer.fill()
    gatherer.take()
    memory.append(1)


@given(rows, some.integers(1, 200), some.booleans())
def test_rows_become_the_same_records(some_rows: list[Row], target: int, wide: bool) -> None:
    heads = [list((row[2] or {}).items()) for row in some_rows]
    headers = (
        Strings(ends_of([len(one) for one in heads], wide), None, len(heads), wide=wide, counts=True),
        strings([name.encode() for one in heads for name, _ in one]),
        strings([value for one in heads for _, value in one]),
    )
    bodies = strings([row[0] for row in some_rows], wide=wide)
    keys = strings([row[1] for row in some_rows])
    row, records, done = 0, [], []
    while row < len(some_rows):
        data, row = encode_columns(bodies, row, target, keys=keys, headers=headers)
        records.append(data)
        done.append(row)
    whole = b"".join(records)
    assert whole == b"".join(encode_record(*one) for one in some_rows)
    assert all(
        len(one) <= target or after - before == 1
        for one, (before, after) in zip(records, pairwise([0, *done]), strict=True)
    )
    found = decode(header(1, len(some_rows), 0, len(whole)), whole, "t")
    assert [(one.body, one.key, one.headers or None) for one in found] == some_rows


def test_a_part_of_a_column_is_read() -> None:
    bodies = Strings(ends_of([1, 2, 3]), b"abbccc", 2, valid=bits_of([False, True, True]), start=1)
    assert len(bodies) == 2
    data, row = encode_columns(bodies, 0, 1000)
    assert (data, row) == (encode_record(b"bb") + encode_record(b"ccc"), 2)


def test_the_number_of_records_made_at_once_is_bounded() -> None:
    assert encode_columns(strings([b"x"] * 10), 0, 1000, most=4)[1] == 4


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Strings(ends_of([1]), b"ab", 2), "ends: must cover"),
        (lambda: Strings(ends_of([1, 1]), b"ab", 2, valid=b""), "valid: must cover"),
        (lambda: Strings(ends_of([1, 2]), b"ab", 2), "beyond the data"),
        (lambda: Strings(ends_of([1]), None, 1), "beyond the data"),
        (lambda: Strings(array("i", [2, 1]), b"ab", 1), "ends before it begins"),
        (lambda: Strings(array("i", [-1, 1]), b"ab", 1), "ends before it begins"),
        (lambda: encode_columns(strings([None]), 0, 9), "row 0: its body is null"),
        (lambda: encode_columns(strings([b"a", b"b"]), 0, 9, keys=strings([b"a"])), "1 keys for 2 rows"),
        (lambda: encode_columns(strings([b"a"]), 0, 9, headers=heads([1], [b"\xff"], [b""])), "not UTF-8"),
        (lambda: encode_columns(strings([b"a"]), 0, 9, headers=heads([1], [b"n"], [None])), "null"),
        (lambda: encode_columns(strings([b"a"]), 0, 9, headers=heads([2], [b"n"], [b"v"])), "headers; there are"),
        (lambda: encode_columns(strings([b"a"]), 0, 9, headers=heads([1], [b"n" * 65536], [b"v"])), "65,535 bytes"),
        (
            lambda: encode_columns(strings([b"a"]), 0, 9, headers=heads([65536], [b""] * 65536, [b""] * 65536)),
            "65,535 headers",
        ),
    ],
)
def test_what_does_not_fit_is_raised(make: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make()


def heads(counts: list[int], names: list[bytes], values: list[bytes | None]) -> tuple[Strings, Strings, Strings]:
    return Strings(ends_of(counts), None, len(counts), counts=True), strings([*names]), strings(values)


def test_a_large_body_is_reported_once_its_turn_comes() -> None:
    bodies = strings([b"a", b"four"])
    data, row = encode_columns(bodies, 0, 1000, limit=3)
    assert (data, row) == (encode_record(b"a"), 1)
    with pytest.raises(BodyTooLarge, match="row 1"):
        encode_columns(bodies, 1, 1000, limit=3)


def test_columns_without_data_are_no_bodies() -> None:
    counts = Strings(ends_of([1]), None, 1, counts=True)
    with pytest.raises(TypeError):
        encode_columns(counts, 0, 9)
    with pytest.raises(TypeError):
        encode_columns(strings([b"a"]), 0, 9, headers=(strings([b"a"]), strings([b"a"]), strings([b"a"])))
