"""Live sockets as endpoints of the data source: PULL and SUB are read, PUSH and PUB are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import omq
from omq.spark.live import pool
from omq.spark.live import settings as options
from omq.spark.live.settings import Settings
from omq.spark.live.sink import BatchWriter, StreamWriter, checked
from omq.spark.plain import plain_rows, plainly

#: The version of an offset in a checkpoint. Spark compares offsets as text, so their keys are sorted.
VERSION = 1


def schema(given: Mapping[str, str]) -> str:
    """The schema of a read; Spark says only later whether it is a batch or a stream."""
    use = options.STREAM_READ if options.streams(given) else options.READ
    return options.schema(options.parse(use, given, bounded=False))


def reader(given: Mapping[str, str], wanted: StructType) -> DataSourceReader:
    """A batch read."""
    return BatchReader(_selected(options.parse(options.READ, given), wanted))


def stream_reader(given: Mapping[str, str], wanted: StructType) -> DataSourceStreamReader:
    """A read in microbatches."""
    return StreamReader(_selected(options.parse(options.STREAM_READ, given), wanted))


def writer(given: Mapping[str, str], rows: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """A batch write."""
    if overwrite:
        raise omq.OptionError("mode('overwrite'): what a socket has sent cannot be replaced; use mode('append')")
    found = options.parse(options.WRITE, given)
    checked(found, rows)
    return BatchWriter(found)


def stream_writer(given: Mapping[str, str], rows: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """A write in microbatches; with `overwrite` (mode `complete`) each microbatch sends the whole result."""
    found = options.parse(options.STREAM_WRITE, given)
    checked(found, rows)
    return StreamWriter(found)


def _selected(found: Settings, wanted: StructType) -> Settings:
    """The settings with the columns of the schema, which the user may have given."""
    chosen = dataclasses.replace(found, columns=tuple(wanted.fieldNames()))
    options.check(chosen)
    if any(field.dataType.simpleString() != options.COLUMNS[field.name] for field in wanted.fields):
        raise omq.OptionError(f"the schema does not fit: a read of these columns has {options.schema(chosen)}")
    return chosen


@dataclass
class Partition(InputPartition):
    """One connection.

    Attributes:
        number: The partition's number.
        endpoint: The endpoint of the connection.
        drain: Whether the read ends when nothing comes any more.
    """

    number: int
    endpoint: str
    drain: bool = False


def _partitions(settings: Settings, drain: bool = False) -> list[Partition]:
    return [Partition(number, endpoint, drain) for number, endpoint in enumerate(settings.endpoints)]


class BatchReader(DataSourceReader):
    """Reads once, until a bound is reached."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def partitions(self) -> Any:
        return _partitions(self._settings)

    @plain_rows
    def read(self, partition: Any) -> Iterator[Any]:
        return pool.read_once(self._settings, partition.endpoint)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads in microbatches. An offset is the number of a microbatch, whose messages cannot be read again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._until: int | None = None
        self._draining = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        return _offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()  # the executors decide how much a microbatch takes: they see the data

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._draining = True

    @plainly
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        number = _number(start) if start else 0
        if not self._draining:
            return _offset(number + 1)
        # A single microbatch drains the sockets.
        if self._until is None:
            self._until = number + 1
        return _offset(max(self._until, number))

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        if _number(start) > _number(end):
            raise omq.StateError(f"the checkpoint goes backwards, from {start} to {end}")
        return _partitions(self._settings, self._draining)

    @plain_rows
    def read(self, partition: Any) -> Iterator[Any]:
        return pool.read(self._settings, partition.number, partition.endpoint, partition.drain)


def _offset(number: int) -> dict[str, Any]:
    return {"kind": "live", "microbatch": number, "version": VERSION}


def _number(offset: Mapping[str, Any]) -> int:
    if offset.get("kind") != "live" or offset.get("version") != VERSION:
        raise omq.StateError(f"the checkpoint is of another kind of source: {dict(offset)}")
    return int(offset["microbatch"])
