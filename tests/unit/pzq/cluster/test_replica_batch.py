"""Replicas as they come from another node."""

from __future__ import annotations

import tracemalloc

import pytest

from omq._core.blocks import encode
from omq.pzq.cluster.replica_batch import read_batch
from omq.pzq.errors import Malformed
from omq.pzq.wire import pack

HEAD = b"1700000000000000|0b9c2d4e-8a4f-8c5e-9b1a-123456789abc"


@pytest.mark.parametrize("records", [bytes(2_000_000), encode([b""] * 1000)])
def test_a_number_of_messages_that_are_not_there_costs_nothing(records: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            read_batch(HEAD + b" 900000", records)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", [b"", b"k" * 256, b"\xff"])
def test_an_invalid_key_is_refused(key: bytes) -> None:
    with pytest.raises(Malformed):
        read_batch(b"", pack([key, b"body"]))
