"""Messages of a topic as record batches: what a task reads."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from typing import Any, Final

import pyarrow as pa

from omq.broker import Client, Columns, Damaged, Overrun, TopicError, TopicInfo
from omq.broker.columns import Maps, Texts
from omq.spark.buffer_pool import BufferPool
from omq.spark.topics.catalog import lost, named
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
#: What is asked of the client for a column.
_PARTS: Final = {"key": "keys", "value": "bodies", "headers": "headers"}

#: BufferPool of this worker process; one task at a time runs in it.
_memory: Final = BufferPool()


def read(settings: TopicSettings, part: TopicRange) -> Iterator[pa.RecordBatch]:
    """The messages of a range; a batch is gathered while Spark takes the one before.

    Raises:
        DataLoss: Some of them are not there any more.
        BrokerTimeout: The broker is away for longer than `timeout`.
    """
    yield from prefetched(_read(settings, part))


def _read(settings: TopicSettings, part: TopicRange) -> Generator[pa.RecordBatch, None, None]:
    with named(settings), settings.client() as client:
        if _found(client, settings, part) is None:
            return
        start = part.start
        while start < part.stop:
            try:
                for found in _columns(client, settings, part, start):
                    if _is_foreign(client, settings, part, start):
                        return
                    start, before = _last(found.ids) + 1, start
                    _tell_gap(part, before, start, found.count)
                    yield batch(settings, part.topic, found)
                break
            except Overrun as error:
                lost(settings, _gone(part, start, error.first, "are no longer kept"))
                start = error.first
            except Damaged as error:
                lost(settings, _gone(part, max(start, error.first), error.last + 1, f"are damaged ({error})"))
                start = error.last + 1
            except TopicError:
                if _found(client, settings, part) is None:
                    return
                raise
        # Names come again, numbers do not: this topic has been here all the time.
        info = _found(client, settings, part)
        if info is not None and info.last + 1 < part.stop:
            lost(settings, _gone(part, max(start, info.last + 1), part.stop, f"are lost: it ends with {info.last}"))
        elif info is not None:
            _tell_gap(part, start, part.stop, 0)


def _tell_gap(part: TopicRange, start: int, stop: int, count: int) -> None:
    """Logs ids that nothing is under. It is not known whether they were ever given."""
    if stop - start > count:
        log.warning(
            "topic %r: nothing is under %d of the ids %d to %d: a broker that was killed gives no id again that it may"
            " have given, and may have lost what was not on the disk",
            part.topic,
            stop - start - count,
            start,
            stop - 1,
        )


def _found(client: Client, settings: TopicSettings, part: TopicRange) -> TopicInfo | None:
    """The topic that was planned with, if it is there; else its messages are lost."""
    try:
        (info,) = client.topics(part.topic)
    except TopicError:
        info = None
    if _is_foreign(client, settings, part, part.start):
        return None
    if info is not None and info.id == part.topic_id:
        return info
    again = "" if info is None else ", and made again"
    lost(settings, _gone(part, part.start, part.stop, f"are lost: it was deleted{again}"))
    return None


def _is_foreign(client: Client, settings: TopicSettings, part: TopicRange, start: int) -> bool:
    """Returns whether another broker answers than the one that was planned with: then ids from *start* on are lost."""
    if client.broker == part.broker:
        return False
    lost(settings, _gone(part, start, part.stop, f"are lost: another broker is at {settings.endpoint} now"))
    return True


def _gone(part: TopicRange, start: int, stop: int, why: str) -> str:
    return f"topic {part.topic!r}: ids {start} to {min(stop, part.stop) - 1} {why}"


def _columns(client: Client, settings: TopicSettings, part: TopicRange, start: int) -> Iterator[Columns]:
    parts = [_PARTS[name] for name in settings.read_columns if name in _PARTS]
    return client.read_columns(
        part.topic, start, part.stop, parts=parts, batch_bytes=settings.batch_bytes, memory=_memory.take
    )


def _last(ids: bytes) -> int:
    return int.from_bytes(ids[-8:], "little")


def batch(settings: TopicSettings, topic: str, found: Columns) -> pa.RecordBatch:
    """The record batch of some messages."""
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
