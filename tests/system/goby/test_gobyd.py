"""`omq gobyd` as a user runs it: a process, its endpoints, its end, and its errors about bad arguments."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from omq.cli.gobyd import gobyd as command
from omq.goby import Daemon, Portal
from omq.goby.protobuf import TerminateRequest
from tests.support.fork_server import ForkedProcess
from tests.support.parameters import each_value_once
from tests.support.waits import until

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[3]
MAIN = "from omq.cli.main import main; main()"


@contextlib.contextmanager
def gobyd(folder: Path, *options: str) -> Iterator[tuple[ForkedProcess, dict[str, str]]]:
    """A process that serves, and where."""
    ready = folder / "ready.json"
    process = ForkedProcess("-c", MAIN, "gobyd", "--ready-file", ready, *options, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        assert ready.exists(), process.communicate()[1]
        yield process, json.loads(ready.read_bytes())
    finally:
        process.kill()
        process.communicate()


def test_an_asyncio_portal_connects_though_its_program_never_awaits_it(tmp_path: Path) -> None:
    program = f"""
import asyncio, omq.asyncio.goby as goby

async def main():
    received = asyncio.get_running_loop().create_future()
    portal = goby.Portal("b", socket_name={str(tmp_path / "g")!r})
    portal.subscribe("g", str, received.set_result)
    portal.ready()
    print(await received)
    await portal.close()

asyncio.run(main())
"""
    with gobyd(tmp_path, "--socket-name", str(tmp_path / "g"), "--required-client", "b"):
        listening = ForkedProcess("-c", program, stdout=subprocess.PIPE, text=True)
        try:
            with Portal("a", socket_name=tmp_path / "g") as a:
                a.publish("g", "text")
                a.wait_released(20)
                assert listening.communicate(timeout=20)[0] == "text\n"
        finally:
            listening.kill()
            listening.communicate()


@each_value_once(transport=["ipc", "tcp"], number=[signal.SIGTERM, signal.SIGINT])
def test_gobyd_serves_until_a_signal(tmp_path: Path, number: signal.Signals, transport: str) -> None:
    options = ["--socket-name", str(tmp_path / "g")]
    if transport == "tcp":
        options = ["--transport", "tcp", "--tcp-port", "0", "--bind-address", "127.0.0.1"]
    with gobyd(tmp_path, *options, "--required-client", "a", "--required-client", "b") as (process, where):
        assert list(where) == ["manager", "publish", "subscribe"]
        bus_options = {"socket_name": tmp_path / "g"}
        if transport == "tcp":
            bus_options = {"transport": "tcp", "port": int(where["manager"].rpartition(":")[2])}  # type: ignore[dict-item]
        with Portal("a", **bus_options) as a, Portal("b", **bus_options) as b:  # type: ignore[arg-type]
            texts = b.subscribe("g", str)
            a.ready()
            until(lambda: a.missing() == ["b"])
            b.ready()
            a.publish("g", "x")
            assert texts.recv(timeout=10) == "x"
            process.send_signal(number)
            assert process.wait(20) == 0
        assert process.stderr is not None
        log = process.stderr.read()
        assert f"{number.name}: ending" in log
        assert "hold: waiting for a, b" in log
        assert "hold: waiting for b" in log
        assert "hold: released" in log
        assert "Traceback" not in log
        assert [path.name for path in tmp_path.iterdir()] == [], "ready file and sockets are gone"


def test_a_terminate_request_on_the_bus_ends_gobyd(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        process, _ = stack.enter_context(gobyd(tmp_path, "--socket-name", str(tmp_path / "g")))
        a = stack.enter_context(Portal("a", socket_name=tmp_path / "g"))
        a.wait_released(10)
        a.publish("goby::terminate::request", TerminateRequest(target_pid=process.pid))
        assert process.wait(20) == 0


def test_one_that_is_killed_and_started_again_loses_only_what_was_under_way(tmp_path: Path) -> None:
    options = ["--socket-name", str(tmp_path / "g")]
    with contextlib.ExitStack() as stack:
        process, _ = stack.enter_context(gobyd(tmp_path, *options))
        a, b = (stack.enter_context(Portal(name, socket_name=tmp_path / "g")) for name in "ab")
        texts = b.subscribe("g", str)
        a.wait_released(10)
        b.wait_released(10)
        process.kill()
        process.wait(10)
        until(lambda: not a.released and not b.released)
        (tmp_path / "ready.json").unlink()
        for number in range(100):
            a.publish("g", f"{number}")
        stack.enter_context(gobyd(tmp_path, *options))
        assert [texts.recv(timeout=10) for _ in range(100)] == [f"{number}" for number in range(100)]


def test_a_configuration_is_taken_and_options_come_first(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text(
        f'[app]\nname = "gobyd_7"\n[interprocess]\nsocket_name = "{tmp_path}/g"\n[hold]\nrequired_client = ["a"]\n'
    )
    with gobyd(tmp_path, "--config", str(tmp_path / "g.toml"), "--required-client", "b") as (_, where):
        assert where["manager"] == f"ipc://{tmp_path}/g.manager"
        with Portal("c", socket_name=tmp_path / "g") as c:
            assert c.missing() == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--transport=pgm"], 2, "--transport"),
        (["--tcp-port=65536"], 2, "--tcp-port"),
        (["--tcp-port=http"], 2, "--tcp-port"),
        (["--platform=a/b"], 2, "--platform"),
        (["--platform="], 2, "--platform"),
        (["--socket-name="], 2, "--socket-name"),
        (["--socket-name=/" + "x" * 200], 2, "--socket-name"),
        (["--required-client="], 2, "--required-client"),
        (["--config=/nowhere"], 2, "--config"),
        (["--ready-file=/nowhere/at/all"], 2, "--ready-file"),
        (["--ready-file=/dev/full"], 2, "is not a regular file"),
        (["--ready-file=/dev/null"], 2, "is not a regular file"),
        (["--ready-file=/tmp"], 2, "--ready-file"),
        (["--health-interval=nan"], 2, "--health-interval"),
        (["--health-interval=-1"], 2, "--health-interval"),
        (["--log-level=loud"], 2, "--log-level"),
        (["--socket-name=/nowhere/at/all/g"], 1, "/nowhere/at/all/g"),
        (["--transport=tcp", "--tcp-port=0", "--bind-address=192.0.2.1"], 1, "192.0.2.1"),
    ],
)
def test_what_does_not_fit_is_reported(arguments: list[str], status: int, text: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert (result.exit_code, text in result.output) == (status, True), result.output
    assert "Traceback" not in result.output


def test_a_bad_configuration_is_reported(tmp_path: Path) -> None:
    (tmp_path / "g.cfg").write_text("interprocess { platfrm: 'x' }")
    result = CliRunner().invoke(command, ["--config", str(tmp_path / "g.cfg")])
    assert result.exit_code == 2
    assert "platfrm" in result.output


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("g.cfg", "intervehicle { }", "no intervehicle portal"),
        ("g.toml", "[intervehicle]", "no intervehicle portal"),
        ("g.cfg", "interprocess { receive_queue_size: 4294967295 }", "interprocess.receive_queue_size=4294967295"),
    ],
)
def test_what_is_not_served_is_reported(tmp_path: Path, name: str, content: str, text: str) -> None:
    (tmp_path / name).write_text(content)
    result = CliRunner().invoke(command, ["--config", str(tmp_path / name)])
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


def test_a_ready_file_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ready.json").symlink_to(tmp_path / "elsewhere/where")
    with gobyd(tmp_path, "--socket-name", str(tmp_path / "g")):
        assert (tmp_path / "ready.json").is_symlink()
        assert (tmp_path / "elsewhere/where").is_file()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_signal_that_comes_while_it_is_stopped_counts(tmp_path: Path, number: signal.Signals) -> None:
    """The system may give it to any thread then. One run in two lost it; a run has four."""
    for _ in range(4):
        with gobyd(tmp_path, "--socket-name", str(tmp_path / "g")) as (process, _where):
            process.send_signal(signal.SIGSTOP)
            status = Path(f"/proc/{process.pid}/status")
            until(lambda: "State:\tT" in status.read_text())  # noqa: B023 - called at once
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            assert process.wait(20) == 0


def test_a_bus_that_another_process_has_is_reported(tmp_path: Path) -> None:
    with Daemon(socket_name=tmp_path / "g"), Portal("a", socket_name=tmp_path / "g") as a:
        result = CliRunner().invoke(command, ["--socket-name", str(tmp_path / "g")])
        assert result.exit_code == 1
        assert f"{tmp_path}/g.manager" in result.output
        a.wait_released(10)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["gobyd"], ["goby", "sniff"], ["goby", "log", "recording"]])
def test_an_extra_that_is_missing_is_named(tmp_path: Path, arguments: list[str]) -> None:
    blind = "import sys; sys.modules['google.protobuf'] = None; sys.modules['google'] = None; "
    done = subprocess.run(
        [sys.executable, "-c", blind + MAIN, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "omq-zmtp[goby]" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_import_names_the_missing_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['google.protobuf'] = None; import omq.goby"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "omq.goby needs protobuf: pip install 'omq-zmtp[goby]'" in done.stderr
