"""Spark on omq's sockets (PySpark 4.2 or newer): `spark.read.format("omq")`, `readStream`, `write`, `writeStream`.

    frame = spark.read.format("omq").option("socket", "PULL").option("connect", url).option("maxRows", 1000).load()

`docs/howto/spark.md` describes the use, guarantees and sizing of the data source.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omq.spark.live.source import pull_batches, push_partition

__all__ = ["pull_batches", "push_partition", "register"]


def __getattr__(name: str) -> Any:
    # Arrow is not imported for `register`.
    if name in ("pull_batches", "push_partition"):
        from omq.spark.live import source

        return getattr(source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: Any) -> None:
    """Registers `format("omq")` with a session that has not found the data source by itself.

    Args:
        spark: The `SparkSession`.

    Raises:
        StateError: PySpark is older than 4.2.
    """
    from omq.spark.version import require_pyspark

    require_pyspark()
    from omq.spark.source import OmqDataSource

    spark.dataSource.register(OmqDataSource)
