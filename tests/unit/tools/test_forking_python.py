"""The executable that stands for Python: its processes are like others."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forking_python import forking_python
from tests.support.waits import until


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with forking_python(tmp_path_factory.mktemp("python"), "fractions") as program:
        yield str(program)


def test_a_process_has_the_arguments_the_environment_and_the_input_of_its_client(python: str, tmp_path: Path) -> None:
    program = "import os, sys; print(sys.argv[1:], os.environ['HERE'], os.getcwd(), sys.stdin.read()); sys.exit(7)"
    command = [python, "-c", program, "a", "b c"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"HERE": "x"}, input="in", stdout=subprocess.PIPE, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (7, f"['a', 'b c'] x {tmp_path} in\n")


def test_a_module_runs_as_the_main_one_next_to_what_was_imported(python: str, tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text("import sys\nprint(__name__, sys.argv[1:], 'fractions' in sys.modules)")
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
