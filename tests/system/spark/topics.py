"""A broker, and Spark's readers and writers of its topics, for tests."""

from __future__ import annotations

import threading
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
    one = one.format("omq").option("connect", url)
    for name, value in options.items():
        one = one.option(name, value)
    return one


def messages(client: Client, topic: str) -> list[Message]:
    """Everything that a topic has."""
    return list(client.read(topic))


def bodies(client: Client, topic: str) -> list[bytes]:
    """All bodies of a topic, in order."""
    return [one.body for one in client.read(topic)]


class Seen:
    """What reached a `foreachBatch`."""

    def __init__(self, wanted: int) -> None:
        self.rows: list[Any] = []
        self.batches: list[int] = []
        self.numbers: list[int] = []
        self._wanted = wanted
        self._all = threading.Event()

    def __call__(self, frame: Any, number: int) -> None:
        rows = frame.collect()
        self.batches.append(len(rows))
        self.numbers.append(number)
        self.rows += rows
        if len(self.rows) >= self._wanted:
            self._all.set()

    def wait(self) -> None:
        assert self._all.wait(60), self.batches

    @property
    def ids(self) -> list[int]:
        return [row.id for row in self.rows]
