"""The security of a socket from files."""

from __future__ import annotations

from typing import Any

import pytest

import omq
from omq.cli.key_options import socket_security
from omq.errors import UsageError

PUBLIC, SECRET = omq.curve_keypair()
USER = omq.PlainClient("joe", "secret")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, None),
        ({"secret_key": SECRET}, omq.CurveServer),
        ({"secret_key": SECRET, "authorized_keys": frozenset({PUBLIC})}, omq.CurveServer),
        ({"server_key": PUBLIC}, omq.CurveClient),
        ({"server_key": PUBLIC, "secret_key": SECRET}, omq.CurveClient),
        ({"user": USER}, omq.PlainClient),
        ({"users": {"joe": "secret"}}, omq.PlainServer),
    ],
)
def test_the_files_select_the_mechanism_and_the_side(options: dict[str, Any], kind: type | None) -> None:
    given = {"secret_key": None, "authorized_keys": None, "server_key": None, **options}
    found = socket_security(**given)
    assert found is None if kind is None else isinstance(found, kind)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"server_key": PUBLIC, "authorized_keys": frozenset()}, "one side is the server"),
        ({"authorized_keys": frozenset()}, "needs --curve-secret-key-file"),
        ({"user": USER, "users": {}}, "one mechanism"),
        ({"user": USER, "secret_key": SECRET}, "one mechanism"),
        ({"users": {}, "server_key": PUBLIC}, "one mechanism"),
    ],
)
def test_files_that_do_not_go_together_are_refused(options: dict[str, Any], text: str) -> None:
    given = {"secret_key": None, "authorized_keys": None, "server_key": None, **options}
    with pytest.raises(UsageError, match=text):
        socket_security(**given)
