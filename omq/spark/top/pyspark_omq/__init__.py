"""The entry point for Spark, which imports the top-level modules whose names begin with `pyspark_`."""

from omq.spark.version import UnsupportedSource, is_supported

if is_supported():
    from omq.spark.source import OmqDataSource as DefaultSource
else:
    DefaultSource = UnsupportedSource  # type: ignore[misc]

__all__ = ["DefaultSource"]
