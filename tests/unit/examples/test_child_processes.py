"""The child processes of the demos."""

from pathlib import Path

import pytest

import child_processes
from child_processes import Child, ChildError, OmqServer
from tests.support.optional_packages import require


def test_the_error_of_a_server_that_does_not_serve_has_its_log(tmp_path: Path) -> None:
    with (
        OmqServer("broker", tmp_path, "broker", "--nonsense") as server,
        pytest.raises(ChildError, match=r"(?s)the broker does not serve:\n.*No such option"),
    ):
        server.endpoints()


def test_a_child_ends_with_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("lmdb")
    monkeypatch.setattr(child_processes, "EXIT_TIMEOUT_S", 30.0)
    with OmqServer("broker", tmp_path, "broker", tmp_path / "data") as server:
        server.endpoints()
        assert server.status is None
    assert server.status == 0


def test_a_child_that_has_ended_does_not_fail_its_writer(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(3)")
    with Child("program", program) as ended:
        with pytest.raises(ChildError, match="the program has ended with status 3"):
            ended.end()
        ended.write(b"x" * 1_000_000)
