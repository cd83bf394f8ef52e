"""The options of commands that are clients of a broker, and the client that they open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

import click

import omq
from omq.broker import Client
from omq.broker.errors import BrokerError, TopicError
from omq.broker.protocol import check_name
from omq.broker.start_time import start_time
from omq.cli.errors import errors_of_command
from omq.cli.key_options import key_option, read_user
from omq.cli.parameters import FiniteFloat
from omq.errors import EndpointError, UsageError
from omq.keyfiles import read_public_key, read_secret_key

DEFAULT_TIMEOUT_S: Final = 30.0
MAX_ID_DIGITS: Final = 19  # such an id has 64 bits
START_WORDS: Final = ("latest", "earliest")

_F = TypeVar("_F", bound=Callable[..., Any])


def read_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Checks the name of a topic, a durable subscription or a group."""
    try:
        return None if value is None else check_name(value, "the name")
    except TopicError as fault:
        raise click.BadParameter(str(fault), ctx, param) from None


def read_broker(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Parses the value of `--broker`: an endpoint, or several, separated by commas."""
    endpoints = tuple(endpoint for part in value.split(",") if (endpoint := part.strip())) or (value,)
    for endpoint in endpoints:
        try:
            omq.check_endpoint(endpoint, socket_type=omq.SocketType.DEALER)
        except EndpointError as fault:
            raise click.BadParameter(str(fault), ctx, param) from None
    return endpoints


def broker_options(function: _F) -> _F:
    """Adds `--broker` and the options of its security, which `broker_security` takes, to a command."""
    for option in (
        key_option(
            "--broker-user-file",
            "broker_user",
            read_user,
            "PLAIN: name:password for the broker.",
            "OMQ_BROKER_USER_FILE",
        ),
        key_option(
            "--broker-secret-key-file",
            "broker_secret_key",
            read_secret_key,
            "CURVE: the secret key that identifies this process to the broker. Default: a new key.",
            "OMQ_BROKER_SECRET_KEY_FILE",
        ),
        key_option(
            "--broker-key-file",
            "broker_key",
            read_public_key,
            "CURVE: the broker's public key.",
            "OMQ_BROKER_KEY_FILE",
        ),
        click.option(
            "--broker",
            required=True,
            metavar="ENDPOINT[,ENDPOINT...]",
            callback=read_broker,
            envvar="OMQ_BROKER",
            show_envvar=True,
            help="The broker's endpoint for ZeroMQ clients; of a cluster several, separated by commas.",
        ),
    ):
        function = option(function)
    return function


def broker_security(
    broker_key: bytes | None, broker_secret_key: bytes | None, broker_user: omq.PlainClient | None
) -> omq.CurveClient | omq.PlainClient | None:
    """Returns the security towards the broker; `None` without any.

    Raises:
        UsageError: The options do not go together.
    """
    if broker_key is None:
        if broker_secret_key is not None:
            raise UsageError("--broker-secret-key-file needs --broker-key-file")
        return broker_user
    if broker_user is not None:
        raise UsageError("--broker-user-file does not go with --broker-key-file: the broker has one mechanism")
    return omq.CurveClient(broker_key, secret_key=broker_secret_key)


def client_options(function: _F) -> _F:
    """Adds the options that `client_of` takes to a command."""
    function = click.option(
        "--timeout",
        type=FiniteFloat(0, min_open=True),
        default=DEFAULT_TIMEOUT_S,
        show_default=True,
        help="Seconds to wait for the broker.",
    )(function)
    return broker_options(function)


@contextmanager
def client_of(options: dict[str, Any]) -> Iterator[Client]:
    """Opens the client of a command, and reports its errors as errors of the command.

    Args:
        options: The values of `client_options`.
    """
    endpoints = options["broker"]
    with errors_of_command("the client", "broker"):
        security = broker_security(options["broker_key"], options["broker_secret_key"], options["broker_user"])
        try:
            with Client(endpoints, timeout=options["timeout"], security=security) as client:
                yield client
        except UsageError:
            raise
        except BrokerError as fault:
            text = str(fault)
            raise click.ClickException(f"--broker {text}" if text.startswith(endpoints) else text) from None


def read_start(ctx: click.Context, param: click.Parameter, value: str) -> str | int | datetime:
    """Parses the start of a subscription or a group: `latest`, `earliest`, an id or a time."""
    return value if value in START_WORDS else read_position(value, ctx, param, START_WORDS)


def read_bound(ctx: click.Context, param: click.Parameter, value: str | None) -> int | datetime | None:
    """Parses a bound of a range: an id or a time."""
    return None if value is None else read_position(value, ctx, param)


def read_position(
    value: str, ctx: click.Context, param: click.Parameter, words: tuple[str, ...] = ()
) -> int | datetime:
    """Parses an id, or a time in ISO 8601 with a time zone.

    Args:
        value: The text.
        ctx: The context of the command.
        param: The parameter that has the text.
        words: Other values that are valid, for the text of the error.

    Raises:
        BadParameter: It is not valid.
    """
    if value.isascii() and value.isdecimal() and len(value) <= MAX_ID_DIGITS:
        return int(value)
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        allowed = ", ".join((*words, "an id"))
        text = f"{value!r:.80}: must be {allowed} or a time such as 2026-03-01T09:00:00Z"
        raise click.BadParameter(text, ctx, param) from None
    try:
        start_time("time", time)
    except ValueError:
        text = f"{value!r:.80}: must have a time zone, such as 2026-03-01T09:00:00Z, and be 1970 or later"
        raise click.BadParameter(text, ctx, param) from None
    return time


START_METAVAR: Final = "latest|earliest|ID|TIME"
BOUND_METAVAR: Final = "ID|TIME"
TOPIC: Final = click.argument("topic", metavar="TOPIC", callback=read_name)
NAME: Final = click.argument("name", metavar="NAME", callback=read_name)
