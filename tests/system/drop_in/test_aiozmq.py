"""aiozmq: calls, notifications, publications and streams between omq and omq or libzmq."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import waits
from tests.support.drop_in_programs import MARKS, PROGRAMS, Installed, library_in, library_of

pytestmark = MARKS


@pytest.mark.parametrize(
    ("server_face", "client_face"),
    [
        pytest.param(True, True, id="all"),
        pytest.param(True, False, id="server"),
        pytest.param(False, True, id="client"),
    ],
)
def test_a_server_and_a_client(installed: Callable[..., Installed], server_face: bool, client_face: bool) -> None:
    programs = installed("aiozmq", "msgpack")
    server = programs.start("server", PROGRAMS / "aiozmq_program.py", "{}", face=server_face)
    waits.until(lambda: programs.text("server").endswith("\n"), lambda: programs.text("server"))
    assert library_of(server.pid) == {"omq" if server_face else "libzmq"}
    found = programs.result("aiozmq_program.py", programs.text("server").splitlines()[-1], face=client_face)
    assert library_in(found.pop("maps")) == {"omq" if client_face else "libzmq"}
    assert found == {
        "call": 3,
        "calls": [number + 1 for number in range(200)],
        "slow calls": ["ONE", 2, "TWO"],
        "error": "ValueError",
        "missing": "NotFoundError",
        "timeout": True,
        "notes": ["notified", "published"],
        "stream": True,
        "large": 5_000_000,
        "last": [""],
    }
    assert server.wait(60) == 0, programs.text("server")
    assert programs.text("server").endswith("closed\n")
