"""The options of a command that opens a socket, and the socket that they give."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

import omq
from omq.cli.key_options import security_options, socket_security
from omq.cli.parameters import FiniteFloat
from omq.errors import UsageError
from omq.types import SocketType

_F = TypeVar("_F", bound=Callable[..., Any])

#: The options of sockets that have an option of the command, by the argument of the socket.
SOCKET_ARGUMENTS: Final = ("send_hwm", "recv_hwm", "linger", "identity", "heartbeat_interval", "max_message_size")
ENDPOINT: Final = "ENDPOINT"


def read_bytes(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Returns the value, or the values, of an option as the bytes that the shell has passed."""
    if isinstance(value, tuple):
        return tuple(map(os.fsencode, value))
    return None if value is None else os.fsencode(value)


def socket_options(function: _F) -> _F:
    """Adds the options that `open_socket` takes to a command."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Log the events of connections to standard error."),
        click.option("-q", "--quiet", is_flag=True, help="Print errors only."),
        click.option(
            "--max-message-size",
            type=click.IntRange(0),
            metavar="BYTES",
            help="Largest received message. Default: any.",
        ),
        click.option(
            "--heartbeat-interval",
            type=FiniteFloat(0, min_open=True),
            metavar="SECONDS",
            help="Seconds between two PINGs to each peer. Default: none is sent.",
        ),
        click.option("--identity", metavar="NAME", callback=read_bytes, help="The name of this socket at a ROUTER."),
        click.option(
            "--recv-hwm", type=click.IntRange(0), metavar="N", help="Messages of a peer that wait to be read."
        ),
        click.option(
            "--send-hwm", type=click.IntRange(0), metavar="N", help="Messages for a peer that wait to be sent."
        ),
        click.option(
            "--linger",
            type=FiniteFloat(0),
            metavar="SECONDS",
            help="Seconds that sent messages may take to leave at the end. Default: for ever; 1 after a signal.",
        ),
    ):
        function = option(function)
    return endpoint_options(security_options(function))


def endpoint_options(function: _F) -> _F:
    """Adds `--bind` and `--connect`, which `open_socket` takes, to a command."""
    connect = click.option(
        "-c", "--connect", multiple=True, metavar=ENDPOINT, help="An endpoint to connect to; may be repeated."
    )
    bind = click.option(
        "-b",
        "--bind",
        multiple=True,
        metavar=ENDPOINT,
        help="An endpoint to bind, such as tcp://*:5555; may be repeated.",
    )
    return bind(connect(function))


def check_endpoints(kind: SocketType, bind: tuple[str, ...], connect: tuple[str, ...]) -> None:
    """Checks endpoints before anything is opened.

    Raises:
        UsageError: There is not any, or one is not valid for this type.
    """
    if not bind and not connect:
        raise UsageError("--bind or --connect is missing: give at least one endpoint")
    for endpoint in bind:
        omq.check_endpoint(endpoint, bind=True, socket_type=kind)
    for endpoint in connect:
        omq.check_endpoint(endpoint, socket_type=kind)


def open_socket(kind: SocketType, options: dict[str, Any], **fixed: Any) -> omq.Socket:
    """Creates a socket, and binds and connects it.

    Args:
        kind: Its type.
        options: The values of `socket_options`.
        **fixed: Options of the socket.

    Raises:
        UsageError: An option is not valid for this type.
        BindError: An endpoint cannot be bound.
    """
    socket = new_socket(kind, options, **fixed)
    try:
        attach(socket, options)
    except BaseException:
        socket.stop()
        raise
    return socket


def new_socket(kind: SocketType, options: dict[str, Any], **fixed: Any) -> omq.Socket:
    """Creates a socket without endpoints; see `open_socket`."""
    check_endpoints(kind, options["bind"], options["connect"])
    given = {name: options[name] for name in SOCKET_ARGUMENTS if options.get(name) is not None}
    names = ("secret_key", "authorized_keys", "server_key", "user", "users")
    security = socket_security(*(options[name] for name in names))
    if security is not None:
        given["security"] = security
    socket: omq.Socket = getattr(omq, kind.value)(**given, **fixed)
    return socket


def attach(socket: omq.Socket, options: dict[str, Any], **fixed: Any) -> None:
    """Binds and connects a socket, and names bound endpoints whose port the system has picked.

    Args:
        socket: The socket.
        options: The values of `endpoint_options`, and `quiet`.
        **fixed: Options of the endpoints to connect to.
    """
    for endpoint in options["bind"]:
        bound = socket.bind(endpoint)
        if bound != endpoint and not options["quiet"]:
            note(f"bound to {bound}")
    for endpoint in options["connect"]:
        socket.connect(endpoint, **fixed)


def note(text: str) -> None:
    """Prints a line for people on standard error."""
    if sys.stderr is not None:
        click.echo(f"omq: {text}", err=True)
