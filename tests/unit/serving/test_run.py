"""The life of a server command, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.fork_server import ForkedProcess

PROGRAM = """
import asyncio, logging, pathlib, signal, sys
from omq.serving.log import log_to_stderr
from omq.serving.run import run_server

class Server:
    def __init__(self):
        self.endpoints = {}
    async def start(self):
        self.endpoints["http"] = "http://127.0.0.1:1"
        self.task = asyncio.current_task()
    async def close(self):
        print("closed", flush=True)
        if "slow" in sys.argv:
            await asyncio.sleep(60)

server = Server()
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # below nohup it is ignored
log_to_stderr("info")
def started():
    print("started", flush=True)
    if "itself" in sys.argv:
        asyncio.get_running_loop().call_soon(server.task.cancel)
async def hang_up():
    print("hung up", flush=True)
run_server(
    server, logging.getLogger("omq.test"), ready_file=pathlib.Path(sys.argv[1]), on_start=started,
    on_hang_up=hang_up if "hang" in sys.argv else None,
)
"""


def begin(ready: Path, *words: str) -> ForkedProcess:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = ForkedProcess("-c", PROGRAM, ready, *words, text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready.json"
    process = begin(ready)
    assert ready.read_text() == '{"http": "http://127.0.0.1:1"}\n'
    process.send_signal(number)
    out, log = process.communicate(timeout=20)
    assert (process.returncode, out, ready.exists()) == (0, "closed\n", False)
    assert "http: http://127.0.0.1:1" in log
    assert f"{number.name}: ending" in log
    assert log.endswith("omq.test: ended\n")


def test_a_second_signal_does_not_wait_for_the_end(tmp_path: Path) -> None:
    process = begin(tmp_path / "ready.json", "slow")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "closed\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM


def test_a_hang_up_is_given_to_the_server_that_takes_it(tmp_path: Path) -> None:
    process = begin(tmp_path / "ready.json", "hang")
    process.send_signal(signal.SIGHUP)
    assert process.stdout is not None
    assert process.stdout.readline() == "hung up\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_hang_up_ends_a_server_that_does_not_take_it(tmp_path: Path) -> None:
    process = begin(tmp_path / "ready.json")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGHUP


def test_a_server_can_end_itself(tmp_path: Path) -> None:
    process = begin(tmp_path / "ready.json", "itself")
    assert process.stdout is not None
    assert process.stdout.readline() == "closed\n"  # `communicate` would not see a line that is buffered already
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert log.endswith("omq.test: ended\n")
