"""Counts the ticks of a topic by symbol with Spark: a batch first, then a stream that continues after a restart.

The stream keeps its position in a checkpoint, and writes its rows to another topic exactly once. Needs `pip install
'omq-zmtp[broker,spark]'` and a JDK.

Prints:

    AAPL 2
    MSFT 1
    copied: AAPL MSFT AAPL NVDA
"""

import os
import sys
import tempfile
from typing import Any

from pyspark.sql import SparkSession

import omq.broker
import omq.spark

TOPICS = ["ticks:broadcast:strong", "copy:broadcast:strong"]
TICKS = [(b"AAPL", b"189.95"), (b"MSFT", b"402.10"), (b"AAPL", b"189.97")]


def session(folder: str) -> Any:
    """Starts Spark on this machine, with its files in a folder."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": folder}
    builder = SparkSession.builder.master("local[2]").appName("ticks")
    options = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    omq.spark.register(spark)  # not needed where omq is installed and not run from its source tree
    return spark


def publish(client: omq.broker.Client, ticks: list[tuple[bytes, bytes]]) -> None:
    """Publishes ticks: the symbol is the key."""
    client.publish_many("ticks", [omq.broker.Record(price, key=symbol) for symbol, price in ticks])


def count(spark: Any, endpoint: str) -> None:
    """Counts what the topic has now."""
    frame = spark.read.format("omq").option("connect", endpoint).option("topic", "ticks").load()
    for row in frame.groupBy("key").count().orderBy("key").collect():
        print(row["key"].decode(), row["count"])


def copy_new(spark: Any, endpoint: str, checkpoint: str) -> None:
    """Copies the ticks that an earlier run has not copied, and ends."""
    reader = spark.readStream.format("omq").option("connect", endpoint).option("topic", "ticks")
    frame = reader.option("startingOffsets", "earliest").load().select("key", "value")
    writer = frame.writeStream.format("omq").option("connect", endpoint).option("topic", "copy")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Publishes ticks, counts them, and copies them in two runs of a query."""
    with (
        tempfile.TemporaryDirectory() as folder,
        omq.broker.Server(f"{folder}/data", bind="tcp://127.0.0.1:*", topics=TOPICS) as server,
        omq.broker.Client(server.endpoints["zmtp"], timeout=30) as client,
    ):
        endpoint = server.endpoints["zmtp"]
        publish(client, TICKS)
        spark = session(folder)
        count(spark, endpoint)
        copy_new(spark, endpoint, f"{folder}/checkpoint")
        publish(client, [(b"NVDA", b"120.40")])
        copy_new(spark, endpoint, f"{folder}/checkpoint")
        print("copied:", *(message.key.decode() for message in client.read("copy") if message.key))
        spark.stop()


if __name__ == "__main__":
    main()
