"""The bytes of the entries of the journal."""

import dataclasses
import json
import struct
import time
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omq._core.blocks import crc32c
from omq.store.errors import DamagedError, StoreError
from omq.store.interface import (
    AbortStage,
    Acknowledge,
    AlterTopic,
    Append,
    CommitStages,
    DeadLetterReason,
    DeleteCursor,
    DeleteGroup,
    DeleteTopic,
    Delivery,
    MakeTopic,
    MoveToDeadLetter,
    Persistence,
    Requeue,
    SetCursor,
    SetGroup,
    Stage,
    Trim,
    Write,
)
from omq.store.internal import ApplyRetention, ExpireState, Quarantine
from omq.store.replication.codec import (
    MAX_TIMESTAMP,
    VERSION,
    Entry,
    Kind,
    Lease,
    decode,
    encode,
    encode_large,
    seal,
)
from tests.support.hypothesis_profiles import examples

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TIME = st.integers(0, MAX_TIMESTAMP)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
BINARY = st.binary(max_size=60)
LIMIT = st.none() | st.integers(0, 2**40) | st.floats(0, 1e12)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={"max_age": LIMIT, "max_messages": LIMIT, "max_bytes": LIMIT, "key_by": TEXT, "more": st.lists(TEXT)},
)
PAIRS = st.lists(st.tuples(U64, U64), max_size=5)


WRITES: dict[type[Write], Any] = {
    Append: st.builds(Append, U32, BINARY, U32, st.binary(max_size=96), U64, U64, repeats_only=st.booleans()),
    MakeTopic: st.builds(
        MakeTopic,
        TEXT,
        st.sampled_from(get_args(Delivery)),
        st.sampled_from(get_args(Persistence)),
        SETTINGS,
        owner=TEXT,
    ),
    AlterTopic: st.builds(AlterTopic, U32, SETTINGS),
    DeleteTopic: st.builds(DeleteTopic, U32),
    Acknowledge: st.builds(
        Acknowledge, U32, PAIRS, U64, st.dictionaries(U64, U64, max_size=5), group=TEXT, generation=U64
    ),
    MoveToDeadLetter: st.builds(
        MoveToDeadLetter,
        U32,
        U64,
        U32,
        group=TEXT,
        generation=U64,
        deliveries=U64,
        reason=st.sampled_from([None, *get_args(DeadLetterReason)]),
    ),
    Requeue: st.builds(Requeue, U32, st.lists(st.tuples(U64, U64), min_size=1, max_size=5)),
    SetCursor: st.builds(SetCursor, U32, TEXT, U64),
    DeleteCursor: st.builds(DeleteCursor, U32, TEXT),
    SetGroup: st.builds(SetGroup, U32, TEXT, U64),
    DeleteGroup: st.builds(DeleteGroup, U32, TEXT),
    Stage: st.builds(Stage, U32, BINARY, U32, BINARY, U64),
    CommitStages: st.builds(CommitStages, BINARY, st.lists(BINARY, max_size=4)),
    AbortStage: st.builds(AbortStage, BINARY, prefix=st.booleans()),
    Trim: st.builds(Trim, U32, U64),
    ApplyRetention: st.builds(ApplyRetention),
    ExpireState: st.builds(ExpireState, BINARY),
}
ENTRIES = st.builds(
    Entry, st.just(Kind.WRITES), U64, TIME, st.lists(st.one_of(*WRITES.values()), max_size=6)
) | st.builds(
    Entry,
    st.just(Kind.LEASE),
    U64,
    TIME,
    lease=st.builds(Lease, TEXT, st.lists(TEXT, max_size=4).map(tuple), U64),
    previous=U64,
)


def fields(write: Write) -> tuple[Any, ...]:
    """Returns the type of a write with the fields that a caller gives."""
    return type(write), {
        one.name: getattr(write, one.name) for one in dataclasses.fields(write) if one.init and one.name != "context"
    }


def as_value(entry: Entry) -> tuple[Any, ...]:
    writes = [fields(write) for write in entry.writes]
    return entry.kind, entry.term, entry.timestamp, entry.wall, entry.previous, writes, entry.lease


def decoded(payload: bytes) -> Entry | None:
    """Returns the entry with these bytes; `None` if they are damaged."""
    with suppress(DamagedError):
        return decode(payload)
    return None


def sealed(payload: bytes) -> bytes:
    """Returns a payload with the checksum that it should have."""
    return payload[:34] + struct.pack(">I", crc32c(payload[38:], crc32c(payload[:34]))) + payload[38:]


def test_every_write_of_the_interface_has_a_layout() -> None:
    import omq.store.interface as interface

    types = {
        one for one in vars(interface).values() if isinstance(one, type) and issubclass(one, Write) and one is not Write
    }
    assert types <= set(WRITES)


@examples(200)
@given(ENTRIES)
def test_an_entry_comes_back(entry: Entry) -> None:
    assert as_value(decode(encode(entry))) == as_value(entry)


def test_a_large_entry_is_encoded_as_a_small_one() -> None:
    entry = Entry(Kind.WRITES, 1, 1, [Append(1, bytes(range(256)) * 5000, 1), Stage(1, b"staged", 1, b"s")])
    payload = encode_large(entry)
    for entry.previous in (1, 2):
        seal(payload, entry)
        assert payload == encode(entry)


@pytest.mark.parametrize("kind", list(WRITES), ids=lambda kind: kind.__name__)
def test_each_write_comes_back(kind: type[Write]) -> None:
    @settings(max_examples=20, deadline=None)
    @given(WRITES[kind])
    def check(write: Write) -> None:
        entry = Entry(Kind.WRITES, 3, 5, [write])
        assert as_value(decode(encode(entry))) == as_value(entry)

    check()


def test_records_are_views_of_the_payload() -> None:
    payload = bytearray(encode(Entry(Kind.WRITES, 1, 1, [Append(1, b"records", 1), Stage(1, b"staged", 1, b"s")])))
    append, stage = decode(memoryview(payload)).writes
    assert isinstance(append, Append)
    assert isinstance(stage, Stage)
    payload[:] = bytes(len(payload))
    assert (bytes(append.records), bytes(stage.records)) == (bytes(7), bytes(6))


@examples(300)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_damaged(payload: bytes) -> None:
    # With the right head and checksum the fields themselves are read.
    for one in (payload, sealed(bytes([VERSION, 2]) + payload), sealed(bytes([VERSION, 1]) + payload)):
        assert decoded(one) is None or len(one) >= 22


@examples(300)
@given(ENTRIES, st.data())
def test_a_changed_entry_is_damaged(entry: Entry, data: st.DataObject) -> None:
    payload = encode(entry)
    at = data.draw(st.integers(0, len(payload) - 1))
    other = bytes([payload[at] ^ data.draw(st.integers(1, 255))])
    for changed in (payload[:at], payload[:at] + other + payload[at + 1 :], payload + b"\1"):
        with pytest.raises(DamagedError):
            decode(changed)


@examples(300)
@given(ENTRIES, st.data())
def test_a_changed_entry_with_a_right_checksum_is_read_or_damaged(entry: Entry, data: st.DataObject) -> None:
    payload = bytearray(encode(entry))
    for _ in range(3):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    found = decoded(sealed(bytes(payload)))
    assert found is None or encode(found)  # what was read can be written again


def test_sizes_that_lie_cost_nothing() -> None:
    payload = encode(Entry(Kind.WRITES, 1, 1, [Acknowledge(1, [(1, 2)])]))
    at = payload.index(struct.pack(">I", 16))
    began = time.process_time()
    for size in (2**32 - 1, 2**31, 17, 15):
        with pytest.raises(DamagedError):
            decode(sealed(payload[:at] + struct.pack(">I", size) + payload[at + 4 :]))
    assert time.process_time() - began < 1


def test_deeply_nested_settings_are_damaged() -> None:
    size = 100_000
    payload = encode(Entry(Kind.WRITES, 1, 1, [AlterTopic(1, {})]))
    head, old = payload[: -len(b"{}") - 4], b"[" * size
    with pytest.raises(DamagedError):
        decode(sealed(head + struct.pack(">I", size) + old))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (CommitStages(b"c", [b"s"], may=lambda id: True), "have to be called before"),
        (CommitStages(b"c", [b"s"], has_room=lambda *args: True), "have to be called before"),
        (Quarantine(1, 1, 1), "not replicated"),
        (Append(1, b"r", 1, b"p" * 97), "at most 96"),
        (Stage(1, b"r", 1, b"s" * 511), "at most 510"),
        (CommitStages(b"c", [b"s" * 511]), "at most 510"),
        (Requeue(1, []), "empty"),
        (AlterTopic(1, {"max_age": "soon"}), "max_age='soon'"),
        (AlterTopic(1, {"max_bytes": float("inf")}), "max_bytes=inf"),
        (MakeTopic("t", "broadcast", "strong", {"more": object()}), "serializable"),
        (MakeTopic("t", "sometimes", "strong"), "'sometimes'"),  # type: ignore[arg-type]
        (Append(2**32, b"r", 1), ""),
        (SetCursor(1, "name", -1), ""),
    ],
)
def test_a_write_that_no_node_could_apply_is_refused(write: Write, reason: str) -> None:
    with pytest.raises(StoreError, match=rf"a {type(write).__name__} cannot be part of an entry: .*{reason}"):
        encode(Entry(Kind.WRITES, 1, 1, [write]))


def test_a_timestamp_that_no_node_could_use_is_refused() -> None:
    with pytest.raises(StoreError, match="above 9007199254740991: set the system's clock"):
        encode(Entry(Kind.WRITES, 1, MAX_TIMESTAMP + 1))
    payload = encode(Entry(Kind.WRITES, 1, MAX_TIMESTAMP))
    with pytest.raises(DamagedError, match="its timestamp"):
        decode(sealed(payload[:10] + struct.pack(">Q", MAX_TIMESTAMP + 1) + payload[18:]))


def test_another_version_is_named() -> None:
    payload = encode(Entry(Kind.WRITES, 1, 1))
    with pytest.raises(DamagedError, match="version 1, expected 2"):
        decode(sealed(b"\1" + payload[1:]))


@pytest.mark.parametrize("settings", [[], None, 1, {"max_age": "1"}, {"max_messages": True}, {"max_bytes": 1e300}])
def test_settings_that_the_store_cannot_apply_are_damaged(settings: Any) -> None:
    payload = encode(Entry(Kind.WRITES, 1, 1, [AlterTopic(1, {})]))
    row = json.dumps(settings).encode()
    with pytest.raises(DamagedError):
        decode(sealed(payload[: -len(b"{}") - 4] + struct.pack(">I", len(row)) + row))
