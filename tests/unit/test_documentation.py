"""The text that `help` shows of a socket's calls, which are compiled: a text and a signature."""

from __future__ import annotations

import inspect

import pytest

import omq
import omq.asyncio


@pytest.mark.parametrize("kind", [omq.Socket, omq.asyncio.Socket], ids=["blocking", "asyncio"])
def test_every_call_of_a_socket_has_a_text_and_a_signature(kind):
    calls = [name for name in dir(kind) if callable(getattr(kind, name)) and not name.startswith("_")]
    assert {"send", "recv", "poll", "fileno", "connect", "close"} <= set(calls)
    for name in calls:
        assert inspect.getdoc(getattr(kind, name)), name
        assert "self" in inspect.signature(getattr(kind, name)).parameters, name
