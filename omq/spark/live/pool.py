"""Sockets that a sink keeps in a worker process from one microbatch to the next; one process of a host has each."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from omq.spark.live import relay
from omq.spark.live.settings import Settings


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
