"""The offsets of a live socket in a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

import omq
from omq.spark.live.settings import SocketSettings
from omq.spark.live.source import SocketStreamReader
from omq.spark.options import STREAM_READ


@pytest.fixture
def reader() -> SocketStreamReader:
    given = {"socket": "PULL", "connect": "tcp://127.0.0.1:1", "columns": "value"}
    return SocketStreamReader(SocketSettings.parse(STREAM_READ, given))


@pytest.mark.parametrize("change", [{}, {"microbatch": None}, {"microbatch": "one"}, {"microbatch": -1}, "missing"])
def test_a_damaged_offset_is_reported(reader: SocketStreamReader, change: Any) -> None:
    offset = reader.initialOffset()
    if change == "missing":
        del offset["microbatch"]
    elif change:
        offset.update(change)
    else:
        reader.commit(offset)
        return
    for call in (reader.commit, reader.latestOffset, lambda one: reader.partitions(one, one)):
        with pytest.raises(omq.StateError, match=r"the checkpoint has a damaged offset: .*live"):
            call(offset)
