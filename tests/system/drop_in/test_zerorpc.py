"""zerorpc, on gevent: calls, streams and heartbeats between omq and omq or libzmq."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import waits
from tests.support.drop_in_programs import MARKS, PROGRAMS, Installed, library_in

pytestmark = MARKS
FACES = pytest.mark.parametrize(
    ("server_face", "client_face"),
    [
        pytest.param(True, True, id="all"),
        pytest.param(True, False, id="server"),
        pytest.param(False, True, id="client"),
    ],
)


@FACES
def test_a_server_and_a_client(installed: Callable[..., Installed], server_face: bool, client_face: bool) -> None:
    programs = installed("zerorpc")
    server = programs.start("server", PROGRAMS / "zerorpc_program.py", face=server_face)
    waits.until(lambda: "\n" in programs.text("server"), lambda: programs.text("server"), 60)
    found = programs.result("zerorpc_program.py", programs.text("server").splitlines()[0], face=client_face)
    assert {name: library_in(maps) for name, maps in found.pop("maps").items()} == {
        "client": {"omq" if client_face else "libzmq"},
        "server": {"omq" if server_face else "libzmq"},
    }
    assert found == {
        "hello": "hello there",
        "add": 6,
        "many": [number + 1 for number in range(500)],
        "at once": [number + 2 for number in range(100)],
        "sleeps": [0.5] * 20,
        "longer than a heartbeat": 3,
        "error": ["KeyError", "'reason'"],
        "timeout": True,
        "stream": True,
        "large": 3_000_006,
        "lost": True,
    }
    server.wait(60)
    errors = programs.text("server") + (programs.work / "errors.txt").read_text()
    assert "after missing event" not in errors  # zerorpc looks for itself every second, and complains


@FACES
def test_the_command_lists_methods(
    installed: Callable[..., Installed], free_place: str, server_face: bool, client_face: bool
) -> None:
    programs = installed("zerorpc")
    command = programs.python.with_name("zerorpc")
    programs.start("server", command, "--server", "--bind", free_place, "time", face=server_face)
    client = (command, "--client", "--connect", free_place)
    assert "strftime" in programs.run(*client, face=client_face)
