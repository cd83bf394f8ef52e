"""A broker, and Spark's readers and writers of its topics, for tests."""

from __future__ import annotations

from typing import Any

from omq.broker import Client, Message


def read(spark: Any, url: str, **options: Any) -> Any:
    """A batch read."""
    return configured(spark.read, url, options).load()


def stream(spark: Any, url: str, **options: Any) -> Any:
    """A streaming read."""
    return configured(spark.readStream, url, options).load()


def written(frame: Any, url: str, **options: Any) -> None:
    """Writes a DataFrame."""
    configured(frame.write, url, options).mode("append").save()


def sink(frame: Any, url: str, checkpoint: object, **options: Any) -> Any:
    """A streaming write that can be started."""
    return configured(frame.writeStream, url, options).option("checkpointLocation", str(checkpoint))


def configured(one: Any, url: str, options: dict[str, Any]) -> Any:
    """A reader or a writer of the source, with options."""
    return one.format("omq").option("connect", url).options(**options)


def messages(client: Client, topic: str) -> list[Message]:
    """Everything that a topic has."""
    return list(client.read(topic))


def bodies(client: Client, topic: str) -> list[bytes]:
    """All bodies of a topic, in order."""
    return [one.body for one in client.read(topic)]
