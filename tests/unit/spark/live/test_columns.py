"""Batches of messages, and their columns."""

import pytest

from omq.spark.live.columns import MessageBatch
from omq.spark.live.settings import SocketSettings
from omq.spark.options import STREAM_READ


def batch_of(*messages: list[bytes]) -> MessageBatch:
    return MessageBatch.of_messages("tcp://x:1", 0, [(1, len(messages))], messages)


@pytest.mark.parametrize("messages", [([b"a" * 100],), ([b"a"], [b""], [b"bc"])], ids=["one message", "several"])
def test_messages_of_one_part_are_not_copied_into_the_column_value(messages: tuple[list[bytes], ...]) -> None:
    batch = batch_of(*messages)
    column = batch.record_batch(SocketSettings.parse(STREAM_READ, {"socket": "PULL", "connect": "tcp://x:1"})).column(
        "value"
    )
    assert column.to_pylist() == [parts[0] for parts in messages]
    assert column.buffers()[2].address == batch.body.address


def test_a_message_of_several_parts_has_no_value() -> None:
    settings = SocketSettings.parse(STREAM_READ, {"socket": "PULL", "connect": "tcp://x:1", "columns": "value,parts"})
    rows = batch_of([b"a"], [b"b", b"c"]).record_batch(settings).to_pylist()
    assert rows == [{"value": b"a", "parts": [b"a"]}, {"value": None, "parts": [b"b", b"c"]}]
