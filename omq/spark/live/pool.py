"""Connections of a worker process, kept from one microbatch to the next; each connection has one owner on a host."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, BinaryIO, Final, Generic, Protocol, TypeVar

import pyarrow as pa

import omq
from omq.spark.live import relay
from omq.spark.live import settings as options
from omq.spark.live.columns import Shape
from omq.spark.live.meeting import Meeting
from omq.spark.live.receive import Connection, Limits
from omq.spark.live.settings import Settings

BINDING: Final = 5.0  # seconds that an endpoint of another process may take to become free


class Closes(Protocol):
    """An object that can be kept."""

    def close(self) -> object: ...


_K = TypeVar("_K", bound=Closes)


class Kept(Generic[_K]):
    """An object that this process keeps, and that one task at a time uses."""

    def __init__(self, thing: _K, claim: relay.Claim) -> None:
        self.thing = thing
        self.claim = claim

    def __enter__(self) -> _K:
        self.claim.lock.acquire()
        return self.thing

    def __exit__(self, *_: object) -> None:
        self.claim.used = time.monotonic()
        self.claim.lock.release()


_kept: dict[str, Kept[Any]] = {}


def _forget() -> None:
    """Forgets, in a forked child, the sockets and the names, which are the parent's."""
    for one in _kept.values():
        one.claim.abandon()
    _kept.clear()


os.register_at_fork(after_in_child=_forget)


def key_of(settings: Settings, *more: object) -> str:
    """The name of a connection on this host: from the query, the options and the partition."""
    text = repr((query_id(), settings, *more))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def query_id() -> str | None:
    """The id of the streaming query that this task belongs to; `None` for a batch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.getLocalProperty("sql.streaming.queryId") if context is not None else None


def keep(key: str, seconds: float, make: Callable[[], _K], serve: Callable[[_K], relay.Serve]) -> Kept[_K] | None:
    """The object that this process keeps under a key, made if no process has it; `None` if another process does.

    Args:
        key: See `key_of`.
        seconds: How long the object is kept without being used.
        make: Makes the object.
        serve: Returns the function that serves other processes with the object.
    """
    if key in _kept:
        return _kept[key]
    try:
        claim = relay.Claim(key, seconds)
    except OSError:
        return None
    try:
        thing = make()
    except BaseException:
        claim.abandon()
        raise
    kept = _kept[key] = Kept(thing, claim)

    def expire() -> None:
        _kept.pop(key, None)
        thing.close()

    claim.start(serve(thing), expire)
    return kept


# ---------------------------------------------------------------------- reading


def shape(settings: Settings) -> Shape:
    """The columns and the size of a read's batches."""
    return Shape(options.columns(settings), settings.batch_bytes, settings.socket == "SUB")


def limits(settings: Settings, drain: bool = False) -> Limits:
    """Where a read, or a microbatch, ends."""
    if drain:
        return Limits(settings.max_rows, settings.max_bytes, None, settings.quiet_seconds)
    return Limits(settings.max_rows, settings.max_bytes, settings.max_seconds)


def connection(settings: Settings, endpoint: str) -> Connection:
    """Opens a connection; waits for an endpoint that another process is just giving up."""
    most = int(dict(settings.options).get("recv_hwm", omq.Options().recv_hwm))
    deadline = time.monotonic() + BINDING
    while True:
        try:
            # How much the socket may hold is known once the size of a message is.
            sock = settings.open(endpoint, recv_hwm=1)
            break
        except omq.BindError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    # Who listens may wait for peers as long as it likes.
    fails = settings.meeting_fails and endpoint in settings.connect
    meeting = Meeting(sock, endpoint, settings.meeting_seconds, fails)
    return Connection(sock, endpoint, settings.batch_bytes, most, meeting)


def read_once(settings: Settings, endpoint: str) -> Iterator[pa.RecordBatch]:
    """Reads one partition once, from a connection that is opened and closed for it."""
    thing = connection(settings, endpoint)
    try:
        yield from thing.batches(shape(settings), limits(settings))
    finally:
        thing.close()


def read(settings: Settings, number: int, endpoint: str, drain: bool) -> Iterator[pa.RecordBatch]:
    """One microbatch of one partition, from this process's connection or through the one that owns it."""
    key = key_of(settings, number)
    form, bounds = shape(settings), limits(settings, drain)
    while True:
        kept = keep(
            key,
            settings.keep_seconds,
            lambda: connection(settings, endpoint),
            lambda thing: lambda request, stream: _serve_read(thing, form, request, stream),
        )
        if kept is not None:
            with kept as thing:
                if not thing.closed:
                    yield from thing.batches(form, bounds)
                    return
        else:
            batches = relay.borrow(key, asdict(bounds))
            if batches is not None:
                yield from batches
                return


def _serve_read(thing: Connection, form: Shape, request: dict[str, Any], stream: BinaryIO) -> dict[str, Any]:
    rows = 0
    with pa.ipc.new_stream(stream, form.schema) as out:
        for batch in thing.batches(form, Limits(**request)):
            out.write_batch(batch)
            stream.flush()
            rows += len(batch)
    return {"rows": rows}
