"""The one writer of a host: a process keeps the connection of a sink, and the others of its host write through it.

Spark gives the partitions of a stream to any free worker process, so the next microbatch often runs in another one.
Closing the connection and opening it there would lose the messages on their way. So the process that opened it keeps
it, and serves the other processes over a Unix socket. That socket's name is the claim: it is in the abstract namespace,
so the kernel lets one process have it and takes it back when that process dies, however it dies.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final, Protocol

import pyarrow as pa

import omq
from omq.spark.live.rpc import is_same_user
from omq.spark.live.settings import Settings
from omq.unpatched import sleep, socket, threading

REQUEST_TIMEOUT_S: Final = 5.0  # for a process that has connected to send its first line
POLL_INTERVAL_S: Final = 0.5  # between two looks at how long a connection has not been used
BACKLOG: Final = 64  # processes that may wait for their turn


class WriterLost(omq.OmqError):
    """The process that had a connection ended while it served."""


class Sends(Protocol):
    """A connection that can be kept."""

    def send(self, batches: Iterable[pa.RecordBatch]) -> Any: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> object: ...


class HostWriter:
    """A connection that this process keeps, for one task at a time, its own or another process's.

    Args:
        key: The connection's name; see `key_of`.
        keep: Seconds without use after which it is closed.

    Raises:
        OSError: Another process has it.
    """

    def __init__(self, key: str, keep: float) -> None:
        self._key = key
        self._keep = keep
        self._lock = threading.Lock()
        self._used = time.monotonic()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._listener.bind(_name(key))
        except OSError:
            self._listener.close()
            raise
        self._listener.listen(BACKLOG)
        self._listener.settimeout(POLL_INTERVAL_S)

    def start(self, sender: Sends) -> None:
        """Begins to serve."""
        self._sender = sender
        threading.Thread(target=self._run, name="omq-spark-writer", daemon=True).start()

    def __enter__(self) -> Any:
        self._lock.acquire()
        return self._sender

    def __exit__(self, *_: object) -> None:
        self._used = time.monotonic()
        self._lock.release()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                with self._lock:
                    if time.monotonic() - self._used < self._keep:
                        continue
                    # A process that comes from here on finds the name free, and opens a connection of its own.
                    _kept.pop(self._key, None)
                    self._sender.close()
                    self.abandon()
                return
            except OSError:
                if self._listener.fileno() < 0:
                    return
                sleep(POLL_INTERVAL_S)  # no descriptor is left: processes that connect wait until one is
                continue
            with peer:
                if is_same_user(peer):
                    self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        stream: Any
        with self as sender, peer.makefile("rwb") as stream:
            try:
                # No other process is served while this one sends nothing.
                peer.settimeout(REQUEST_TIMEOUT_S)
                if not stream.readline():
                    return
                peer.settimeout(None)
                try:
                    found = pa.ipc.open_stream(stream) if stream.readline() == b"rows\n" else ()
                    result = asdict(sender.send(found))
                except (omq.OmqError, OSError, pa.ArrowException, TypeError, ValueError) as error:
                    result = {"error": f"{type(error).__name__}: {error}"}
                stream.write(json.dumps(result).encode() + b"\n")
                stream.flush()
            except OSError:
                pass  # the process that asked is gone

    def abandon(self) -> None:
        """Gives the name up; in a forked child, only closes the inherited descriptor: the parent still has the name."""
        self._listener.close()


_kept: dict[str, HostWriter] = {}


def _forget() -> None:
    """Forgets, in a forked child, the connections and the names, which are the parent's."""
    for one in _kept.values():
        one.abandon()
    _kept.clear()


os.register_at_fork(after_in_child=_forget)


def key_of(settings: Settings, *more: object) -> str:
    """Returns the name of a connection on this host: from the query, the options and the partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    return hashlib.sha256(repr((query, settings, *more)).encode()).hexdigest()[:32]


def claim(key: str, keep: float, make: Callable[[], Sends]) -> HostWriter | None:
    """Returns the connection that this process keeps under a key; `None` if another process does.

    Args:
        key: See `key_of`.
        keep: Seconds that it is kept without being used.
        make: Makes it if no process has it.
    """
    if key in _kept:
        return _kept[key]
    try:
        writer = HostWriter(key, keep)
    except OSError:
        return None
    try:
        writer.start(make())
    except BaseException:
        writer.abandon()
        raise
    _kept[key] = writer
    return writer


def deliver(key: str, batches: Iterator[pa.RecordBatch]) -> dict[str, Any] | None:
    """Writes through the process that has the connection, and waits until it has flushed; `None` if there is none.

    Raises:
        WriterLost: The process ended while it served; some of the rows have been sent.
        OmqError: The error of that process.
    """
    peer = _connect(key)
    if peer is None:
        return None
    with peer, peer.makefile("rwb") as stream:
        try:
            stream.write(b"write\n")
            stream.flush()
            out = None
            for batch in batches:
                if out is None:
                    stream.write(b"rows\n")
                    out = pa.ipc.new_stream(stream, batch.schema)
                out.write_batch(batch)
            if out is None:
                stream.write(b"none\n")
            else:
                out.close()
            stream.flush()
            result = json.loads(stream.readline() or b"null")
        except OSError as error:
            raise WriterLost("the process that has the connection ended") from error
    if not isinstance(result, dict):
        raise WriterLost("the process that has the connection ended")
    if "error" in result:
        raise omq.OmqError(result["error"])
    return result


def _connect(key: str) -> socket.socket | None:
    """Returns a connection to the process that has a name; `None` if there is none."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        peer.connect(_name(key))
    except (ConnectionRefusedError, FileNotFoundError):
        peer.close()
        return None
    if not is_same_user(peer):
        peer.close()
        raise omq.StateError("another user's process has the name that a connection of ours needs")
    return peer


def _name(key: str) -> str:
    return f"\0omq-spark/{os.getuid()}/{key}"
