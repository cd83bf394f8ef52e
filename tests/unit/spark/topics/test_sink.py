"""Rows become messages, whatever Arrow calls their types and wherever their columns begin."""

from itertools import pairwise
from typing import Any

import pyarrow  # noqa: F401
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

import omq
from omq._core.blocks import Message, decode, header
from omq.broker import Records
from omq.spark.topics.settings import TopicSettings
from omq.spark.topics.sink import MAX_STAGES, TaskCommit, TopicSink, by_topic, check_rows, records

MAP = pa.map_(pa.string(), pa.binary())


def decoded(found: list[Records]) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
    messages: list[Message] = []
    for one in found:
        messages += decode(header(1, one.count, 0, len(one.data)), one.data, "t")
    return [(one.body, one.key, one.headers) for one in messages]


@pytest.mark.parametrize("value", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("key", [pa.binary(), pa.large_binary()])
def test_types_of_any_width_and_slices(value: Any, key: Any) -> None:
    rows = [(b"v%d" % n, None if n % 3 == 0 else b"k%d" % n, {"n": b"%d" % n} if n % 4 else None) for n in range(100)]
    whole = pa.RecordBatch.from_arrays(
        [
            pa.array([one if "binary" in str(value) else one.decode() for one, _, _ in rows], value),
            pa.array([one for _, one, _ in rows], key),
            pa.array([None if one is None else list(one.items()) for _, _, one in rows], MAP),
        ],
        names=["value", "key", "headers"],
    )
    cuts = [0, 1, 9, 50, 50, 99, 100]
    for begin, end in pairwise(cuts):
        found = decoded(list(records(whole.slice(begin, end - begin))))
        assert found == [(body, key, headers or {}) for body, key, headers in rows[begin:end]]


def test_keys_and_headers_may_be_missing() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"value": [b"a", b"b"], "key": pa.nulls(2, pa.binary()), "headers": pa.nulls(2, MAP)}
    )
    assert decoded(list(records(batch))) == [(b"a", None, {}), (b"b", None, {})]
    assert decoded(list(records(pa.RecordBatch.from_pydict({"value": [b""]})))) == [(b"", None, {})]
    assert list(records(pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())}))) == []


def test_rows_are_parted_by_topic_in_their_order() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"value": [b"%d" % n for n in range(9)], "topic": [f"t{n % 3}" for n in range(9)], "key": [b"k"] * 9}
    )
    found: dict[str, list[bytes]] = {}
    for topic, some in by_topic(iter([batch, batch.slice(3, 3)])):
        found.setdefault(topic, []).extend(body for body, _, _ in decoded([some]))
    assert found == {
        "t0": [b"0", b"3", b"6", b"3"],
        "t1": [b"1", b"4", b"7", b"4"],
        "t2": [b"2", b"5", b"8", b"5"],
    }


def test_a_type_that_no_message_has_is_named() -> None:
    with pytest.raises(omq.OptionError, match="column 'value' is int64: it must be binary or string"):
        list(records(pa.RecordBatch.from_pydict({"value": [1]})))


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"value": LongType()}, "column 'value' is bigint: it must be binary or string"),
        ({"value": StringType(), "id": LongType()}, "column 'id': a topic takes value, key, headers, topic"),
        ({"key": BinaryType()}, "column 'value' is missing"),
        (
            {"value": StringType(), "headers": MapType(StringType(), IntegerType())},
            "column 'headers' is map<string,int>: it must be map<string,binary>",
        ),
    ],
)
def test_columns_that_a_topic_does_not_take_are_refused(columns: dict[str, DataType], error: str) -> None:
    settings = TopicSettings.parse("write", {"connect": "tcp://127.0.0.1:1", "topic": "t"})
    with pytest.raises(omq.OptionError, match=error):
        check_rows(settings, StructType([StructField(name, kind) for name, kind in columns.items()]))


def test_a_row_without_a_topic_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "topic": ["t", None]})
    with pytest.raises(omq.OptionError, match="column 'topic' has a null"):
        list(by_topic(iter([batch])))


def test_too_many_stages_of_a_commit_are_reported_with_a_remedy() -> None:
    writer = TopicSink(TopicSettings.parse("write", {"connect": "tcp://127.0.0.1:1", "topic": "t"}))
    sent = [TaskCommit("job", [f"{n}"]) for n in range(MAX_STAGES + 1)]
    with pytest.raises(omq.OptionError, match=r"delivery='exactly-once': .* not 4097; coalesce the partitions"):
        writer.commit([*sent, None])
