"""The files of docs/examples/production, and the reports of `omq broker` to systemd."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import omq
from omq.broker import Client
from omq.cli.broker import broker as command
from tests.support.waits import until
from tests.system.broker.server_process import BOUND, broker, get

pytestmark = pytest.mark.timeout(120)

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "production"
UNIT = EXAMPLES / "omq-broker.service"


def unit() -> configparser.ConfigParser:
    """Parses the unit file; a key that is there twice is an error."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#", ";"))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def check_arguments(arguments: list[str]) -> dict[str, object]:
    """Parses arguments of `omq broker` by its own parser, which refuses unknown options; returns the values."""
    parser = command.make_parser(command.context_class(command))
    values, left, _ = parser.parse_args(arguments)
    assert left == []
    return dict(values)


def test_the_unit_starts_the_broker_with_options_that_exist() -> None:
    parser = unit()
    assert parser.sections() == ["Unit", "Service", "Install"]
    service = parser["Service"]
    program, name, *arguments = shlex.split(service["ExecStart"])
    assert (Path(program).name, name) == ("omq", "broker")
    values = check_arguments(arguments)
    assert values["directory"] == f"/var/lib/{service['StateDirectory']}"
    assert values["path"] == f"/etc/{service['ConfigurationDirectory']}/broker.toml"
    assert (service["Type"], service["Restart"]) == ("notify", "on-failure")
    assert int(service["LimitNOFILE"]) >= 65_536
    assert int(service["WatchdogSec"]) >= 10


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is missing")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/omq/bin/omq", sys.executable).replace("=omq\n", "=root\n"))
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False)
    about = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert about == []


def test_the_container_starts_the_broker_with_options_that_exist() -> None:
    text = (EXAMPLES / "Containerfile").read_text()
    lists = dict(re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE))
    words = [*re.findall(r'"([^"]*)"', lists["ENTRYPOINT"]), *re.findall(r'"([^"]*)"', lists["CMD"])]
    assert words[:2] == ["omq", "broker"]
    values = check_arguments(words[2:])
    assert f"VOLUME {values['directory']}\n" in text
    assert "\nUSER omq\n" in text
    assert "/healthz" in text


def test_the_sample_configuration_is_accepted(tmp_path: Path) -> None:
    text = (EXAMPLES / "broker.toml").read_text()
    assert (
        "http://" + re.findall(r'^http = "(.*)"$', text, re.MULTILINE)[0] + "/healthz"
        in (EXAMPLES / "Containerfile").read_text()
    )
    text = text.replace('"tcp://*:5555"', '"tcp://127.0.0.1:*"').replace('"127.0.0.1:8222"', '"127.0.0.1:0"')
    (tmp_path / "broker.toml").write_text(text)
    public, secret = omq.curve_keypair()
    server_key = omq.curve_public(
        omq.load_certificate(omq.save_certificate(tmp_path / "broker.key", secret)[1]).secret_key
    )
    client_public, client_secret = omq.curve_keypair()
    (tmp_path / "authorized_keys").write_bytes(client_public + b" alice\n")
    with broker(tmp_path, tmp_path / "data", "--config", tmp_path / "broker.toml") as command:
        endpoints = command.serving()
        assert get(f"{endpoints['http']}/healthz") == b"ok\n"
        security = omq.CurveClient(server_key, client_public, client_secret)
        with Client(endpoints["zmtp"], timeout=20, security=security) as client:
            assert client.publish("events", b"x") == 1
            assert {topic.name for topic in client.topics()} == {"events", "jobs", "jobs.dead"}
        # The machine of the tests may have fewer descriptors than the unit asks for.
        assert [line for line in command.log.splitlines() if "WARNING" in line and "descriptors" not in line] == []
        assert command.end() == 0
    assert public == server_key


def test_the_broker_reports_its_states_to_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('memory = true\n[[topic]]\nname = "t"\npersistence = "weak"\n')
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(BOUND)

        def state() -> bytes:
            """Returns the next state that is not a keep-alive ping."""
            while (found := manager.recv(200)) == b"WATCHDOG=1":
                pass
            return found

        with broker(tmp_path, "--config", path, "--http", "127.0.0.1:0") as command:
            assert state() == b"READY=1"
            endpoints = command.serving()  # all are there
            assert sorted(endpoints) == ["http", "zmtp"]
            assert get(f"{endpoints['http']}/healthz") == b"ok\n"
            assert [manager.recv(200) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            for text in ('memory = true\n[[topic]]\nname = "u"\npersistence = "weak"\n', "nonsense"):
                path.write_text(text)
                command.process.send_signal(signal.SIGHUP)
                assert state().startswith(b"RELOADING=1\nMONOTONIC_USEC=")
                assert state() == b"READY=1"
            command.process.send_signal(signal.SIGSTOP)
            manager.setblocking(False)
            try:
                while True:
                    manager.recv(200)
            except BlockingIOError:
                pass
            manager.settimeout(0.5)
            with pytest.raises(TimeoutError):  # no keep-alive ping while the loop stands still
                manager.recv(200)
            manager.settimeout(BOUND)
            command.process.send_signal(signal.SIGCONT)
            assert manager.recv(200) == b"WATCHDOG=1"
            command.process.terminate()
            assert state() == b"STOPPING=1"
            assert command.ended() == 0


def test_a_broker_that_does_not_start_does_not_report_that_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, socket.socket() as taken:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with broker(tmp_path, "--memory", "--http", f"127.0.0.1:{taken.getsockname()[1]}") as command:
            assert command.ended() == 1
        assert manager.recv(200) == b"STOPPING=1"
        with pytest.raises(BlockingIOError):
            manager.recv(200)


def test_endpoints_that_others_can_reach_are_reported(tmp_path: Path) -> None:
    with broker(tmp_path, "--memory", "--bind", "tcp://*:*", "--sexp", "tcp://0.0.0.0:*") as command:
        command.serving()
        until(lambda: "listening" in command.log or "sexp: tcp" in command.log, lambda: command.log)
        assert "tcp://*:*: every client may do everything, unauthenticated and unencrypted" in command.log
        assert '--sexp has no mechanism: every client there is "*"' in command.log
