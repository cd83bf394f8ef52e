"""Live sockets as endpoints of the data source: PULL and SUB are read, PUSH and PUB are written."""

from __future__ import annotations

import dataclasses
import logging
import secrets
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
from omq.spark.live import borrow, reading
from omq.spark.live import settings as options
from omq.spark.live.borrow import Share
from omq.spark.live.owner import names_of
from omq.spark.live.run import Run
from omq.spark.live.settings import Settings
from omq.spark.live.sink import BatchWriter, StreamWriter, checked
from omq.spark.plain import plain_rows, plainly

log = logging.getLogger("omq.spark")

#: The version of an offset in a checkpoint. Version 1 had no name of the stream.
VERSION = 2


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
    """One connection of a batch read.

    Attributes:
        number: The partition's number.
        endpoint: The endpoint of the connection.
    """

    number: int
    endpoint: str


class BatchReader(DataSourceReader):
    """Reads once, until a bound is reached."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def partitions(self) -> Any:
        return [Partition(number, endpoint) for number, endpoint in enumerate(self._settings.endpoints)]

    @plain_rows
    def read(self, partition: Any) -> Iterator[Any]:
        return reading.once(self._settings, partition.endpoint)


@dataclass
class StreamPartition(InputPartition):
    """One connection in one microbatch.

    Attributes:
        share: What the task reads.
    """

    share: Share


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads in microbatches. An offset is the number of a microbatch, and the stream's name.

    By that name the stream's next run finds the processes that have its connections (see `coordinator`).
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._drain = ""
        self._drained = False
        self._run: Run | None = None
        self._planned = 0  # the last microbatch that this run of the query has planned
        self._committed = 0  # the last one of which it knows that it is committed
        self._stream = secrets.token_hex(16)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()  # the owners decide how much a microbatch takes: they see the data

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._drain = secrets.token_hex(8)

    @plainly
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        number = self._number(start) if start else 0
        self._committed = max(self._committed, number)
        told = self._status()
        if self._drain and self._drained and not _goes_on(told["partitions"], number):
            return self._offset(number)
        self._drained = True
        self._planned = number + 1
        return self._offset(self._planned)

    @plainly
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """What Spark shows as `latestOffset` in a query's progress: how each connection is."""
        told = self._status()
        shown = [{name: value for name, value in one.items() if name != "process"} for one in told["partitions"]]
        return {"kind": "live", "partitions": sorted(shown, key=lambda one: str(one["connection"]))}

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        after, number = self._number(start), self._number(end)
        if after > number:
            raise omq.StateError(f"the checkpoint goes backwards, from {start} to {end}")
        run = self._attached()
        assert run.place is not None
        planned = number == self._planned
        return [
            StreamPartition(Share(name, endpoint, after, number, self._drain, planned, run.place, run.secret))
            for name, endpoint in zip(names_of(self._settings), self._settings.endpoints, strict=True)
        ]

    @plain_rows
    def read(self, partition: Any) -> Iterator[Any]:
        return borrow.read(self._settings, partition.share)

    @plainly
    def commit(self, end: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.commit(self._number(end))

    # ------------------------------------------------------------------ offsets, and the coordinator

    def _offset(self, number: int) -> dict[str, Any]:
        # Spark compares offsets as text, so their keys are sorted.
        return {"kind": "live", "microbatch": number, "stream": self._stream, "version": VERSION}

    def _number(self, offset: Mapping[str, Any]) -> int:
        """The number of the microbatch; the stream's name is taken from there."""
        if offset.get("kind") != "live" or offset.get("version") not in (1, VERSION):
            raise omq.StateError(f"the checkpoint is of another kind of source: {dict(offset)}")
        self._stream = str(offset.get("stream", self._stream))
        return int(offset["microbatch"])

    def _attached(self) -> Run:
        if self._run is None:
            self._run = Run(self._stream, self._settings.keep_seconds, names_of(self._settings))
        return self._run

    def _status(self) -> dict[str, Any]:
        """How the owners are; says what was lost with one.

        Raises:
            StateError: One was, and that is to be an error.
        """
        if self._run is None:
            return {"partitions": []}
        told = self._run.status()
        for one in told["lost"]:
            text = _lost(one, self._committed)
            if self._settings.fail_on_data_loss:
                raise omq.StateError(f"{text} (failOnDataLoss=true)")
            log.warning("%s", text)
        return told


def _lost(one: dict[str, Any], committed: int) -> str:
    """What is said of an owner that has died: its last report may be half a second old.

    Args:
        one: The report.
        committed: The last microbatch that Spark has committed.
    """
    text = f"{one.get('endpoint', one['connection'])}: the process that had the connection {one['why']}"
    if one.get("microbatch") is None:
        return f"{text}; what had arrived there is lost"
    # What its tasks have had of a microbatch that is committed is not lost.
    done = one["microbatch"] <= committed
    return (
        f"{text}; lost are about {one['unread' if done else 'rows']} messages of microbatch {one['microbatch']}, and"
        f" {one['waiting']} that had arrived, by its last report: a lower bound, without what came later and what was"
        " in the kernel's buffers"
    )


def _goes_on(partitions: list[dict[str, Any]], number: int) -> bool:
    """Whether a drain needs another microbatch behind this one: somewhere there was no more room in it."""
    return any(one["bounded"] and one["microbatch"] == number for one in partitions if "microbatch" in one)
