"""`omq broker snapshot` and `omq broker restore`: arguments, output and errors."""

from __future__ import annotations

import errno
import os
import pty
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from omq.cli import broker as broker_module
from omq.cli.main import main
from omq.store.lmdb import snapshot
from tests.support import fork_server
from tests.support.open_store import Opened


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["broker", *map(str, words)], catch_exceptions=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Opened.on_disk(tmp_path / "store", kind="broker") as store:
        store.append(store.make("prices"), b"1", b"2")
    return tmp_path / "store"


def test_a_snapshot_is_taken_and_restored(directory: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    taken = run("snapshot", directory, tmp_path / "snapshot")
    assert taken.exit_code == 0, taken.output
    assert taken.stdout.startswith(f"{tmp_path / 'snapshot'}: snapshot of store ")
    assert ": 1 topics, " in taken.stdout
    assert taken.stdout.endswith(" s\n")
    assert taken.stderr == ""
    restored = run("restore", tmp_path / "snapshot", tmp_path / "restored")
    assert restored.exit_code == 0, restored.output
    assert f"{tmp_path / 'restored'}: store " in restored.stdout
    assert signal.getsignal(signal.SIGTERM) == before
    with Opened.on_disk(tmp_path / "restored", kind="broker") as store:
        assert store.read(1) == [(1, b"1"), (2, b"2")]


@pytest.mark.parametrize("command", ["snapshot", "restore"])
def test_errors_name_the_directory(directory: Path, tmp_path: Path, command: str) -> None:
    failed = run(command, tmp_path / "nothing", tmp_path / "target")
    assert failed.exit_code == 1
    assert f"Error: {tmp_path / 'nothing'}: there is no store here" in failed.output
    assert not (tmp_path / "target").exists()
    failed = run(command, directory)
    assert failed.exit_code == 2
    assert "Missing argument" in failed.output
    assert f"omq broker {command}" in failed.output.replace("main", "omq")
    assert run(command, "", tmp_path / "target").exit_code == 2


def test_a_full_target_is_refused(directory: Path, tmp_path: Path) -> None:
    failed = run("snapshot", directory, tmp_path)
    assert failed.exit_code == 1
    assert f"Error: {tmp_path}: it is not empty; give a new directory" in failed.output


def test_errors_of_the_system_are_reported(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error", "/somewhere")

    monkeypatch.setattr(snapshot, "_copy", fail)
    failed = run("snapshot", directory, tmp_path / "snapshot")
    assert failed.exit_code == 1
    assert "Error: /somewhere: Input/output error" in failed.output


def test_the_broker_still_takes_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Path] = []

    class Fake:
        def __init__(self, directory: Path, **_: Any) -> None:
            served.append(directory)

    monkeypatch.setattr(broker_module, "AsyncServer", Fake)
    monkeypatch.setattr(broker_module, "run_server", lambda *_, **__: None)
    assert run("./snapshot").exit_code == 0
    assert run("--bind", "tcp://127.0.0.1:*", "restore").exit_code == 0
    assert served == [Path("snapshot"), Path("restore")]


def test_help_lists_the_commands() -> None:
    shown = run("--help").output
    assert "--bind" in shown
    assert "snapshot  Copy the topics" in shown
    assert "restore   Make a new directory" in shown
    assert "TARGET must not exist" in run("snapshot", "--help").output


def test_progress_is_shown_on_a_terminal(directory: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = ("omq.cli.main", "broker", "snapshot", directory, tmp_path / "snapshot")
    try:
        done = fork_server.run("-m", *words, stderr=theirs)
        os.close(theirs)
        assert done.returncode == 0
        assert b"100%" in os.read(ours, 10_000)
    finally:
        os.close(ours)


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        ([], 2, "Missing argument 'DIR', or the options --cluster and --replicated."),
        (["--cluster", "c"], 2, "--replicated: is missing"),
        (["--replicated", "nats://h:1"], 2, "--cluster: is missing"),
        (["DIR", "--replicated", "nats://h:1", "--cluster", "c"], 2, "DIR: give a directory, or the options of a clus"),
        (["--replicated", "nats://h:1", "--cluster", "c"], 1, "is of a broker without a cluster, and cannot become a"),
    ],
)
def test_wrong_options_of_a_cluster_that_is_restored(
    directory: Path, options: list[str], status: int, text: str
) -> None:
    failed = run("restore", directory, *options)
    assert failed.exit_code == status
    assert text in " ".join(failed.output.split())
