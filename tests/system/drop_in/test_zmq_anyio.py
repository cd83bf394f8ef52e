"""zmq-anyio: sockets of omq, used with asyncio and with trio; and the same program with libzmq."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.drop_in_programs import MARKS, Installed, library_in

pytestmark = MARKS


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("face", [pytest.param(True, id="omq"), pytest.param(False, id="libzmq")])
def test_messages(installed: Callable[..., Installed], face: bool, backend: str) -> None:
    found = installed("zmq-anyio", "trio").result("anyio_program.py", backend, face=face)
    assert library_in(found.pop("maps")) == {"omq" if face else "libzmq"}
    assert found == {
        "parts": ["dealer", "one", "two"],
        "back": ["back"],
        "echoes": 1000,
        "identity": "dealer",
        "json": {"key": [1, 2]},
        "string": "text",
        "poll of nothing": 0,
        "poll": 1,
        "large": 5_000_000,
        "timeout": "Again",
        "pushed": True,
    }
