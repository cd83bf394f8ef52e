"""Forked child processes end, and report their end, as those of `subprocess` do."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.fork_server import SOCKETS, ForkedProcess, run


@pytest.mark.parametrize(
    ("program", "status", "error"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise ValueError('no')", 1, "ValueError: no\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt\n"),
    ],
)
def test_the_end_of_a_program_is_reported(program: str, status: int, error: str) -> None:
    done = run(program)
    assert done.returncode == status
    assert done.stderr.endswith(error)
    assert bool(done.stderr) == bool(error)


def test_a_program_has_its_arguments_folder_environment_and_pipes_and_nothing_else(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.argv, os.getcwd(), os.environ, os.listdir('/proc/self/fd')); print(input())"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ForkedProcess(program, "a", tmp_path, cwd=tmp_path, env={"A": "b"}, text=True, **pipes) as process:
        assert process.stdin is not None
        process.stdin.write("line\n")
        output, _ = process.communicate(timeout=30)
    # The fourth descriptor reads the list.
    expected = f"['-c', 'a', '{tmp_path}'] {tmp_path} environ({{'A': 'b'}}) ['0', '1', '2', '3']\nline\n"
    assert (output, process.returncode) == (expected, 0)


def test_what_a_program_has_left_is_finalized() -> None:
    program = (
        "import atexit\nclass Left:\n    def __del__(self): print('gone')\nleft = Left()\natexit.register(print, 'end')"
    )
    assert run(program, template=SOCKETS).stdout == "end\ngone\n"


def test_a_stopped_program_is_waited_for_in_time() -> None:
    with ForkedProcess("print(1, flush=True); input()", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None
        os.kill(process.pid, 0)
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
