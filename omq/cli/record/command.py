"""`omq record`: writes a feed with its timing to a file."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from omq.cli.errors import errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import FiniteFloat, NonEmptyPath, sigterm_interrupts
from omq.cli.record.feed_file import FeedWriter
from omq.cli.sockets.formats import parts_of
from omq.cli.sockets.messenger import Messenger
from omq.cli.sockets.options import attach, new_socket, note, read_bytes, socket_options
from omq.errors import ReceiveTimeout, UsageError
from omq.serving.log import log_to_stderr
from omq.types import SocketType

if TYPE_CHECKING:
    from rich.console import RenderableType

EXAMPLE: Final = """\
omq pub -b tcp://127.0.0.1:5555 -D 'AAPL 189.95' -i 0.05 -n 5 &
omq record feed.omq -c tcp://127.0.0.1:5555 -n 5"""
TYPES: Final = ("SUB", "PULL", "DISH", "GATHER")
REFRESH_PER_S: Final = 5


class FeedRecording:
    """A recording in progress.

    Attributes:
        messages: Messages in the file.
        size: Bytes of their parts.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self._started = time.monotonic()

    def __str__(self) -> str:
        took = time.monotonic() - self._started
        messages = "message" if self.messages == 1 else "messages"
        return f"{self.messages} {messages}, {self.size} bytes, {took:.1f} s"

    def line(self) -> RenderableType:
        """Returns a line for a terminal."""
        from rich.text import Text

        return Text(f"Recording: {self}")


def socket_arguments(kind: SocketType, subscribe: tuple[bytes, ...], join: tuple[str, ...]) -> dict[str, Any]:
    """Returns the options of the socket that select messages.

    Raises:
        UsageError: They are not for this type.
    """
    if subscribe and kind is not SocketType.SUB:
        raise UsageError(f"--subscribe is for SUB, not for {kind.value}")
    if bool(join) != (kind is SocketType.DISH):
        raise UsageError(
            "--group is for DISH" if join else "--group GROUP is missing: a DISH receives nothing without it"
        )
    if kind is SocketType.SUB:
        return {"subscribe": list(subscribe) or [b""]}
    return {"join": list(join)} if join else {}


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.argument("file", type=NonEmptyPath(dir_okay=False, path_type=Path))
@click.option(
    "--socket",
    "name",
    type=click.Choice(TYPES, case_sensitive=False),
    default="SUB",
    show_default=True,
    help="The socket's type.",
)
@click.option(
    "-s",
    "--subscribe",
    multiple=True,
    metavar="PREFIX",
    callback=read_bytes,
    help="SUB: a prefix. Default: all messages.",
)
@click.option("-g", "--group", "join", multiple=True, metavar="GROUP", help="DISH: a group to join; may be repeated.")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Messages after which to end.")
@click.option("-d", "--duration", type=FiniteFloat(0), metavar="SECONDS", help="Seconds after which to end.")
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
@socket_options
def record(
    file: Path,
    name: str,
    subscribe: tuple[bytes, ...],
    join: tuple[str, ...],
    count: int | None,
    duration: float | None,
    force: bool,
    **options: Any,
) -> None:
    """Write the messages of a feed to FILE with the time of each, until SIGINT or SIGTERM.

    `omq replay` sends them again. What was received before a kill of this process is in FILE.
    """
    if options["verbose"]:
        log_to_stderr("debug")
    kind = SocketType(name)
    with errors_of_command("the command", "cli"), sigterm_interrupts(), ExitStack() as stack:
        socket = stack.enter_context(new_socket(kind, options, **socket_arguments(kind, subscribe, join)))
        if file.exists() and not force:
            raise click.ClickException(f"{file}: exists already; --force replaces it")
        endpoints = (*options["bind"], *options["connect"])
        writer = stack.enter_context(FeedWriter(file, kind.value, endpoints, time.time_ns(), replace=force))
        recording = FeedRecording()
        with suppress(KeyboardInterrupt), ExitStack() as shown:
            show(recording, options["quiet"], shown)
            attach(socket, options)
            copy(Messenger(socket, None), writer, recording, count, duration)
        socket.stop()
        if not options["quiet"]:
            note(f"{file}: {recording}")


def show(recording: FeedRecording, quiet: bool, stack: ExitStack) -> None:
    """Shows the progress on a terminal until the stack unwinds."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    live = Live(console=console, get_renderable=recording.line, refresh_per_second=REFRESH_PER_S, transient=True)
    stack.enter_context(live)


def copy(
    messenger: Messenger, writer: FeedWriter, recording: FeedRecording, count: int | None, duration: float | None
) -> None:
    """Writes messages as they arrive."""
    started = time.monotonic_ns()
    end = None if duration is None else started + int(duration * 1e9)
    while count is None or recording.messages < count:
        if end is not None:
            messenger.timeout = max(0.0, (end - time.monotonic_ns()) / 1e9)
        try:
            messages = messenger.receive()
        except ReceiveTimeout:
            return
        arrived = time.monotonic_ns() - started
        records = [(arrived, parts_of(message)) for message in messages]
        if count is not None:
            del records[count - recording.messages :]
        writer.write(records)
        recording.messages += len(records)
        recording.size += sum(len(part) for _, parts in records for part in parts)
        if end is not None and time.monotonic_ns() >= end:
            return
