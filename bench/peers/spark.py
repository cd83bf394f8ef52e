"""Sources and sinks for Spark's Python workers: the ceiling without a network, and a reader by hand with pyzmq."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from omq.spark.source import OmqDataSource

#: The columns of a topic, and their values for a message without a key and headers.
COLUMNS: dict[str, tuple[str, pa.Scalar]] = {
    "topic": ("string", pa.scalar("of some bytes")),
    "id": ("bigint", pa.scalar(1, pa.int64())),
    "timestamp": ("timestamp", pa.scalar(1_700_000_000_000_000, pa.timestamp("us", tz="UTC"))),
    "key": ("binary", pa.scalar(None, pa.binary())),
    "value": ("binary", pa.scalar(None, pa.binary())),
    "headers": ("map<string,binary>", pa.scalar(None, pa.map_(pa.string(), pa.binary()))),
}


class Prebuilt(DataSource):
    """A data source of batches that are built before."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items()) if self._whole else "value binary"

    def reader(self, schema: Any) -> DataSourceReader:
        return PrebuiltReader(*(int(self.options[name]) for name in ("size", "count", "batch")), whole=self._whole)

    @property
    def _whole(self) -> bool:
        """Returns whether rows have all the columns of a topic."""
        return self.options.get("columns") == "all"


class PrebuiltReader(DataSourceReader):
    """Yields one batch again and again."""

    def __init__(self, size: int, count: int, batch: int, *, whole: bool = False) -> None:
        self._size, self._count, self._batch, self._whole = size, count, batch, whole

    def partitions(self) -> Any:
        return [InputPartition(0)]

    def read(self, partition: Any) -> Iterator[Any]:
        each = max(1, self._batch // self._size)
        rows: dict[str, Any] = {"value": pa.array([b"x" * self._size] * each, pa.binary())}
        if self._whole:
            rows = {name: rows.get(name, _repeated(made, each)) for name, (_, made) in COLUMNS.items()}
        whole = pa.RecordBatch.from_pydict(rows)
        left = self._count
        while left >= each:
            yield whole
            left -= each
        if left:
            yield whole.slice(0, left)


def _repeated(value: Any, count: int) -> Any:
    return pa.repeat(value, count) if value.is_valid else pa.nulls(count, value.type)


# Stages for `mapInArrow`, with their options bound by `functools.partial`: workers import them, so Spark sends as many
# bytes for each. Spark sends them in two writes, and their sizes decide whether the second waits 40 ms for the kernel's
# acknowledgement of the first.


def prebuilt(size: int, count: int, batch: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the same batches, for `mapInArrow`."""
    for _ in batches:
        pass
    yield from PrebuiltReader(size, count, batch).read(None)


def pulled_by_omq(url: str, count: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Pulls *count* messages with `pull_batches`."""
    from omq.spark import pull_batches

    for _ in batches:
        pass
    yield from pull_batches(socket="PULL", connect=url, columns="value", maxRows=count)


def pulled_by_pyzmq(url: str, size: int, count: int, batch: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Pulls *count* messages with pyzmq; small ones in a list, large ones into one buffer."""
    import zmq

    for _ in batches:
        pass
    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.rcvhwm = max(16, min(100_000, 2 * batch // size))
    pull.connect(url)
    each, left = max(1, batch // size), count
    recv = pull.recv
    while left:
        n = min(each, left)
        if size < 65536:
            value = pa.array([recv() for _ in range(n)], pa.binary())
        else:
            buffer = pa.allocate_buffer(n * size)
            target = memoryview(buffer).cast("B")
            for number in range(n):
                target[number * size : (number + 1) * size] = recv(copy=False).buffer
            ends = array("i", range(0, (n + 1) * size, size))
            value = pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(ends), buffer])
        yield pa.RecordBatch.from_arrays([value], ["value"])
        left -= n
    pull.close(0)
    context.term()


class Discard(DataSource):
    """A sink that throws away all rows."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return DiscardWriter()


class DiscardWriter(DataSourceArrowWriter):
    """Reads every batch."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class TimedCommit(OmqDataSource):
    """The data source, whose commit writes its seconds to the file that the option `timing` names."""

    @classmethod
    def name(cls) -> str:
        return "omqtimed"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        path = self.options.pop("timing")
        made: Any = super().writer(schema, overwrite)
        return _timed_commit(type(made), made, path)


def _timed_commit(kind: type, made: Any, path: str) -> Any:
    """Returns the writer *made*, whose class times the commit."""

    class Timed(kind):  # type: ignore[misc, valid-type]
        def commit(self, messages: list[Any]) -> None:
            begun = time.perf_counter()
            super().commit(messages)
            Path(path).write_text(str(time.perf_counter() - begun), encoding="ascii")

    made.__class__ = Timed
    return made
