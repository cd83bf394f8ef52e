"""`omq replay`: sends a recorded feed again, with its timing."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

import omq
from omq.cli.errors import errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import FILE, FiniteFloat, progress_bar
from omq.cli.percentiles import milliseconds, percentile
from omq.cli.record.feed_file import FeedReader
from omq.cli.sockets.ending import finish
from omq.cli.sockets.messenger import Messenger
from omq.cli.sockets.options import attach, new_socket, note, socket_options
from omq.errors import UsageError
from omq.serving.log import log_to_stderr
from omq.types import SocketType

EXAMPLE: Final = """\
omq pub -b tcp://127.0.0.1:5555 -D 'AAPL 189.95' -i 0.05 -n 5 &
omq record feed.omq -c tcp://127.0.0.1:5555 -n 5
omq sub -c tcp://127.0.0.1:5556 -n 5 &
omq replay feed.omq -b tcp://127.0.0.1:5556 --speed 2"""
#: The type that sends what a type has recorded.
COUNTERPARTS: Final = {"SUB": "PUB", "PULL": "PUSH", "DISH": "RADIO", "GATHER": "SCATTER"}
TYPES: Final = (*COUNTERPARTS.values(), "XPUB", "DEALER", "PAIR", "CHANNEL", "CLIENT")
PUBLISHERS: Final = (SocketType.PUB, SocketType.XPUB, SocketType.RADIO)
#: The end of a wait that the process spends awake, in seconds: the kernel may wake it later than it asks for.
SPIN_S: Final = 0.0005
SHOW_INTERVAL_S: Final = 0.1
#: Messages that are read ahead and sent together with `--speed max`.
BATCH_MESSAGES: Final = 100
MAXIMUM: Final = "max"


def read_speed(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Parses the value of `--speed`: a factor, or `max`, which is infinity."""
    return float("inf") if value == MAXIMUM else FiniteFloat(0, min_open=True).convert(value, param, ctx)


class Schedule:
    """Waits until each message of a recording is due.

    Args:
        speed: The factor of the speed; infinity never waits.
        start_ns: The time in the recording of the beginning, in nanoseconds since its start.

    Attributes:
        delays: How late each message was, in seconds.
    """

    def __init__(self, speed: float, start_ns: int) -> None:
        self._scale = 0.0 if speed == float("inf") else 1e-9 / speed
        self._start_ns = start_ns
        self._started = 0.0
        self.delays = array("d")

    def begin(self) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def wait(self, time_ns: int) -> None:
        """Waits until the message with this time in the recording is due."""
        due = self._started + (time_ns - self._start_ns) * self._scale
        now = time.perf_counter()
        if due - now > SPIN_S:
            time.sleep(due - now - SPIN_S)
        while now < due:
            now = time.perf_counter()
        self.delays.append(now - due)

    def summary(self) -> str:
        """Returns the number of messages, the time, and how late they were."""
        took = time.perf_counter() - self._started
        text = f"{len(self.delays)} {'message' if len(self.delays) == 1 else 'messages'} in {took:.3f} s"
        if not self.delays or not self._scale:
            return text
        ordered = sorted(self.delays)
        late = " / ".join(map(milliseconds, (percentile(ordered, 50), percentile(ordered, 99), ordered[-1])))
        return f"{text}; late p50 / p99 / max = {late} ms"


def selected(
    reader: FeedReader, start_ns: int, stop_ns: int | None, show: Callable[[int, int], None]
) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the messages of a part of the recording, and shows the progress."""
    shown = time.monotonic()
    for time_ns, parts in reader:
        if stop_ns is not None and time_ns >= stop_ns:
            break
        if time_ns >= start_ns:
            yield time_ns, parts
        if (now := time.monotonic()) > shown + SHOW_INTERVAL_S:
            show(reader.position, reader.size)
            shown = now
    show(reader.size, reader.size)


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the garbage collector, whose pauses delay messages, from running in the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def play(messenger: Messenger, messages: Iterator[tuple[int, list[bytes]]], schedule: Schedule, at_once: bool) -> None:
    """Sends messages when they are due, or as fast as the peers take them."""
    with no_collection():
        schedule.begin()
        batch: list[Any] = []
        for time_ns, parts in messages:
            if not at_once:
                schedule.wait(time_ns)
                messenger.send([parts])
                continue
            schedule.delays.append(0.0)
            batch.append(parts)
            if len(batch) == BATCH_MESSAGES:
                messenger.send(batch)
                batch = []
        if batch:
            messenger.send(batch)


def wait_for_peers(socket: omq.Socket, count: int) -> None:
    """Waits for subscriptions, or for peers."""
    if count:
        wait = socket.wait_subscribed if socket.socket_type in PUBLISHERS else socket.wait_connected
        wait(n=count)


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.argument("file", type=FILE)
@click.option(
    "--socket",
    "name",
    type=click.Choice(TYPES, case_sensitive=False),
    help="The socket's type. Default: PUB for a recording of SUB, PUSH of PULL, RADIO of DISH, SCATTER of GATHER.",
)
@click.option(
    "--speed",
    callback=read_speed,
    metavar="FACTOR|max",
    default="1",
    show_default=True,
    help="The speed; max does not wait.",
)
@click.option(
    "--from", "start", type=FiniteFloat(0), metavar="SECONDS", default=0, help="The beginning, in the recording."
)
@click.option("--to", "stop", type=FiniteFloat(0), metavar="SECONDS", help="The end, in the recording.")
@click.option(
    "--wait",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Peers, or subscriptions, to wait for before the first message.",
)
@socket_options
def replay(
    file: Path, name: str | None, speed: float, start: float, stop: float | None, wait: int, **options: Any
) -> None:
    """Send the messages of FILE, which `omq record` has written, with the times between them.

    SIGINT and SIGTERM end it. A recording that ends with an incomplete message is sent up to that message.
    """
    if options["verbose"]:
        log_to_stderr("debug")
    with errors_of_command("the command", "cli"), FeedReader(file) as reader:
        if stop is not None and stop <= start:
            raise UsageError(f"--to {stop:g}: must be after --from {start:g}")
        kind = name or COUNTERPARTS.get(reader.socket_type)
        if kind is None:
            raise UsageError(f"--socket is missing: {file} was recorded by a socket of type {reader.socket_type!r:.40}")
        start_ns = int(start * 1e9)
        schedule = Schedule(speed, start_ns)
        with progress_bar("Replaying") as bar, new_socket(SocketType(kind), options) as socket:
            show = bar if not options["quiet"] else lambda done, total: None
            attach(socket, options)
            interrupted = False
            try:
                wait_for_peers(socket, wait)
                messages = selected(reader, start_ns, None if stop is None else int(stop * 1e9), show)
                play(Messenger(socket, None), messages, schedule, speed == float("inf"))
            except KeyboardInterrupt:
                interrupted = True
            finish(socket, interrupted)
        if not options["quiet"]:
            if reader.incomplete_bytes and stop is None and not interrupted:
                note(f"{file}: ends with an incomplete message of {reader.incomplete_bytes} bytes")
            note(f"{file}: {schedule.summary()}")
