"""Sends rows through PUSH and PUB."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import omq
from omq.spark.live import host_writer
from omq.spark.live.first_peer import POLL_INTERVAL_S, FirstPeer
from omq.spark.live.settings import Settings
from omq.spark.options import STREAM_WRITE
from omq.spark.provider import Sink

log = logging.getLogger("omq.spark")

LARGE_BYTES: Final = 32768  # mean bytes of a body from which on bodies are sent from Arrow's memory, without a copy
LINGER_S: Final = 30.0  # seconds that the rows of a task may take to leave
SEND_TIMEOUT_S: Final = 120.0  # seconds that a PUSH may wait for room, until its peers take something
_BINARY: Final = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)


@dataclass
class Sent(WriterCommitMessage):
    """The count of what a task has sent.

    Attributes:
        rows: Messages.
        bytes: Bytes of the messages' parts.
    """

    rows: int = 0
    bytes: int = 0


def _check_rows(settings: Settings, rows: StructType) -> None:
    """Raises unless rows of a schema can be sent."""
    fitting = {
        "value": ("binary", "string"),
        "parts": ("array<binary>", "array<string>"),
        "topic": ("binary", "string"),
    }
    for column in rows.fields:
        if column.dataType.simpleString() not in fitting.get(column.name, ()):
            raise omq.OptionError(
                f"column {column.name!r} of type {column.dataType.simpleString()}: a sink takes value (binary or"
                " string) or parts (array of them), and topic for a PUB"
            )
    check_columns(settings, rows.fieldNames())


def check_columns(settings: Settings, names: Iterable[str]) -> None:
    """Raises unless columns of these names make messages."""
    found = set(names)
    if extra := found - {"value", "parts", "topic"}:
        raise omq.OptionError(f"columns {sorted(extra)}: only value or parts, and topic, are sent")
    if len(found & {"value", "parts"}) != 1:
        raise omq.OptionError("a sink takes one of the columns value and parts")
    if "topic" in found and settings.socket != "PUB":
        raise omq.OptionError(f"column 'topic': it is for a PUB, not for a {settings.socket}")
    if "topic" in found and settings.topic is not None:
        raise omq.OptionError("option 'topic' and column 'topic' exclude each other")


class Sender:
    """A socket that rows are sent through."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.topic
        given = dict(settings.options)
        linger = given.get("linger", LINGER_S)
        sending = given.get("send_timeout", SEND_TIMEOUT_S if settings.socket == "PUSH" else None)
        self.socket = settings.open(linger=linger, send_timeout=sending)
        try:
            self._await_peers(settings)
        except BaseException:
            self.socket.stop()
            raise

    def _await_peers(self, settings: Settings) -> None:
        """Waits for a peer, and for the subscriptions that are wanted, for connectTimeout at most."""
        seconds, fails = settings.first_peer_seconds, settings.first_peer_required
        if settings.connect and not settings.bind and seconds is not None:
            FirstPeer(self.socket, ",".join(settings.connect), seconds, fails).wait(seconds + POLL_INTERVAL_S)
        if settings.subscribers:
            try:
                self.socket.wait_subscribed(n=settings.subscribers, timeout=seconds)
            except omq.Timeout as error:
                if fails:
                    raise omq.Timeout(
                        f"{error}: subscribers={settings.subscribers}, connectTimeout={seconds:g} s"
                    ) from None
                log.warning("%s", error)

    @property
    def closed(self) -> bool:
        """True once the socket is closed."""
        return self.socket.closed

    def send(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Sends every row, and waits until all have left this process.

        Raises:
            SendTimeout: There was no room for a message within `send_timeout`, or not everything left within `linger`.
            OptionError: A value is null.
        """
        sent = Sent()
        for batch in batches:
            self._send(batch, sent)
        self.flush()
        return sent

    def _send(self, batch: pa.RecordBatch, sent: Sent) -> None:
        names = batch.schema.names
        if "parts" in names:
            bodies: Any = [[_octets(part) for part in parts] for parts in _whole(batch, "parts").to_pylist()]
            size = sum(sum(map(len, parts)) for parts in bodies)
        else:
            bodies = messages(_whole(batch, "value"))
            size = sum(map(len, bodies))
        if "topic" in names:
            heads: Any = messages(_whole(batch, "topic"))
        else:
            heads = None if self._topic is None else [self._topic] * len(bodies)
        if heads is not None or "parts" in names:
            for number, body in enumerate(bodies):
                parts = body if "parts" in names else [body]
                self.socket.send_multipart(parts if heads is None else [heads[number], *parts])
        else:
            self._send_all(bodies)
        sent.rows += len(bodies)
        sent.bytes += size

    def _send_all(self, bodies: list[Any]) -> None:
        done = 0
        while done < len(bodies):
            # If the time is up after some messages, there was progress: go on with the rest.
            done += self.socket.send_many(bodies[done:] if done else bodies)

    def flush(self) -> None:
        """Waits until what was sent has left this process."""
        limit = self.socket.options.linger
        if limit == 0:
            return
        try:
            self.socket.flush(limit)
        except omq.SendTimeout:
            raise omq.SendTimeout(f"not everything that was sent has left within linger={limit} s") from None

    def close(self) -> None:
        """Closes the socket; messages that have not left have its linger to do so."""
        self.socket.close()


def _octets(part: Any) -> bytes:
    if part is None:
        raise omq.OptionError("a part is null: there is nothing to send")
    return part.encode() if isinstance(part, str) else part


def _whole(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise omq.OptionError(f"column {name!r} has a null: there is nothing to send")
    return column


def messages(column: pa.Array) -> list[Any]:
    """The values of a binary or string column: bytes, or views of Arrow's memory where they are large."""
    if not any(fits(column.type) for fits in _BINARY):
        raise omq.OptionError(f"a value is binary or string, not {column.type}")
    n = len(column)
    if n == 0:
        return []
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, offsets, data = column.buffers()
    width = 8 if wide else 4
    ends = array("q" if wide else "i")
    ends.frombytes(memoryview(offsets)[width * column.offset : width * (column.offset + n + 1)])
    start, end = ends[0], ends[n]
    if data is None or start == end:
        return [b""] * n
    body = memoryview(data)[start:end]
    if end - start < LARGE_BYTES * n:
        whole = bytes(body)
        return [whole[a - start : b - start] for a, b in pairwise(ends)]
    return [body[a - start : b - start] for a, b in pairwise(ends)]


# ---------------------------------------------------------------------- tasks


def send_through(settings: Settings, batches: Iterator[pa.RecordBatch]) -> Sent:
    """Sends the rows of a task; a bound endpoint is kept, and shared by all tasks of the host."""
    if not settings.bind and settings.use != STREAM_WRITE:
        sender = Sender(settings)
        try:
            sent = sender.send(batches)
        except BaseException:
            sender.socket.stop()
            raise
        sender.close()
        return sent
    if settings.socket == "PUB" and settings.bind and not settings.subscribers and _is_single_use():
        raise omq.OptionError(
            f"bind={settings.bind[0]!r}: a PUB would lose its subscribers with each task, since"
            " spark.python.worker.reuse=false; set it to true, give 'subscribers', or connect"
        )
    key = host_writer.key_of(settings, *(() if settings.bind else (os.getpid(),)))
    while True:
        writer = host_writer.claim(key, settings.keep_seconds, lambda: Sender(settings))
        if writer is None:
            result = host_writer.deliver(key, batches)
            if result is not None:
                return Sent(**result)
        else:
            with writer as sender:
                if not sender.closed:
                    through: Sent = sender.send(batches)
                    return through


def _is_single_use() -> bool:
    """Returns whether this process of Spark's ends with its task."""
    return TaskContext.get() is not None and not os.environ.get("SPARK_REUSE_WORKER")


class SocketSink(Sink):
    """Sends rows. A task returns when its rows have left: a commit has nothing to do.

    Args:
        settings: The options.
        rows: The schema of the rows.

    Raises:
        OptionError: A column is missing, cannot be sent, or has another type.
    """

    def __init__(self, settings: Settings, rows: StructType) -> None:
        _check_rows(settings, rows)
        self._settings = settings

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send_through(self._settings, batches)
