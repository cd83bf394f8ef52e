"""The ready file of a server: its content, and where it cannot be written."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from omq.serving.ready import ReadyFile

log = logging.getLogger("omq.test")


def test_a_file_that_cannot_be_written_is_named_and_the_server_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone" / "ready.json"
    ReadyFile(gone).write_if_possible({"zmtp": "tcp://127.0.0.1:1"}, log)
    assert f"--ready-file {gone}: cannot be written: No such file or directory" in caplog.text
    assert not gone.exists()


def test_a_file_that_can_be_written_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ready = ReadyFile(tmp_path / "ready.json")
    ready.write_if_possible({"zmtp": "tcp://127.0.0.1:1"}, log)
    assert (tmp_path / "ready.json").read_text() == '{"zmtp": "tcp://127.0.0.1:1"}\n'
    assert caplog.text == ""
    ready.remove()
    assert list(tmp_path.iterdir()) == []


def test_more_keys_are_written_with_the_endpoints(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    ready = ReadyFile(path)
    ready.set(log, leader=False)
    assert not path.exists()  # the server does not serve yet
    ready.write({"zmtp": "tcp://127.0.0.1:1"})
    assert json.loads(path.read_bytes()) == {"zmtp": "tcp://127.0.0.1:1", "leader": False}
    ready.set(log, leader=True)
    assert json.loads(path.read_bytes()) == {"zmtp": "tcp://127.0.0.1:1", "leader": True}
    ready.remove()
    ready.set(log, leader=False)
    assert not path.exists()
