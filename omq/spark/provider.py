"""The skeleton of a kind of endpoint: its readers and writers, made of Spark's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

import omq
from omq.spark.options import READ, STREAM_READ, STREAM_WRITE, WRITE
from omq.spark.settings import Settings

_S = TypeVar("_S", bound=Settings)


class SparkSink(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Writes the rows of a job or of microbatches. Spark pickles it, and makes one for each commit."""

    def commit(self, messages: list[Any], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        """Finishes the work of tasks; by default they have done all of it."""

    def abort(self, messages: list[Any], batchId: int = 0) -> None:  # noqa: N803
        """Undoes the work of tasks, as far as that is possible; by default it is not, and Spark writes again."""


@dataclass(frozen=True)
class Provider(Generic[_S]):
    """The readers and writers of a kind of endpoint.

    Attributes:
        settings: The class of its settings.
        batch_reader: Makes a batch read.
        microbatch_reader: Makes a read in microbatches.
        sink: Makes a sink for rows of a schema, or raises an `OptionError`.
        replaces_nothing: The reason why a write cannot overwrite.
    """

    settings: type[_S]
    batch_reader: Callable[[_S], DataSourceReader]
    microbatch_reader: Callable[[_S], DataSourceStreamReader]
    sink: Callable[[_S, StructType], SparkSink]
    replaces_nothing: str

    def schema(self, given: Mapping[str, str]) -> str:
        """Returns the schema of a read; Spark says only later whether it is a batch or a stream."""
        use = STREAM_READ if self.settings.streams(given) else READ
        return self.settings.parse(use, given, bounded=False).schema

    def reader(self, given: Mapping[str, str], wanted: StructType) -> DataSourceReader:
        """Returns a batch read."""
        return self.batch_reader(self.settings.parse(READ, given).selected(wanted))

    def stream_reader(self, given: Mapping[str, str], wanted: StructType) -> DataSourceStreamReader:
        """Returns a read in microbatches."""
        return self.microbatch_reader(self.settings.parse(STREAM_READ, given).selected(wanted))

    def writer(self, given: Mapping[str, str], rows: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Returns a batch write."""
        if overwrite:
            raise omq.OptionError(f"mode('overwrite'): {self.replaces_nothing}; use mode('append')")
        return self.sink(self.settings.parse(WRITE, given), rows)

    def stream_writer(self, given: Mapping[str, str], rows: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Returns a write in microbatches; with `overwrite` (mode `complete`) each has the whole result."""
        return self.sink(self.settings.parse(STREAM_WRITE, given), rows)
