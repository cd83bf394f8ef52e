"""`omq broker`: merges options and file, and reports values that are not valid."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import omq
from omq.broker.config import Config, TopicSpec
from omq.cli import broker as broker_module
from omq.cli.main import main
from tests.support.optional_packages import require


class Spy:
    """A fake server that records its arguments."""

    def __init__(self, directory: Path | None, **options: Any) -> None:
        self.directory = directory
        self.options = options


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Spy]:
    """Runs the command with a fake server."""
    made: list[Spy] = []

    def run_server(server: Spy, *_: object, **__: object) -> None:
        made.append(server)

    monkeypatch.setattr(broker_module, "AsyncServer", Spy)
    monkeypatch.setattr(broker_module, "run_server", run_server)

    def run(*arguments: str | Path) -> Spy:
        result = invoke(*arguments)
        assert result.exit_code == 0, result.output
        return made.pop()

    return run


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["broker", *(str(argument) for argument in arguments)])


def test_all_arguments(run_command: Callable[..., Spy], tmp_path: Path) -> None:
    spy = run_command(
        *(
            tmp_path / "data",
            "--bind",
            "tcp://127.0.0.1:*",
            "--bind",
            f"ipc://{tmp_path}/s",
            "--sexp",
            "tcp://127.0.0.1:*",
        ),
        *("--http", "127.0.0.1:0", "--topic", "prices:broadcast:strong", "--topic", "jobs:round-robin:weak:max_age=9"),
    )
    assert spy.directory == tmp_path / "data"
    assert spy.options == {
        "bind": ("tcp://127.0.0.1:*", f"ipc://{tmp_path}/s"),
        "sexp": "tcp://127.0.0.1:*",
        "http": "127.0.0.1:0",
        "topics": (
            TopicSpec("prices", "broadcast", "strong"),
            TopicSpec("jobs", "round-robin", "weak", {"max_age": 9}),
        ),
        "security": None,
        "permissions": (),
        "user_limits": (),
        "memory": False,
        "max_connections": None,
        "heartbeat_interval": 5.0,
        "heartbeat_timeout": 10.0,
        "cluster": None,
    }


def test_a_directory_is_enough(run_command: Callable[..., Spy], tmp_path: Path) -> None:
    spy = run_command(tmp_path / "data")
    assert spy.options["bind"] == (broker_module.DEFAULT_BIND,)
    assert (spy.options["sexp"], spy.options["http"], spy.options["topics"]) == (None, None, ())
    assert run_command(tmp_path, "--sexp", "tcp://127.0.0.1:*").options["bind"] == ()


def test_options_override_the_file(run_command: Callable[..., Spy], tmp_path: Path) -> None:
    users, others = tmp_path / "users", tmp_path / "others"
    for path in (users, others):
        path.write_text("alice:secret\n")
        path.chmod(0o600)
    path = tmp_path / "broker.toml"
    path.write_text(
        'bind = "tcp://127.0.0.1:1"\nsexp = "tcp://127.0.0.1:2"\nhttp = "127.0.0.1:3"\nmemory = true\n'
        '[[topic]]\nname = "a"\npersistence = "weak"\n[[topic]]\nname = "b"\npersistence = "weak"\n'
        '[security]\nmechanism = "plain"\nusers_file = "users"\n'
        '[[permission]]\nwho = "alice"\ntopics = "*"\nmay = ["publish"]\n'
    )
    alone = run_command("--config", path)
    assert alone.directory is None
    assert alone.options["memory"] is True
    assert alone.options["bind"] == ("tcp://127.0.0.1:1",)
    assert [topic.name for topic in alone.options["topics"]] == ["a", "b"]
    assert isinstance(alone.options["security"], omq.PlainServer)
    assert alone.options["permissions"][0].who == "alice"

    both = run_command(
        *(tmp_path / "data", "--config", path, "--bind", "tcp://127.0.0.1:*", "--sexp", "tcp://127.0.0.1:*"),
        *("--http", "127.0.0.1:0", "--topic", "b:round-robin:strong", "--users-file", others),
    )
    assert both.directory == tmp_path / "data"
    assert both.options["memory"] is False
    assert (both.options["bind"], both.options["sexp"]) == (("tcp://127.0.0.1:*",), "tcp://127.0.0.1:*")
    assert both.options["http"] == "127.0.0.1:0"
    assert both.options["topics"] == (
        TopicSpec("a", "broadcast", "weak"),
        TopicSpec("b", "round-robin", "strong"),
    )


def test_security_of_the_command_line(run_command: Callable[..., Spy], tmp_path: Path) -> None:
    public, secret = omq.curve_keypair()
    key, allowed = tmp_path / "key", tmp_path / "allowed"
    key.write_bytes(secret)
    key.chmod(0o600)
    allowed.write_bytes(public + b" me\n")
    for mechanism in ([], ["--mechanism", "curve"]):
        files = ("--secret-key-file", str(key), "--authorized-keys-file", str(allowed))
        server = run_command(tmp_path / "data", *mechanism, *files).options["security"]
        assert isinstance(server, omq.CurveServer)
        assert server.public_key == public
    path = tmp_path / "broker.toml"
    path.write_text(f'[security]\nmechanism = "curve"\nsecret_key_file = "{key}"\n')
    assert run_command(tmp_path / "data", "--config", path, "--mechanism", "null").options["security"] is None
    # The file's key serves on, next to the keys of the command line.
    server = run_command(tmp_path / "data", "--config", path, "--authorized-keys-file", allowed).options["security"]
    assert server.public_key == public


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], ["DIR", "--memory"]),
        (["data", "--memory"], ["--memory", "data"]),
        (["data", "--topic", "prices"], ["--topic", "'prices'", "NAME:DELIVERY:PERSISTENCE"]),
        (["data", "--topic", "p:broadcst:strong"], ["--topic", "broadcst"]),
        (["data", "--topic", "a/b:broadcast:strong"], ["--topic", "a/b"]),
        (["data", "--topic", "p:broadcast:weak", "--topic", "p:broadcast:weak"], ["--topic", "'p'", "twice"]),
        (["--memory", "--topic", "p:broadcast:strong"], ["topic p", "strong", "--memory"]),
        (["data", "--http", "nowhere"], ["--http", "nowhere"]),
        (["data", "--http", "127.0.0.1:99999"], ["--http", "99999"]),
        (["data", "--config", "missing.toml"], ["--config", "missing.toml"]),
        (["data", "--mechanism", "gssapi"], ["--mechanism", "gssapi"]),
        (["data", "--mechanism", "plain"], ["--users-file is missing", 'mechanism "plain"']),
        (["data", "--ready-file", "nowhere/ready.json"], ["--ready-file", "'nowhere'"]),
        (["data", "--ready-file", "x" * 300 + "/ready.json"], ["--ready-file", "x/ready.json': File name too long"]),
        (["data", "--users-file", "missing"], ["--users-file", "missing"]),
        (["data", "--log-level", "loud"], ["--log-level", "loud"]),
        (["data", "--bund", "tcp://*:1"], ["--bund"]),
        (["data", "more"], ["more"]),
        (["--memory", "--bind", "tcp://"], ["tcp://"]),
        (["--memory", "--bind", "udp://127.0.0.1:*"], ["udp"]),
        (["--memory", "--bind", "127.0.0.1:5555"], ["127.0.0.1:5555"]),
        (["--memory", "--sexp", "nonsense"], ["nonsense"]),
        (["--memory", "--sexp", "ipc:///tmp/s"], ["ipc:///tmp/s"]),
        (["--memory", "--sexp", "tcp://127.0.0.1:99999"], ["99999"]),
    ],
)
def test_an_argument_that_does_not_fit_is_named(
    arguments: list[str], named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert [part for part in named if part not in result.stderr] == [], result.stderr
    assert result.stdout == ""


def test_what_does_not_fit_in_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('[[topic]]\nname = "prices"\ndelivery = "random"\n')
    result = invoke(tmp_path / "data", "--config", path)
    assert result.exit_code == 2
    for part in (str(path), '[[topic]] number 1 ("prices")', 'delivery = "random"'):
        assert part in result.stderr


def test_what_does_not_fit_in_a_file_of_keys_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('[security]\nmechanism = "plain"\nusers_file = "users"\n')
    result = invoke(tmp_path / "data", "--config", path)
    assert result.exit_code == 2
    for part in (f"{path}: [security]: users_file = {tmp_path}/users", "No such file"):
        assert part in result.stderr
    (tmp_path / "users").write_text("alice\n")
    assert "line 1" in invoke(tmp_path / "data", "--config", path).stderr


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    result = invoke(tmp_path / "data")
    assert result.exit_code == 2
    assert str(tmp_path / "data") in result.stderr


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    require("lmdb")
    result = invoke("/proc/nowhere/data")
    assert result.exit_code == 1
    assert "/proc/nowhere" in result.stderr
    assert "No such file or directory" in result.stderr


@pytest.mark.parametrize(
    "field",
    [one.name for one in fields(Config) if one.name not in ("topics", "security", "permissions", "user_limits")],
)
def test_each_setting_that_a_reload_does_not_apply_is_known(field: str) -> None:
    start, now = Config(), replace(Config(), **{field: "other"})
    assert [name for name, value in broker_module.FIXED_SETTINGS.items() if value(start) != value(now)] != []


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*arguments: Any, **options: Any) -> None:
        raise ModuleNotFoundError("No module named 'lmdb'", name="lmdb")

    monkeypatch.setattr(broker_module, "AsyncServer", missing)
    result = invoke(tmp_path / "data")
    assert result.exit_code == 1
    assert "needs lmdb: pip install 'omq-zmtp[broker]'" in result.stderr


def test_the_other_commands_need_nothing_of_the_broker() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('lmdb', 'aiohttp', 'prometheus_client')));"
        "from omq.cli.main import main; main(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    for name in ("broker", "goby", "gobyd", "pzq", "store"):
        assert f"\n  {name} " in done.stdout
