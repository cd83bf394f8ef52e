"""What the options of a read mean to a connection: its socket, its bounds, its columns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

import omq
from omq.spark.live import settings as options
from omq.spark.live.columns import Shape
from omq.spark.live.meeting import Meeting
from omq.spark.live.receive import Connection, Limits
from omq.spark.live.settings import Settings
from omq.unpatched import sleep

BINDING: Final = 5.0  # seconds that an endpoint of another process may take to become free
GATHERING: Final = 1.0  # seconds that a microbatch gathers where there is no triggerSeconds
DRAINING: Final = 10.0  # likewise seconds that all microbatches of one availableNow gather


def shape(settings: Settings) -> Shape:
    """The columns and the size of a read's batches."""
    return Shape(options.columns(settings), settings.batch_bytes, settings.socket == "SUB")


def limits(settings: Settings, drain: bool = False) -> Limits:
    """Where a read, or a microbatch, ends."""
    seconds = settings.max_seconds
    if settings.use == options.STREAM_READ and seconds is None:
        seconds = DRAINING if drain else GATHERING
    return Limits(settings.max_rows, settings.max_bytes, seconds, settings.quiet_seconds if drain else None)


def socket(settings: Settings, endpoint: str) -> tuple[omq.Socket, Meeting]:
    """Opens the socket of a connection; waits for an endpoint that another process is just giving up."""
    deadline = time.monotonic() + BINDING
    while True:
        try:
            # How much the socket may hold is known once the size of a message is.
            found = settings.open(endpoint, recv_hwm=1)
            break
        except omq.BindError:
            if time.monotonic() > deadline:
                raise
            sleep(0.05)
    # Who listens may wait for peers as long as it likes.
    fails = settings.meeting_fails and endpoint in settings.connect
    return found, Meeting(found, endpoint, settings.meeting_seconds, fails)


def most(settings: Settings) -> int:
    """Messages that a socket may hold, the user's recv_hwm; 0 for no bound."""
    return int(dict(settings.options).get("recv_hwm", omq.Options().recv_hwm))


def once(settings: Settings, endpoint: str) -> Iterator[pa.RecordBatch]:
    """Reads one partition once, from a connection that is opened and closed for it."""
    sock, meeting = socket(settings, endpoint)
    thing = Connection(sock, endpoint, settings.batch_bytes, most(settings), meeting)
    try:
        yield from thing.batches(shape(settings), limits(settings))
    finally:
        thing.close()
