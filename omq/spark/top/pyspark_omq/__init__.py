"""Where Spark finds the data source: it looks through the top-level modules whose names begin with `pyspark_`."""

from omq.spark.source import OmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
