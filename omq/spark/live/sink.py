"""Sends rows through PUSH and PUB; a connection that is kept has one process of a host, through which others write.

Spark gives the partitions of a stream to any free worker process, so the next microbatch often runs in another one.
Closing the connection and opening it there would lose the messages on their way. So the process that opened it keeps
it, and serves the other processes over a Unix socket. That socket's name is the claim: it is in the abstract namespace,
so the kernel lets one process have it and takes it back when that process dies, however it dies.
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
from omq.spark.live.peers import POLL_INTERVAL_S, Peers
from omq.spark.live.rpc import is_same_user
from omq.spark.live.settings import SocketSettings
from omq.spark.options import STREAM_WRITE
from omq.spark.provider import SparkSink
from omq.unpatched import sleep, socket, threading

log = logging.getLogger("omq.spark")

LARGE_BYTES: Final = 32768  # mean bytes of a body from which on bodies are sent from Arrow's memory, without a copy
LINGER_S: Final = 30.0  # seconds that the rows of a task may take to leave
SEND_TIMEOUT_S: Final = 120.0  # seconds that a PUSH may wait for room, until its peers take something
REQUEST_TIMEOUT_S: Final = 5.0  # for a process that has connected to send its first rows
IDLE_POLL_S: Final = 0.5  # between two looks at how long a connection has not been used
BACKLOG: Final = 64  # processes that may wait for their turn
_TYPES: Final = {
    "value": ("binary", "string"),
    "parts": ("array<binary>", "array<string>"),
    "topic": ("binary", "string"),
}
_BINARY: Final = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)


@dataclass
class RowsSent(WriterCommitMessage):
    """The count of what a task has sent.

    Attributes:
        rows: Messages.
        bytes: Bytes of the messages' parts.
    """

    rows: int = 0
    bytes: int = 0


def check_columns(settings: SocketSettings, columns: Mapping[str, str | None]) -> None:
    """Raises an `OptionError` unless columns make messages.

    Args:
        settings: The options of the write.
        columns: Their types by name, as Spark writes them; `None` where only the values show it.
    """
    for name, kind in columns.items():
        if name not in _TYPES or kind not in (None, *_TYPES[name]):
            raise omq.OptionError(
                f"column {name!r}{f' of type {kind}' if kind else ''}: a sink takes value (binary or string) or parts"
                " (array of them), and topic for a PUB"
            )
    if len(columns.keys() & {"value", "parts"}) != 1:
        raise omq.OptionError("a sink takes one of the columns value and parts")
    if "topic" in columns and settings.socket != "PUB":
        raise omq.OptionError(f"column 'topic': it is for a PUB, not for a {settings.socket}")
    if "topic" in columns and settings.topic is not None:
        raise omq.OptionError("option 'topic' and column 'topic' exclude each other")


class Sender:
    """A socket that rows are sent through."""

    def __init__(self, settings: SocketSettings) -> None:
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

    def _await_peers(self, settings: SocketSettings) -> None:
        """Waits for a peer, and for the subscriptions that are wanted, for connectTimeout at most."""
        seconds, fails = settings.connect_timeout, settings.fail_on_connect_timeout
        if settings.connect and not settings.bind and seconds is not None:
            peers = Peers(self.socket, ",".join(settings.connect), seconds, fails)
            peers.wait(seconds + POLL_INTERVAL_S)
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
        """Sends every row, and waits until all have left this process.

        Raises:
            SendTimeout: There was no room for a message within `send_timeout`, or not everything left within `linger`.
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
            raise omq.SendTimeout(f"not everything that was sent has left within linger={limit} s") from None
        return sent

    def _send(self, batch: pa.RecordBatch, sent: RowsSent) -> None:
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
            done = 0
            while done < len(bodies):
                # If the time is up after some messages, there was progress: go on with the rest.
                done += self.socket.send_many(bodies[done:] if done else bodies)
        sent.rows += len(bodies)
        sent.bytes += size


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


# ---------------------------------------------------------------------- the one writer of a host


class HostWriter:
    """A connection that this process keeps, for one task at a time, its own or another process's.

    Args:
        key: The name of the connection on this host.
        settings: The options of the write.

    Attributes:
        sender: The connection.
        listener: The socket whose name is the claim.

    Raises:
        OSError: Another process has it.
        OmqError: It cannot be opened.
    """

    def __init__(self, key: str, settings: SocketSettings) -> None:
        self._key = key
        self._keep_seconds = settings.keep_seconds
        self._lock = threading.Lock()
        self._used = time.monotonic()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self.listener.bind(_name(key))
            self.listener.listen(BACKLOG)
            self.listener.settimeout(IDLE_POLL_S)
            self.sender = Sender(settings)
        except BaseException:
            self.listener.close()
            raise
        threading.Thread(target=self._run, name="omq-spark-writer", daemon=True).start()

    def __enter__(self) -> Sender:
        self._lock.acquire()
        return self.sender

    def __exit__(self, *_: object) -> None:
        self._used = time.monotonic()
        self._lock.release()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except TimeoutError:
                with self._lock:
                    if time.monotonic() - self._used < self._keep_seconds:
                        continue
                    # A process that comes from here on finds the name free, and opens a connection of its own.
                    _kept.pop(self._key, None)
                    self.sender.socket.close()  # messages that have not left have its linger to do so
                    self.listener.close()
                return
            except OSError:
                if self.listener.fileno() < 0:
                    return
                sleep(IDLE_POLL_S)  # no descriptor is left: processes that connect wait until one is
                continue
            with peer:
                if is_same_user(peer):
                    self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        stream: Any
        with self as sender, peer.makefile("rwb") as stream:
            try:
                try:
                    # No other process is served while this one sends nothing.
                    peer.settimeout(REQUEST_TIMEOUT_S)
                    rows = pa.ipc.open_stream(stream)
                    peer.settimeout(None)
                    result = asdict(sender.send(rows))
                except (omq.OmqError, OSError, pa.ArrowException, TypeError, ValueError) as error:
                    result = {"error": f"{type(error).__name__}: {error}"}
                stream.write(json.dumps(result).encode() + b"\n")
                stream.flush()
            except OSError:
                pass  # the process that asked is gone


_kept: dict[str, HostWriter] = {}


def _forget() -> None:
    """Forgets, in a forked child, the connections and the names, which are the parent's."""
    for one in _kept.values():
        one.listener.close()  # only the descriptor that was inherited: the parent still has the name
    _kept.clear()


os.register_at_fork(after_in_child=_forget)


def _key(settings: SocketSettings) -> str:
    """Returns the name of a connection on this host, from the query and the options; one that dials is a process's."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    return hashlib.sha256(repr((query, settings, None if settings.bind else os.getpid())).encode()).hexdigest()[:32]


def _name(key: str) -> str:
    return f"\0omq-spark/{os.getuid()}/{key}"


def claim(key: str, settings: SocketSettings) -> HostWriter | None:
    """Returns the connection that this process keeps under a key, opened if none does; `None` if another one does."""
    if key not in _kept:
        try:
            _kept[key] = HostWriter(key, settings)
        except OSError:
            return None
    return _kept[key]


def deliver(key: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> RowsSent | None:
    """Sends rows through the process that has the connection, and waits for its flush; `None` without that process.

    Raises:
        OmqError: The error of that process; or it ended, and some of the rows have been sent.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as peer:
        try:
            peer.connect(_name(key))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        if not is_same_user(peer):
            raise omq.StateError("another user's process has the name that a connection of ours needs")
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
    """Sends the rows of a task; a bound endpoint is kept, and shared by all tasks of the host."""
    if not settings.bind and settings.use != STREAM_WRITE:
        sender = Sender(settings)
        try:
            sent = sender.send(batches)
        except BaseException:
            sender.socket.stop()
            raise
        sender.socket.close()
        return sent
    # Whether this process of Spark's ends with its task.
    single_use = TaskContext.get() is not None and not os.environ.get("SPARK_REUSE_WORKER")
    if settings.socket == "PUB" and settings.bind and not settings.subscribers and single_use:
        raise omq.OptionError(
            f"bind={settings.bind[0]!r}: a PUB would lose its subscribers with each task, since"
            " spark.python.worker.reuse=false; set it to true, give 'subscribers', or connect"
        )
    key = _key(settings)
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
    """Sends rows. A task returns when its rows have left: a commit has nothing to do.

    Args:
        settings: The options.
        rows: The schema of the rows.

    Raises:
        OptionError: A column is missing, cannot be sent, or has another type.
    """

    def __init__(self, settings: SocketSettings, rows: StructType) -> None:
        check_columns(settings, {one.name: one.dataType.simpleString() for one in rows.fields})
        self._settings = settings

    @hidden_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send_through(self._settings, iterator)
