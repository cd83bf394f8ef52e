"""The options that take files with keys, users and passwords, and the security of a socket that they give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import omq
from omq.cli.parameters import FILE
from omq.errors import UsageError
from omq.keyfiles import read_keys, read_public_key, read_secret_key, read_users
from omq.types import Security

_F = TypeVar("_F", bound=Callable[..., Any])


def key_option(
    name: str, argument: str, read: Callable[[Path], Any], text: str, variable: str | None = None
) -> Callable[[_F], _F]:
    """Returns an option that takes a file and passes its parsed content to the command.

    Args:
        name: The option.
        argument: The argument of the command.
        read: Parses the file; raises `UsageError` if its content is not valid.
        text: The help text.
        variable: The environment variable that is read without the option; `None` for none.
    """

    def callback(ctx: click.Context, param: click.Parameter, value: Path | None) -> Any:
        try:
            return None if value is None else read(value)
        except UsageError as fault:
            raise click.BadParameter(str(fault).partition(" = ")[2], ctx, param) from None

    return click.option(name, argument, type=FILE, callback=callback, help=text, envvar=variable)


def read_user(path: Path) -> omq.PlainClient:
    """Returns the client security of a file with one line `name:password`.

    Raises:
        UsageError: The content of the file is not valid.
    """
    users = read_users(path)
    if len(users) != 1:
        raise UsageError(f"user_file = {path}: must have one line name:password, not {len(users)}")
    return omq.PlainClient(*next(iter(users.items())))


def security_options(function: _F) -> _F:
    """Adds the options that `socket_security` takes to a command."""
    for option in (
        key_option("--plain-users-file", "users", read_users, "PLAIN: the users to admit, name:password, one a line."),
        key_option("--plain-user-file", "user", read_user, "PLAIN: one line name:password, for the peers."),
        key_option(
            "--curve-authorized-keys-file",
            "authorized_keys",
            read_keys,
            "CURVE: the public keys of admitted peers, one a line. Default: every key.",
        ),
        key_option("--curve-secret-key-file", "secret_key", read_secret_key, "CURVE: the secret key of this process."),
        key_option(
            "--curve-server-key-file",
            "server_key",
            read_public_key,
            "CURVE: the public key of the peers, if they are the servers.",
        ),
    ):
        function = option(function)
    return function


def socket_security(
    secret_key: bytes | None,
    authorized_keys: frozenset[bytes] | None,
    server_key: bytes | None,
    user: omq.PlainClient | None = None,
    users: dict[str, str] | None = None,
) -> Security | None:
    """Returns the security of a socket towards its peers; `None` without any.

    Args:
        secret_key: The secret key of this process.
        authorized_keys: The public keys to admit; `None` for every key.
        server_key: The public key of the peers; `None` if this process is the server.
        user: The name and the password of this process.
        users: Passwords by user name, if this process is the server.

    Raises:
        UsageError: The options do not go together.
    """
    has_curve = any(one is not None for one in (secret_key, authorized_keys, server_key))
    if (user is not None) + (users is not None) + has_curve > 1:
        raise UsageError("a socket has one mechanism: give --plain-user-file, --plain-users-file or files of CURVE")
    if server_key is not None:
        if authorized_keys is not None:
            raise UsageError(
                "--curve-authorized-keys-file does not go with --curve-server-key-file: one side is the server"
            )
        return omq.CurveClient(server_key, secret_key=secret_key)
    if authorized_keys is not None and secret_key is None:
        raise UsageError("--curve-authorized-keys-file needs --curve-secret-key-file")
    if secret_key is not None:
        return omq.CurveServer(secret_key, authorized_keys)
    return user if users is None else omq.PlainServer(users)
