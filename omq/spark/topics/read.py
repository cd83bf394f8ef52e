"""Reads a task's range of a topic as record batches."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from typing import Any, Final

import pyarrow as pa

from omq.broker import Client, Columns, Damaged, Overrun, TopicError, TopicInfo
from omq.broker.columns import Maps, Texts
from omq.spark.buffer_pool import BufferPool
from omq.spark.topics.catalog import describe_timeout, report_loss
from omq.spark.topics.offsets import TopicRange
from omq.spark.topics.prefetch import prefetched
from omq.spark.topics.settings import TopicSettings

log = logging.getLogger("omq.spark")

_TYPES: Final = {
    "topic": pa.string(),
    "id": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.map_(pa.string(), pa.binary()),
}
#: The parts of messages that the client reads for a column.
_PARTS: Final = {"key": "keys", "value": "bodies", "headers": "headers"}

#: The buffers of this worker process, which runs one task at a time.
_buffers: Final = BufferPool()


def read(settings: TopicSettings, part: TopicRange) -> Iterator[pa.RecordBatch]:
    """Yields the messages of a range, and prefetches batches (`prefetched`).

    Raises:
        DataLoss: Some of the messages are lost, and `failOnDataLoss` is true.
        BrokerTimeout: The broker does not answer within `timeout`.
    """
    yield from prefetched(_read(settings, part))


def _read(settings: TopicSettings, part: TopicRange) -> Generator[pa.RecordBatch, None, None]:
    with describe_timeout(settings), settings.client() as client:
        if _found(client, settings, part) is None:
            return
        start = part.start
        while start < part.stop:
            try:
                for found in _columns(client, settings, part, start):
                    if _is_foreign(client, settings, part, start):
                        return
                    start, before = _last(found.ids) + 1, start
                    _log_gap(part, before, start, found.count)
                    yield batch(settings, part.topic, found)
                break
            except Overrun as error:
                report_loss(settings, _loss_text(part, start, error.first, "are no longer kept"))
                start = error.first
            except Damaged as error:
                report_loss(
                    settings, _loss_text(part, max(start, error.first), error.last + 1, f"are damaged ({error})")
                )
                start = error.last + 1
            except TopicError:
                if _found(client, settings, part) is None:
                    return
                raise
        # A topic's id, unlike its name, is never used again: it is the same topic as before.
        info = _found(client, settings, part)
        if info is not None and info.last + 1 < part.stop:
            report_loss(
                settings, _loss_text(part, max(start, info.last + 1), part.stop, f"are lost: it ends with {info.last}")
            )
        elif info is not None:
            _log_gap(part, start, part.stop, 0)


def _log_gap(part: TopicRange, start: int, stop: int, count: int) -> None:
    """Logs ids without a message. They may never have been assigned."""
    if stop - start > count:
        log.warning(
            "topic %r: %d of the ids %d to %d have no message: a broker that was killed skips ids that it may have"
            " assigned, and may have lost messages that were not on the disk",
            part.topic,
            stop - start - count,
            start,
            stop - 1,
        )


def _found(client: Client, settings: TopicSettings, part: TopicRange) -> TopicInfo | None:
    """Returns the planned topic; reports the loss of the range, and returns `None`, if it was deleted."""
    try:
        (info,) = client.topics(part.topic)
    except TopicError:
        info = None
    if _is_foreign(client, settings, part, part.start):
        return None
    if info is not None and info.id == part.topic_id:
        return info
    again = "" if info is None else ", and created again"
    report_loss(settings, _loss_text(part, part.start, part.stop, f"are lost: it was deleted{again}"))
    return None


def _is_foreign(client: Client, settings: TopicSettings, part: TopicRange, start: int) -> bool:
    """Returns whether another broker than at planning answers; then reports the loss of the ids from *start* on."""
    if client.broker == part.broker:
        return False
    report_loss(settings, _loss_text(part, start, part.stop, f"are lost: another broker is now at {settings.endpoint}"))
    return True


def _loss_text(part: TopicRange, start: int, stop: int, why: str) -> str:
    return f"topic {part.topic!r}: ids {start} to {min(stop, part.stop) - 1} {why}"


def _columns(client: Client, settings: TopicSettings, part: TopicRange, start: int) -> Iterator[Columns]:
    parts = [_PARTS[name] for name in settings.read_columns if name in _PARTS]
    return client.read_columns(
        part.topic, start, part.stop, parts=parts, batch_bytes=settings.batch_bytes, memory=_buffers.allocate
    )


def _last(ids: bytes) -> int:
    return int.from_bytes(ids[-8:], "little")


def batch(settings: TopicSettings, topic: str, found: Columns) -> pa.RecordBatch:
    """Returns the record batch of columns that the client has read."""
    names = settings.read_columns
    arrays = [_array(name, topic, found) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(name, _TYPES[name]) for name in names]))


def _array(name: str, topic: str, found: Columns) -> pa.Array:
    match name:
        case "topic":
            return pa.repeat(pa.scalar(topic), found.count)
        case "id":
            return _fixed(_TYPES[name], found.count, found.ids)
        case "timestamp":
            return _fixed(_TYPES[name], found.count, found.timestamps)
        case "value":
            assert found.bodies is not None
            data = memoryview(found.bodies)[: found.size]
            return pa.Array.from_buffers(pa.binary(), found.count, [None, *map(pa.py_buffer, (found.ends, data))])
        case "key":
            assert found.keys is not None
            return _texts(pa.binary(), found.count, found.keys)
        case _:
            assert found.headers is not None
            return _maps(found.count, found.headers)


def _fixed(kind: pa.DataType, count: int, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _valid(bits: bytes | None) -> Any:
    return None if bits is None else pa.py_buffer(bits)


def _texts(kind: pa.DataType, count: int, found: Texts) -> pa.Array:
    buffers = [_valid(found.valid), pa.py_buffer(found.ends), pa.py_buffer(found.data)]
    return pa.Array.from_buffers(kind, count, buffers, found.nulls)


def _maps(count: int, found: Maps) -> pa.Array:
    kind = _TYPES["headers"]
    entries = len(found.names.ends) // 4 - 1
    pairs = [_texts(pa.string(), entries, found.names), _texts(pa.binary(), entries, found.values)]
    inner = pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
    buffers = [_valid(found.valid), pa.py_buffer(found.ends)]
    return pa.Array.from_buffers(kind, count, buffers, found.nulls, children=[inner])
