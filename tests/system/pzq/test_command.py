"""`omq pzq` as a user runs it: a process, its endpoints, its end, and who is let in."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner

import omq
from omq.cli.pzq import pzq as command
from omq.pzq import Consumer, Producer
from tests.support.fork_server import ForkedProcess
from tests.support.libzmq_pzq_clients import asked, figures, raw
from tests.support.optional_packages import require
from tests.support.waits import until

require("lmdb")
pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[3]
MAIN = "from omq.cli.main import main; main()"
EVERYWHERE = [f"--{name}-dsn=tcp://127.0.0.1:*" for name in ("receive", "send", "monitor")]


@contextlib.contextmanager
def device(folder: Path, *options: str) -> Iterator[tuple[ForkedProcess, dict[str, str]]]:
    """A device in a process, and its endpoints."""
    ready = folder / "ready.json"
    words = ("pzq", "--ready-file", ready, *EVERYWHERE, *options)
    process = ForkedProcess("-c", MAIN, *words, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        assert ready.exists(), process.communicate()[1]
        yield process, json.loads(ready.read_bytes())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_the_command_serves_until_a_signal_and_keeps_its_messages(tmp_path: Path, number: signal.Signals) -> None:
    database = f"--database={tmp_path / 'data'}"
    with device(tmp_path, database, "--dead-letter-dsn=tcp://127.0.0.1:*", "--http=127.0.0.1:0") as (process, where):
        assert sorted(where) == ["dead_letter", "http", "monitor", "receive", "send"]
        with raw(zmq.DEALER, where["receive"]) as producer:
            assert asked(producer, b"id", b"", b"body") == [b"id", b"1", b""]
            with urllib.request.urlopen(f"{where['http']}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            assert "\nomq_pzq_messages 1.0\n" in text
            assert "\nomq_pzq_own_messages 1.0\n" in text
            assert "\nomq_pzq_replicas 0.0\n" in text
            assert "\nomq_pzq_messages_stored_total 1.0\n" in text
            with urllib.request.urlopen(f"{where['http']}/healthz", timeout=10) as answer:
                assert answer.read() == b"ok\n"
                assert (answer.headers["X-Content-Type-Options"], answer.headers["Server"]) == ("nosniff", "omq")
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{where['http']}/else", timeout=10)
            process.send_signal(number)  # connected clients do not keep it running
            assert process.wait(30) == 0
        assert process.stderr is not None
        log = process.stderr.read()
        assert f"{number.name}: ending" in log
        assert "Traceback" not in log
        assert not (tmp_path / "ready.json").exists()
    with device(tmp_path, database) as (_, where):
        assert figures(where["monitor"])["messages"] == 1


def test_a_directory_that_another_one_has_is_refused(tmp_path: Path) -> None:
    with device(tmp_path, f"--database={tmp_path / 'data'}") as (_, where):
        second = CliRunner().invoke(command, [f"--database={tmp_path / 'data'}", *EVERYWHERE])
        assert second.exit_code == 1
        assert "in use by process" in second.output
        assert figures(where["monitor"])["messages"] == 0


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--ack-timeout=soon"], 2, "--ack-timeout"),
        (["--ack-timeout=0"], 2, "--ack-timeout"),
        (["--reaper-frequency=-1"], 2, "--reaper-frequency"),
        (["--inflight-size=1.5"], 2, "--inflight-size"),
        (["--max-deliveries=none"], 2, "--max-deliveries"),
        (["--receive-dsn=here"], 2, "--receive-dsn: endpoint 'here'"),
        (["--send-dsn=tcp://127.0.0.1"], 2, "--send-dsn: endpoint 'tcp://127.0.0.1'"),
        (["--monitor-dsn="], 2, "--monitor-dsn: endpoint ''"),
        (["--dead-letter-dsn=udp://127.0.0.1:1"], 2, "--dead-letter-dsn: endpoint 'udp:"),
        (["--background", "--send-dsn=ipc://"], 2, "--send-dsn"),
        (["--http=x:y:z"], 2, "--http"),
        (["--user=no-user-of-this-name"], 2, "--user"),
        (["--database="], 2, "--database"),
        (["--ready-file=/nowhere/at/all"], 2, "--ready-file"),
        (["--curve-authorized-keys-file=/dev/null"], 2, "--curve-"),
        (["--replicas=1"], 2, "--replicas"),
        (["--database=/dev/null/x"], 1, "/dev/null/x"),
        (["--receive-dsn=tcp://192.0.2.1:1"], 1, "192.0.2.1"),
    ],
)
def test_what_does_not_fit_is_reported(tmp_path: Path, arguments: list[str], status: int, text: str) -> None:
    result = CliRunner().invoke(command, [f"--database={tmp_path / 'data'}", *EVERYWHERE, *arguments])
    assert (result.exit_code, text in result.output) == (status, True), result.output
    assert "Traceback" not in result.output
    assert status == 1 or not (tmp_path / "data").exists()


def test_a_file_of_the_original_is_no_directory_of_messages(tmp_path: Path) -> None:
    (tmp_path / "sink.kch").write_bytes(b"KC\n")
    result = CliRunner().invoke(command, [f"--database={tmp_path / 'sink.kch'}", *EVERYWHERE])
    assert result.exit_code == 2
    assert (tmp_path / "sink.kch").read_bytes() == b"KC\n"


def test_the_defaults_are_those_of_the_original() -> None:
    defaults = {option.name: option.default for option in command.params}
    assert defaults["ack_timeout"] == 5_000_000
    assert defaults["reaper_frequency"] == 2_500_000
    assert defaults["inflight_size"] == 31_457_280
    assert defaults["receive_dsn"] == "tcp://*:11131"
    assert defaults["send_dsn"] == "tcp://*:11132"
    assert defaults["monitor_dsn"] == "ipc:///tmp/pzq-monitor"
    assert defaults["database"] == "/tmp/sink.kch"


def in_background(folder: Path, *options: str) -> int:
    """The status of a command that goes to the background."""
    began = subprocess.run(
        [
            *(sys.executable, "-c", MAIN, "pzq", f"--database={folder / 'data'}"),
            *("--ready-file", str(folder / "ready.json"), "--user=", *EVERYWHERE, "--background", *options),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        timeout=30,
    )
    return began.returncode


@pytest.mark.slow
def test_in_the_background_it_serves_on(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    assert in_background(tmp_path, "--receive-dsn=tcp://192.0.2.1:1") == 1
    assert in_background(tmp_path) == 0
    assert in_background(tmp_path) == 1  # the directory has one
    where = json.loads(ready.read_bytes())
    process = int((tmp_path / "data" / "lock").read_text())
    try:
        assert figures(where["monitor"])["messages"] == 0
    finally:
        os.kill(process, signal.SIGTERM)
    until(lambda: not ready.exists())


def test_curve_keeps_out_who_has_no_key(tmp_path: Path) -> None:
    public, secret = omq.curve_keypair()
    mine, my_secret = omq.curve_keypair()
    (tmp_path / "key").write_bytes(secret)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "keys").write_bytes(mine + b" me\n")
    options = [f"--curve-secret-key-file={tmp_path / 'key'}", f"--curve-authorized-keys-file={tmp_path / 'keys'}"]
    with device(tmp_path, f"--database={tmp_path / 'data'}", *options) as (_, where):
        key = omq.CurveClient(public, public_key=mine, secret_key=my_secret)
        with Producer(where["receive"], security=key) as producer, Consumer(where["send"], security=key) as consumer:
            producer.send(b"body")
            consumer.recv(timeout=5).ack()
        with raw(zmq.DEALER, where["receive"]) as stranger:
            stranger.send_multipart([b"id", b"", b"body"])
            assert not stranger.poll(300)
