"""Forked child processes are like those of `subprocess`, and end as they do."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import warnings
from pathlib import Path

import pytest

from tests.support.fork_server import COMMANDS, SOCKETS, ForkedProcess, executable, run
from tests.support.waits import until


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
    done = run("-c", program)
    assert done.returncode == status
    assert done.stderr.endswith(error)
    assert bool(done.stderr) == bool(error)


def test_a_program_has_its_arguments_folder_environment_and_pipes_and_nothing_else(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.argv, os.getcwd(), os.environ, os.listdir('/proc/self/fd')); print(input())"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ForkedProcess("-c", program, "a", tmp_path, cwd=tmp_path, env={"A": "b"}, text=True, **pipes) as process:
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
    assert run("-c", program, template=SOCKETS).stdout == "end\ngone\n"


def test_a_stopped_program_is_waited_for_in_time() -> None:
    with ForkedProcess("-c", "print(1, flush=True); input()", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None
        os.kill(process.pid, 0)
        process.kill()
        assert process.wait(30) == -signal.SIGKILL


def test_a_process_whose_object_is_collected_dies() -> None:
    with warnings.catch_warnings(record=True) as warned:
        pid = ForkedProcess("-c", "import time; time.sleep(60)").pid
        gc.collect()
    assert not warned
    until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(executable(tmp_path_factory.mktemp("python"), COMMANDS))


def test_a_process_has_the_arguments_the_environment_and_the_input_of_its_client(python: str, tmp_path: Path) -> None:
    program = "import os, sys; print(sys.argv[1:], os.environ['HERE'], os.getcwd(), sys.stdin.read()); sys.exit(7)"
    command = [python, "-c", program, "a", "b c"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"HERE": "x"}, input="in", stdout=subprocess.PIPE, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (7, f"['a', 'b c'] x {tmp_path} in\n")


def test_a_module_runs_as_the_main_one_next_to_what_was_imported(python: str, tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text("import sys\nprint(__name__, sys.argv[1:], 'omq.cli.main' in sys.modules)")
    program = (
        f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_module('some_module', None, '__main__')"
    )
    assert subprocess.check_output([python, "-c", program, "a"], timeout=30) == b"__main__ ['a'] True\n"
    assert subprocess.check_output([python, "-m", "platform"], timeout=30).startswith(b"Linux")


def test_a_process_starts_others_in_the_same_way(python: str) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(5)'], check=True)"
    assert subprocess.check_output([python, "-c", program], timeout=30) == b"5\n"


def test_a_client_dies_by_the_signal_of_its_process(python: str) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert subprocess.run([python, "-c", program], timeout=30, check=False).returncode == -signal.SIGTERM


def test_a_process_dies_with_its_client(python: str) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([python, "-c", program], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        assert pid != client.pid
        client.kill()
    until(lambda: not Path(f"/proc/{pid}").exists())
