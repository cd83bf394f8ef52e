"""Runs of replicas, for any messages: what a node reads is what another one had."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omq._core import blocks
from omq.pzq.cluster.keys import Keys
from omq.pzq.cluster.replica_batch import ReplicaBatch, consecutive_keys, read_batch
from omq.pzq.errors import Malformed
from omq.pzq.wire import key_format, key_of, pack, unpack

HOW = key_format("0123456789abcdef0123456789abcdef", 7)
MESSAGES = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), min_size=1, max_size=8)
FIRSTS = st.one_of(st.integers(1, 2**61), st.integers(2**48 - 8, 2**48 + 2))


def records_of(messages: list[list[bytes]]) -> bytes:
    """Returns the messages' records as a device stores them."""
    return b"".join(blocks.encode(parts) if len(parts) == 1 else pack(parts) for parts in messages)


def named(records: bytes, keys: Keys) -> bytes:
    """The same with their keys, as a node has them that keeps replicas."""
    if len(keys.ranges) == 1:
        ((head, first, end),) = keys.ranges
        return blocks.named(records, head.encode(), first, end - first)
    found, at = [], 0
    for head, first, end in keys.ranges:
        some = bytes(blocks.slice(records, at, at + end - first))
        found.append(blocks.named(some, head.encode(), first, end - first))
        at += end - first
    return b"".join(found)


def read(run: ReplicaBatch) -> list[tuple[str, list[bytes]]]:
    """Key and parts of each message of a run that has come."""
    assert run.named
    whole = blocks.header(1, blocks.check(run.records), 0, len(run.records))
    found = [unpack(message.body, message.key) for message in blocks.decode(whole, run.records, "")]
    assert [key.decode() for key, *_ in found] == run.keys
    return [(key.decode(), parts) for key, *parts in found]


@settings(deadline=None)
@given(MESSAGES, FIRSTS, st.integers(0, 2**53), st.data())
def test_a_run_arrives_as_it_was(messages: list[list[bytes]], first: int, when: int, data: st.DataObject) -> None:
    keys = consecutive_keys(HOW, when, first, len(messages))
    assert keys == [key_of(HOW, when, first + number).decode() for number in range(len(messages))]
    expected = list(zip(keys, messages, strict=True))
    records = records_of(messages)
    whole = ReplicaBatch(keys, named(records, keys), True)
    assert read(whole) == read(read_batch(whole.head(), bytes(whole.records))) == expected
    if first >> 48 == first + len(messages) >> 48:
        assert read(read_batch(ReplicaBatch(keys, records, False).head(), records)) == expected
    some = data.draw(st.sets(st.sampled_from(keys)))
    assert read(whole.some(some)) == [one for one in expected if one[0] in some]


@settings(deadline=None)
@given(MESSAGES, st.booleans(), st.data())
def test_a_damaged_run_is_refused(messages: list[list[bytes]], has_keys: bool, data: st.DataObject) -> None:
    run = ReplicaBatch(consecutive_keys(HOW, 1, 1, len(messages)), records_of(messages), False)
    if has_keys:
        run = ReplicaBatch(run.keys, named(bytes(run.records), run.keys), True)
    broken = bytearray(run.records)
    broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Malformed):
        read_batch(run.head(), bytes(broken))
    with pytest.raises(ValueError, match=r"."):
        named(bytes(broken), run.keys)
