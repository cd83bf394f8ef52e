"""Creates the readers and writers of a kind of endpoint from Spark's options."""

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
    """Writes the rows of a job or of microbatches. Spark pickles it, and creates another for each commit."""

    def commit(self, messages: list[Any], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        """Completes the work of tasks; the default does nothing."""

    def abort(self, messages: list[Any], batchId: int = 0) -> None:  # noqa: N803
        """Undoes the work of tasks where that is possible; the default does nothing."""


@dataclass(frozen=True)
class Provider(Generic[_S]):
    """The readers and writers of a kind of endpoint.

    Attributes:
        settings: The class of its settings.
        batch_reader: Creates the reader of a batch.
        microbatch_reader: Creates the reader of a stream.
        sink: Creates a sink for rows of a schema, or raises an `OptionError`.
        no_overwrite_reason: The reason for which a write cannot overwrite.
    """

    settings: type[_S]
    batch_reader: Callable[[_S], DataSourceReader]
    microbatch_reader: Callable[[_S], DataSourceStreamReader]
    sink: Callable[[_S, StructType], SparkSink]
    no_overwrite_reason: str

    def schema(self, given: Mapping[str, str]) -> str:
        """Returns the schema of a read. Spark calls this before it decides between a batch and a stream."""
        use = STREAM_READ if self.settings.streams(given) else READ
        return self.settings.parse(use, given, limit_required=False).schema

    def reader(self, given: Mapping[str, str], wanted: StructType) -> DataSourceReader:
        """Returns the reader of a batch."""
        return self.batch_reader(self.settings.parse(READ, given).selected(wanted))

    def stream_reader(self, given: Mapping[str, str], wanted: StructType) -> DataSourceStreamReader:
        """Returns the reader of a stream."""
        return self.microbatch_reader(self.settings.parse(STREAM_READ, given).selected(wanted))

    def writer(self, given: Mapping[str, str], rows: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Returns the writer of a batch."""
        if overwrite:
            raise omq.OptionError(f"mode('overwrite'): {self.no_overwrite_reason}; use mode('append')")
        return self.sink(self.settings.parse(WRITE, given), rows)

    def stream_writer(self, given: Mapping[str, str], rows: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Returns the writer of a stream. With *overwrite* (mode `complete`) each microbatch has the whole result."""
        return self.sink(self.settings.parse(STREAM_WRITE, given), rows)
