"""The command of a socket type: `omq push`, `omq sub`, `omq req` and the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from omq.cli.errors import errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import FiniteFloat, NonEmptyPath
from omq.cli.sockets.formats import FORMATS, InvalidMessage, unquote
from omq.cli.sockets.options import read_bytes, socket_options
from omq.cli.sockets.table import SOCKETS, Flow, SocketRow
from omq.cli.sockets.transfer import SocketCommand
from omq.serving.log import log_to_stderr
from omq.types import TRAITS, SocketType

_F = TypeVar("_F", bound=Callable[..., Any])

DEFAULT_DELIMITER: Final = "\\t"
PUBLISHERS: Final = (SocketType.PUB, SocketType.XPUB, SocketType.RADIO)
REPLIERS: Final = (
    *(SocketType.REP, SocketType.ROUTER, SocketType.SERVER, SocketType.PEER, SocketType.DEALER, SocketType.CLIENT),
    *(SocketType.PAIR, SocketType.CHANNEL, SocketType.STREAM),
)
TEXTS: Final = {
    Flow.SEND: "DATA, each FILE or each line of standard input is a message.",
    Flow.RECEIVE: "Ends after --count messages, or with SIGINT or SIGTERM.",
    Flow.REQUEST: "DATA, each FILE or each line of standard input is a request. The replies are printed.",
    Flow.REPLY: "A reply is the request (--echo), the output of a command (--exec), DATA, or a line of standard input.",
    Flow.BOTH: "DATA, each FILE or each line of standard input is a message. Ends after --count received messages, or "
    "with SIGINT or SIGTERM.",
}


def read_delimiter(ctx: click.Context, param: click.Parameter, value: str) -> bytes:
    """Returns the value of `--delimiter` with its escapes replaced."""
    try:
        return unquote(bytes(read_bytes(ctx, param, value)))
    except InvalidMessage as fault:
        raise click.BadParameter(str(fault), ctx, param) from None


def message_options(function: _F) -> _F:
    """Adds the options of the formats of messages to a command."""
    for option in (
        click.option(
            "--delimiter",
            default=DEFAULT_DELIMITER,
            show_default="tab",
            callback=read_delimiter,
            help="The delimiter between the parts of a message in a line; empty for one part.",
        ),
        click.option(
            "-F",
            "--format",
            type=click.Choice(FORMATS),
            help="The format of messages. Default: text, one line a message; raw for FILE; quoted on a terminal.",
        ),
    ):
        function = option(function)
    return function


def pace_options(function: _F) -> _F:
    """Adds `--interval` and `--rate` to a command."""
    for option in (
        click.option(
            "--rate",
            type=FiniteFloat(0, min_open=True),
            metavar="N",
            help="Messages a second.",
        ),
        click.option(
            "-i",
            "--interval",
            type=FiniteFloat(0, min_open=True),
            metavar="SECONDS",
            help="Seconds between two messages. With it or --rate, DATA is sent again and again.",
        ),
    ):
        function = option(function)
    return function


def input_options(function: _F) -> _F:
    """Adds the options of what is sent to a command."""
    for option in (
        click.argument(
            "files", nargs=-1, metavar="[FILE]...", type=NonEmptyPath(exists=True, path_type=Path), required=False
        ),
        click.option("-D", "--data", callback=read_bytes, help="The message to send, instead of standard input."),
        click.option("--with-names", is_flag=True, help="Each FILE's message begins with a part that has its name."),
    ):
        function = option(function)
    return function


def reply_options(function: _F) -> _F:
    """Adds the options of replies to a command."""
    for option in (
        click.option(
            "--exec",
            "command",
            metavar="COMMAND",
            help="Reply with the output of a shell command, whose standard input is the message.",
        ),
        click.option("-e", "--echo", is_flag=True, help="Reply with the message itself."),
    ):
        function = option(function)
    return function


def options_of(row: SocketRow) -> list[Callable[[Any], Any]]:
    """Returns the decorators of the command of a type, from the last option of its help to the first."""
    kind, role = row.socket_type, row.role
    found: list[Callable[[Any], Any]] = [socket_options]
    if kind in PUBLISHERS:
        found.append(
            click.option(
                "--wait",
                type=click.IntRange(0),
                default=1,
                show_default=True,
                help="Subscriptions to wait for before the first message; without a subscription it would be lost.",
            )
        )
    found.append(
        click.option(
            "-t",
            "--timeout",
            type=FiniteFloat(0),
            metavar="SECONDS",
            help="Seconds that each message may wait, or the command fails. Default: for ever.",
        )
    )
    counted = {
        Flow.SEND: "Messages to send",
        Flow.REQUEST: "Requests to send",
        Flow.REPLY: "Requests to answer",
    }
    text = f"{counted.get(role, 'Messages to receive')}, after which to end."
    found.append(click.option("-n", "--count", type=click.IntRange(0), metavar="N", help=text))
    if role is not Flow.RECEIVE:
        found.append(pace_options)
    if kind in REPLIERS:
        found.append(reply_options)
    if role is not Flow.RECEIVE:
        found.append(input_options)
    found.append(message_options)
    if "subscribe" in TRAITS[kind].options:
        default = " Default: all messages." if kind is SocketType.SUB else ""
        text = f"A prefix to subscribe to; may be repeated.{default}"
        found.append(click.option("-s", "--subscribe", multiple=True, metavar="PREFIX", callback=read_bytes, help=text))
    elif kind is SocketType.DISH:
        text = "A group to join; may be repeated."
        found.append(click.option("-g", "--group", "join", multiple=True, required=True, metavar="GROUP", help=text))
    elif kind is SocketType.RADIO:
        text = "The group of all messages. Default: the first part of each."
        found.append(click.option("-g", "--group", metavar="GROUP", help=text))
    return found


def run(row: SocketRow, **options: Any) -> None:
    """Runs the command of a type with the values of its options."""
    if options["verbose"]:
        log_to_stderr("debug")
    with errors_of_command("the command", "cli"):
        SocketCommand(row, options).run()


def socket_command(name: str) -> click.Command:
    """Returns the command of a socket type, by the name of the command."""
    row = SOCKETS[name]
    function: Any = partial(run, row)
    for option in options_of(row):
        function = option(function)
    first = f"\n\nThe first part of a message is {row.first_part}." if row.first_part else ""
    text = f"{row.text}\n\n{TEXTS[row.role]}{first}"
    params = function.__click_params__[::-1]
    return ExampleCommand(name, callback=partial(run, row), params=params, help=text, example=row.example)
