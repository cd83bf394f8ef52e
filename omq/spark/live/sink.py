"""Sends rows through PUSH and PUB. One process of a host keeps a bound endpoint, and the others write through it.

Spark gives the partitions of a stream to any free worker process, so the next microbatch often runs in another one. A
new connection there would lose the messages in transit in the old one. Therefore the process that bound it keeps it,
and serves the others over a Unix socket. That socket's abstract name is the claim: only one process can bind it, and
the kernel releases it when that process ends. Without `bind`, each process of a stream keeps a connection of its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import omq
from omq.spark.errors import hidden_traceback
from omq.spark.live.peers import MAX_EVENT_WAIT_S, Peers
from omq.spark.live.rpc import is_same_user
from omq.spark.live.settings import SocketSettings
from omq.spark.options import STREAM_WRITE
from omq.spark.provider import SparkSink
from omq.unpatched import sleep, socket, threading

log = logging.getLogger("omq.spark")

MIN_ZERO_COPY_BYTES: Final = 32768  # from this mean size on, bodies are sent from Arrow's memory, without a copy
DEFAULT_LINGER_S: Final = 30.0  # for the rows of a task to leave the process
DEFAULT_SEND_TIMEOUT_S: Final = 120.0  # for a PUSH to get room for a message
REQUEST_TIMEOUT_S: Final = 5.0  # for a process that has connected to send its first rows
IDLE_POLL_INTERVAL_S: Final = 0.5  # between two checks for keepSeconds
BACKLOG: Final = 64  # processes that may wait
_TYPES: Final = {
    "value": ("binary", "string"),
    "parts": ("array<binary>", "array<string>"),
    "topic": ("binary", "string"),
}
_BINARY: Final = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)


@dataclass
class RowsSent(WriterCommitMessage):
    """The counts of a task."""

    rows: int = 0
    bytes: int = 0  # of all parts


def check_columns(settings: SocketSettings, columns: Mapping[str, str | None]) -> None:
    """Raises an `OptionError` for columns that a sink cannot send: Spark's types by name, `None` if unknown."""
    for name, kind in columns.items():
        if name not in _TYPES or kind not in (None, *_TYPES[name]):
            raise omq.OptionError(
                f"column {name!r}{f' of type {kind}' if kind else ''}: a sink takes 'value' (binary or string) or"
                " 'parts' (array of them), and 'topic' for a PUB; select these"
            )
    if len(columns.keys() & {"value", "parts"}) != 1:
        raise omq.OptionError("a sink takes either the column 'value' or the column 'parts'; select one of them")
    if "topic" in columns and settings.socket != "PUB":
        raise omq.OptionError(f"column 'topic': it is for a PUB, not for a {settings.socket}")
    if "topic" in columns and settings.topic is not None:
        raise omq.OptionError("option 'topic' and column 'topic' exclude each other; use one of them")


class Sender:
    """A socket that sends rows."""

    def __init__(self, settings: SocketSettings) -> None:
        self._topic = settings.topic
        given = dict(settings.options)
        linger = given.get("linger", DEFAULT_LINGER_S)
        sending = given.get("send_timeout", DEFAULT_SEND_TIMEOUT_S if settings.socket == "PUSH" else None)
        self.socket = settings.open(linger=linger, send_timeout=sending)
        try:
            self._await_peers(settings)
        except BaseException:
            self.socket.stop()
            raise

    def _await_peers(self, settings: SocketSettings) -> None:
        """Waits for a peer and for `subscribers`, connectTimeout at most."""
        seconds, fails = settings.connect_timeout, settings.fail_on_connect_timeout
        if settings.connect and not settings.bind and seconds is not None:
            peers = Peers(self.socket, ",".join(settings.connect), seconds, fails)
            peers.wait(seconds + MAX_EVENT_WAIT_S)
            peers.close()
        if settings.subscribers:
            try:
                self.socket.wait_subscribed(n=settings.subscribers, timeout=seconds)
            except omq.Timeout as error:
                if fails:
                    raise omq.Timeout(
                        f"{error}: subscribers={settings.subscribers}, connectTimeout={seconds:g} s"
                    ) from None
                log.warning("%s", error)

    def send(self, batches: Iterable[pa.RecordBatch]) -> RowsSent:
        """Sends all rows, and waits until they have left this process.

        Raises:
            SendTimeout: There was no room for a message within `send_timeout`, or rows were still queued after
                `linger`.
            OptionError: A value is null.
        """
        sent = RowsSent()
        for batch in batches:
            self._send(batch, sent)
        limit = self.socket.options.linger
        try:
            if limit != 0:
                self.socket.flush(limit)
        except omq.SendTimeout:
            raise omq.SendTimeout(f"messages have not left the process within linger={limit} s") from None
        return sent

    def _send(self, batch: pa.RecordBatch, sent: RowsSent) -> None:
        names = batch.schema.names
        if "parts" in names:
            messages = _checked_column(batch, "parts").to_pylist()
            bodies: Any = [[_encode_part(part) for part in parts] for parts in messages]
            size = sum(sum(map(len, parts)) for parts in bodies)
        else:
            bodies = binary_values(_checked_column(batch, "value"))
            size = sum(map(len, bodies))
        if "topic" in names:
            topics: Any = binary_values(_checked_column(batch, "topic"))
        else:
            topics = None if self._topic is None else [self._topic] * len(bodies)
        if topics is not None or "parts" in names:
            for number, body in enumerate(bodies):
                parts = body if "parts" in names else [body]
                self.socket.send_multipart(parts if topics is None else [topics[number], *parts])
        else:
            sent_count = 0
            while sent_count < len(bodies):
                # After a timeout with progress it returns fewer than it was given.
                sent_count += self.socket.send_many(bodies[sent_count:] if sent_count else bodies)
        sent.rows += len(bodies)
        sent.bytes += size


def _encode_part(part: Any) -> bytes:
    if part is None:
        raise omq.OptionError("column 'parts' has a null part, which cannot be sent; filter such rows")
    return part.encode() if isinstance(part, str) else part


def _checked_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise omq.OptionError(f"column {name!r} has a null, which cannot be sent; filter such rows")
    return column


def binary_values(column: pa.Array) -> list[Any]:
    """Returns the values of a binary or string column: bytes, or views of Arrow's memory if they are large."""
    if not any(is_type(column.type) for is_type in _BINARY):
        raise omq.OptionError(f"a value of type {column.type} cannot be sent; cast it to binary or string")
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
    if end - start < MIN_ZERO_COPY_BYTES * n:
        whole = bytes(body)
        return [whole[a - start : b - start] for a, b in pairwise(ends)]
    return [body[a - start : b - start] for a, b in pairwise(ends)]


# ---------------------------------------------------------------------- shared connections


class HostWriter:
    """A connection of this process, for one task at a time, of this process or of another.

    Raises:
        OSError: Another process has the connection.
        OmqError: The connection cannot be opened.
    """

    def __init__(self, key: str, settings: SocketSettings) -> None:
        self._connection_key = key
        self._keep_seconds = settings.keep_seconds
        self._lock = threading.Lock()
        self._last_used = time.monotonic()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self.listener.bind(_socket_name(key))
            self.listener.listen(BACKLOG)
            self.listener.settimeout(IDLE_POLL_INTERVAL_S)
            self.sender = Sender(settings)
        except BaseException:
            self.listener.close()
            raise
        threading.Thread(target=self._run, name="omq-spark-writer", daemon=True).start()

    def __enter__(self) -> Sender:
        self._lock.acquire()
        return self.sender

    def __exit__(self, *_: object) -> None:
        self._last_used = time.monotonic()
        self._lock.release()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except TimeoutError:
                with self._lock:
                    if time.monotonic() - self._last_used < self._keep_seconds:
                        continue
                    # The name is free after the close, and the next process opens another connection.
                    _writers.pop(self._connection_key, None)
                    self.sender.socket.close()  # queued messages have `linger` to leave
                    self.listener.close()
                return
            except OSError:
                if self.listener.fileno() < 0:
                    return
                sleep(IDLE_POLL_INTERVAL_S)  # no descriptor is left; processes wait in the backlog
                continue
            with peer:
                if is_same_user(peer):
                    self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        stream: Any
        with self as sender, peer.makefile("rwb") as stream:
            try:
                try:
                    # Other processes wait for this one.
                    peer.settimeout(REQUEST_TIMEOUT_S)
                    rows = pa.ipc.open_stream(stream)
                    peer.settimeout(None)
                    result = asdict(sender.send(rows))
                except (omq.OmqError, OSError, pa.ArrowException, TypeError, ValueError) as error:
                    result = {"error": f"{type(error).__name__}: {error}"}
                stream.write(json.dumps(result).encode() + b"\n")
                stream.flush()
            except OSError:
                pass  # the other process has ended


_writers: dict[str, HostWriter] = {}


def _drop_inherited() -> None:
    """Drops the parent's connections in a forked child."""
    for one in _writers.values():
        one.listener.close()  # only the inherited descriptor: the parent still has the name
    _writers.clear()


os.register_at_fork(after_in_child=_drop_inherited)


def _connection_key(settings: SocketSettings) -> str:
    """Returns the key of a connection, from the query and the options; without `bind` also from the process."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    return hashlib.sha256(repr((query, settings, None if settings.bind else os.getpid())).encode()).hexdigest()[:32]


def _socket_name(key: str) -> str:
    return f"\0omq-spark/{os.getuid()}/{key}"


def claim(key: str, settings: SocketSettings) -> HostWriter | None:
    """Returns this process's connection with a key, and opens it if necessary; `None` if another process has it."""
    if key not in _writers:
        try:
            _writers[key] = HostWriter(key, settings)
        except OSError:
            return None
    return _writers[key]


def deliver(key: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> RowsSent | None:
    """Sends rows through the process that has the connection; `None` if there is no such process.

    Raises:
        OmqError: That process failed, or ended after some of the rows.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as peer:
        try:
            peer.connect(_socket_name(key))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        if not is_same_user(peer):
            raise omq.StateError(
                f"another user's process has bound the Unix socket {_socket_name(key)[1:]!r}, which this sink needs"
            )
        with peer.makefile("rwb") as stream:
            try:
                out = pa.ipc.new_stream(stream, schema)
                for batch in batches:
                    out.write_batch(batch)
                out.close()
                stream.flush()
                result = json.loads(stream.readline() or '{"error": "the process that has the connection ended"}')
            except OSError as error:
                raise omq.OmqError("the process that has the connection ended") from error
    if "error" in result:
        raise omq.OmqError(result["error"])
    return RowsSent(**result)


# ---------------------------------------------------------------------- tasks


def send_through(settings: SocketSettings, batches: Iterator[pa.RecordBatch]) -> RowsSent:
    """Sends the rows of a task. All tasks of a host share the connection of a bound endpoint."""
    if not settings.bind and settings.use != STREAM_WRITE:
        sender = Sender(settings)
        try:
            sent = sender.send(batches)
        except BaseException:
            sender.socket.stop()
            raise
        sender.socket.close()
        return sent
    ends_with_task = TaskContext.get() is not None and not os.environ.get("SPARK_REUSE_WORKER")
    if settings.socket == "PUB" and settings.bind and not settings.subscribers and ends_with_task:
        raise omq.OptionError(
            f"option bind={settings.bind[0]!r}: with spark.python.worker.reuse=false a PUB would lose its subscribers"
            " after each task; set it to true, give 'subscribers', or connect"
        )
    key = _connection_key(settings)
    while True:
        writer = claim(key, settings)
        if writer is not None:
            with writer as sender:
                if not sender.socket.closed:
                    return sender.send(batches)
        elif (first := next(batches, None)) is None:
            return RowsSent()
        else:
            batches = chain([first], batches)
            delivered = deliver(key, first.schema, batches)
            if delivered is not None:
                return delivered


class SocketSink(SparkSink):
    """Sends rows. A task returns when its rows have left, so a commit does nothing."""

    def __init__(self, settings: SocketSettings, rows: StructType) -> None:
        check_columns(settings, {one.name: one.dataType.simpleString() for one in rows.fields})
        self._settings = settings

    @hidden_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send_through(self._settings, iterator)
