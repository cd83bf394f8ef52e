"""Offsets as a checkpoint holds them, and how ids are shared out."""

import json

import pyarrow  # noqa: F401
import pytest
from hypothesis import given
from hypothesis import strategies as some

import omq
from omq.spark.topics.offsets import Offset, TopicOffset, TopicRange, allocate, split


def test_an_offset_is_read_as_it_was_written_and_its_text_does_not_depend_on_an_order() -> None:
    one = Offset("b", {"z": TopicOffset(2, 5), "a": TopicOffset(1, 7)})
    other = Offset("b", {"a": TopicOffset(1, 7), "z": TopicOffset(2, 5)})
    text = json.dumps(one.json())
    assert text == json.dumps(other.json())
    assert text == (
        '{"broker": "b", "kind": "topics", "topics": {"a": {"id": 1, "next": 7}, "z": {"id": 2, "next": 5}},'
        ' "version": 1}'
    )
    assert Offset.parse(json.loads(text)) == one
    assert Offset.parse(json.loads(json.dumps(one.json(rowsBehind=3)))) == one


def test_the_start_of_the_first_microbatch_is_kept_and_not_compared() -> None:
    one = Offset("b", {"z": TopicOffset(2, 5, 3), "a": TopicOffset(1, 7)})
    text = json.dumps(one.json())
    assert '{"a": {"id": 1, "next": 7}, "z": {"from": 3, "id": 2, "next": 5}}' in text
    found = Offset.parse(json.loads(text))
    assert found.topics["z"].begin == 3
    assert found.topics["a"].begin is None
    assert found == one == Offset("b", {"z": TopicOffset(2, 5), "a": TopicOffset(1, 7)})


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (7, "the checkpoint belongs to another kind of source, not to topics: 7"),
        ({"kind": "live", "microbatch": 3, "version": 1}, "the checkpoint belongs to another kind of source"),
        ({"ticks": {"0": 5}}, "the checkpoint belongs to another kind of source"),
        ({"kind": "topics", "version": 2}, "the checkpoint has offsets of version 2, this package supports 1"),
        ({"kind": "topics", "version": 1, "broker": "b"}, "the checkpoint has a damaged offset"),
        ({"kind": "topics", "version": 1, "broker": "b", "topics": {"t": {"id": 1}}}, "damaged"),
        ({"kind": "topics", "version": 1, "broker": "b", "topics": [1]}, "damaged"),
        ({"kind": "topics", "version": 1, "broker": "b", "topics": {"t": 1}}, "damaged"),
        (
            {"kind": "topics", "version": 1, "broker": "b", "topics": {"t": {"id": 1, "next": 2, "from": "x"}}},
            "damaged",
        ),
    ],
)
def test_an_invalid_offset_is_named(found: object, error: str) -> None:
    with pytest.raises(omq.StateError, match=error):
        Offset.parse(found)


@given(some.lists(some.integers(0, 1000), min_size=1, max_size=8), some.integers(0, 4000))
def test_allocations_use_the_whole_limit_and_exceed_no_request(wanted: list[int], limit: int) -> None:
    given_out = allocate(wanted, limit)
    assert sum(given_out) == min(sum(wanted), limit)
    assert all(0 <= got <= want for got, want in zip(given_out, wanted, strict=True))
    if sum(wanted) > limit:
        exact = [want * limit / sum(wanted) for want in wanted]
        raised = sum(0 < share < 1 for share in exact)
        assert all(share - 1 - raised < got < share + 1 for got, share in zip(given_out, exact, strict=True))
    if sum(map(bool, wanted)) <= limit:
        assert all(bool(got) == bool(want) for got, want in zip(given_out, wanted, strict=True))


@given(
    some.lists(some.tuples(some.integers(1, 100), some.integers(0, 100)), max_size=5),
    some.none() | some.integers(1, 40),
)
def test_pieces_have_every_id_once(sizes: list[tuple[int, int]], least: int | None) -> None:
    ranges = [TopicRange(f"t{n}", n, start, start + size, "b") for n, (start, size) in enumerate(sizes)]
    pieces = split(ranges, least)
    ids = [(one.topic, id) for one in pieces for id in range(one.start, one.stop)]
    assert ids == [(one.topic, id) for one in ranges for id in range(one.start, one.stop)]
    assert all(len(one) for one in pieces)
    assert {one.broker for one in pieces} <= {"b"}
    there = sum(1 for _, size in sizes if size)
    assert len(pieces) == there if least is None else len(pieces) >= min(least, len(ids))
