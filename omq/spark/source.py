"""The data source `omq`: what Spark asks for, and which kind of endpoint answers."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from omq.spark.live import source as live
from omq.spark.plain import plainly


class OmqDataSource(DataSource):
    """`format("omq")`. Every call goes to the module of a kind of endpoint; live sockets are the only one so far."""

    @classmethod
    def name(cls) -> str:
        return "omq"

    @plainly
    def schema(self) -> str:
        return live.schema(self.options)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        return live.reader(self.options, schema)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return live.stream_reader(self.options, schema)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return live.writer(self.options, schema, overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return live.stream_writer(self.options, schema, overwrite)
